// A sample with its group, conversations, and before beside after.
function turn(message) {
  const of = message && typeof message === "object" ? message : {content: message};
  const role = plain(of.role || "text"), known = ["assistant", "tool", "system"].includes(role) ? role : "";
  const box = el("div", {class: "turn " + known}, el("b", {class: "small"}, shown(role)));
  if (plain(of.content)) box.append(el("pre", {}, shown(plain(of.content))));
  for (const call of Array.isArray(of.tool_calls) ? of.tool_calls : []) {
    const what = (call && call.function) || call || {};
    box.append(el("pre", {class: "small"}, "calls ", shown(`${plain(what.name)} ${plain(what.arguments)}`)));
  }
  return box;
}

function saidBy(row) {
  const {messages, pieces} = row[OTHERS], box = el("div", {});
  if (Array.isArray(messages)) box.append(...messages.map(turn));
  else if (Array.isArray(row[COMPLETION])) box.append(...row[COMPLETION].map(turn));
  else if (!Array.isArray(pieces)) box.append(el("pre", {}, shown(plain(row[COMPLETION]))));
  if (Array.isArray(pieces)) {
    const whole = el("pre", {}, ...pieces.map(piece => el(piece && piece.sampled ? "ins" : "span", {},
      shown(plain(piece && piece.text)))));
    box.append(el("details", {open: !Array.isArray(messages)}, el("summary", {class: "small"},
      "as the model saw it; sampled text is marked"), whole));
  }
  return box;
}

const SHOWN_APART = new Set(["messages", "pieces", "advantage"]);

function sampleCard(row, mean, chosen) {
  const others = row[OTHERS], said = [];
  for (const [name, value] of Object.entries(row[REWARDS])) said.push(`${name} ${figure(value) || "–"}`);
  if (typeof others.advantage === "number") said.push(`advantage ${figure(others.advantage)}`);
  else if (mean !== null && row[SCORE] !== null) {
    const off = row[SCORE] - mean;
    said.push(`${off < 0 ? "−" : "+"}${figure(Math.abs(off))} from the mean of these`);
  }
  if (!row[FINISHED]) said.push("cut off");
  for (const [name, value] of Object.entries(others)) {
    if (!SHOWN_APART.has(name)) said.push(`${name}: ${plain(value).slice(0, 300)}`);
  }
  return el("div", {class: "box" + (chosen ? " chosen" : "")}, el("h4", {}, `score ${figure(row[SCORE]) || "–"}`),
    el("p", {class: "small soft text"}, shown(said.join(" · "))), saidBy(row));
}

function showDetail(place, index) {
  const row = samples.rows[index], same = [RUN, STEP, KIND, PROMPT];
  const group = samples.rows.filter(other => same.every(k => other[k] === row[k])).slice(0, 64);
  const scores = group.map(other => other[SCORE]).filter(score => score !== null);
  const mean = group.length > 1 && scores.length ? scores.reduce((a, b) => a + b) / scores.length : null;
  const prompt = samples.prompts[row[PROMPT]];
  const asked = Array.isArray(prompt) ? prompt.map(turn) : [el("pre", {}, shown(plain(prompt)))];
  const cards = group.map(other => sampleCard(other, mean, other === row));
  const where = `${samples.names[row[RUN]]} · ${row[KIND]}${row[STEP] === null ? "" : ` · step ${row[STEP]}`}`;
  const title = group.length > 1 ? `${group.length} logged completions of this prompt` : "its completion";
  place.replaceChildren(el("h3", {}, shown(where)), ...asked, el("h4", {}, title),
    el("div", {class: "side"}, ...cards));
  const chosen = place.querySelector(".chosen");
  if (chosen) chosen.parentNode.scrollLeft = chosen.offsetLeft - chosen.parentNode.offsetLeft;
}

// What both lists of rows have a prompt of: [row of the first, row of the second].
function samePrompts(before, after) {
  const known = new Map(after.map(row => [row[PROMPT], row]));
  return before.filter(row => known.has(row[PROMPT])).map(row => [row, known.get(row[PROMPT])]);
}

// Of each run the prompts of its first and its last held-out evaluation, and those that two of evaluation.py share.
function beforeAndAfter() {
  const pairs = [], evaluated = [];
  samples.names.forEach((name, run) => {
    const rows = samples.rows.filter(row => row[RUN] === run && row[KIND] !== "train");
    const steps = rows.map(row => row[STEP]).filter(step => step !== null);
    if (rows.length && !steps.length) evaluated.push(rows);
    const [first, last] = [Math.min, Math.max].map(pick => steps.reduce((a, b) => pick(a, b), steps[0]));
    if (first === last) return;
    pairs.push(...samePrompts(...[first, last].map(step => rows.filter(row => row[STEP] === step))));
  });
  if (evaluated.length > 1) pairs.push(...samePrompts(evaluated[0], evaluated[evaluated.length - 1]));
  return pairs;
}

function pairBox([before, after]) {
  const side = (row, name) => el("div", {}, el("h4", {},
    `${name}, ${row[STEP] === null ? samples.names[row[RUN]] : "step " + row[STEP]}: score ${figure(row[SCORE])}`),
    el("pre", {}, shown(lineText(row))));
  return el("div", {class: "box"},
    el("p", {class: "text"}, samples.names.length > 1 ? shown(samples.names[before[RUN]] + ": ") : "",
      shown(lastOf(samples.prompts[before[PROMPT]]), 2000)),
    el("div", {class: "pair"}, side(before, "before"), side(after, "after")));
}

function showPairs(place, pairs, count = 20) {
  const more = el("button", {type: "button", onclick: () => showPairs(place, pairs, count + 50)}, "more");
  place.replaceChildren(el("p", {class: "small soft"},
    "The same held-out prompts at the first and at the last evaluation."),
    ...pairs.slice(0, count).map(pairBox), ...(pairs.length > count ? [more] : []));
}
