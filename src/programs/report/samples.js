// The table of samples and its filters.
const RUN = 0, STEP = 1, KIND = 2, SCORE = 3, FINISHED = 4, PROMPT = 5, COMPLETION = 6, REWARDS = 7, OTHERS = 8;
const ROW_HEIGHT = 30;
const samples = {rows: [], prompts: [], found: [], chosen: -1, sort: null, names: [], lines: []};

// What a row says of its completion in one line: of a conversation all that was sampled.
function lineText(row) {
  if (row[COMPLETION] !== "") return plain(row[COMPLETION]);
  const others = row[OTHERS];
  if (Array.isArray(others.messages)) return others.messages.map(m => plain(m && m.content)).join(" ");
  return "";
}

// Whether a row's number lies between two ends; an empty end holds none back, a missing number fits no end.
function between(value, low, high) {
  if (low === "" && high === "") return true;
  return value !== null && value !== undefined && (low === "" || value >= Number(low)) &&
    (high === "" || value <= Number(high));
}

function wantedBy(asked) {
  const words = asked.text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), search = words ? new RegExp(words, "iu") : null;
  const inPrompt = search ? samples.prompts.map(p => search.test(lastOf(p))) : [];
  return row => (asked.run === "" || row[RUN] === Number(asked.run)) &&
    (asked.kind === "" || row[KIND] === asked.kind) &&
    between(row[STEP], asked.stepLow, asked.stepHigh) && between(row[SCORE], asked.low, asked.high) &&
    (asked.reward === "" || between(row[REWARDS][asked.reward] ?? null, asked.rewardLow, asked.rewardHigh)) &&
    (!asked.cut || !row[FINISHED]) && (!search || inPrompt[row[PROMPT]] || search.test(lineText(row)));
}

const SORTS = {step: row => row[STEP], kind: row => row[KIND], score: row => row[SCORE]};

function sorted(found) {
  if (!samples.sort) return found;
  const value = SORTS[samples.sort.by], sign = samples.sort.down ? -1 : 1, rows = samples.rows;
  return found.sort((a, b) => {
    const x = value(rows[a]), y = value(rows[b]);
    if (x === y) return a - b;
    return x === null ? 1 : y === null ? -1 : sign * (x < y ? -1 : 1);
  });
}

function filterSamples() {
  const asked = Object.fromEntries([...byId("filters").elements].filter(e => e.name)
    .map(e => [e.name, e.type === "checkbox" ? e.checked : e.value]));
  const wanted = wantedBy(asked), found = [];
  samples.rows.forEach((row, i) => { if (wanted(row)) found.push(i); });
  samples.found = sorted(found);
  samples.chosen = -1;
  const all = samples.rows.length.toLocaleString("en"), some = found.length.toLocaleString("en");
  byId("sample-count").textContent = found.length === samples.rows.length ? `${all} samples` : `${some} of ${all}`;
  samples.lines.forEach(line => line.remove());
  samples.lines = [];
  byId("sample-space").style.height = `${ROW_HEIGHT * found.length}px`;
  byId("sample-view").scrollTop = 0;
  showRows();
}

function rowLine(place) {
  const row = samples.rows[samples.found[place]];
  const text = lineText(row).slice(0, 300).replace(/\s+/g, " ");
  const line = el("div", {class: "row", role: "option", id: `row-${place}`, "aria-selected":
    String(place === samples.chosen), "aria-posinset": String(place + 1), "aria-setsize": String(samples.found.length)},
    el("span", {}, runDot(row[RUN]), ` ${row[STEP] ?? ""}`), el("span", {class: "hide-small"}, shown(row[KIND])),
    el("span", {}, figure(row[SCORE]) + (row[FINISHED] ? "" : " ✂")),
    el("span", {class: "hide-small"}, shown(lastOf(samples.prompts[row[PROMPT]]).slice(0, 200).replace(/\s+/g, " "))),
    el("span", {}, shown(text)));
  line.style.top = `${ROW_HEIGHT * place}px`;
  line.addEventListener("click", () => choose(place));
  return line;
}

// Only the rows that are seen are elements.
function showRows() {
  const view = byId("sample-view"), first = Math.max(0, Math.floor(view.scrollTop / ROW_HEIGHT) - 5);
  const end = Math.min(samples.found.length, first + Math.ceil(view.clientHeight / ROW_HEIGHT) + 11);
  samples.lines.forEach(line => line.remove());
  samples.lines = [];
  for (let place = first; place < end; place++) samples.lines.push(rowLine(place));
  view.append(...samples.lines);
}

function choose(place, focus = false) {
  if (!samples.found.length) return;
  const view = byId("sample-view");
  samples.chosen = Math.max(0, Math.min(samples.found.length - 1, place));
  const top = samples.chosen * ROW_HEIGHT;
  if (top < view.scrollTop) view.scrollTop = top;
  if (top + ROW_HEIGHT > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW_HEIGHT - view.clientHeight;
  showRows();
  view.setAttribute("aria-activedescendant", `row-${samples.chosen}`);
  showDetail(byId("sample-detail"), samples.found[samples.chosen]);
}

function keys(event) {
  const page = Math.floor(byId("sample-view").clientHeight / ROW_HEIGHT), now = samples.chosen;
  const to = {ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0,
    End: samples.found.length - 1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose(to);
}

function headLine() {
  const sortable = (text, by) => el("button", {type: "button", onclick: () => {
    samples.sort = {by, down: samples.sort?.by === by ? !samples.sort.down : true};
    filterSamples();
  }}, text + " ⇅");
  return el("div", {class: "head"}, sortable("step", "step"),
    el("span", {class: "hide-small"}, sortable("kind", "kind")),
    sortable("score", "score"), el("span", {class: "hide-small"}, "prompt"), el("span", {}, "completion"));
}

function selectOf(name, label, values) {
  const options = values.map(([value, text]) => el("option", {value: String(value)}, shown(text)));
  return el("label", {}, label, el("select", {name}, el("option", {value: ""}, "all"), ...options));
}

function rangeOf(label, low, high) {
  const input = (name, hint) => el("input", {type: "number", step: "any", name, placeholder: hint,
    "aria-label": `${label} ${hint}`});
  return el("label", {}, label, input(low, "from"), input(high, "to"));
}

function filterForm() {
  const rows = samples.rows, kinds = [...new Set(rows.map(row => row[KIND]))];
  const runs = [...new Set(rows.map(row => row[RUN]))], rewards = new Set();
  for (const row of rows) for (const name in row[REWARDS]) rewards.add(name);
  const form = el("form", {id: "filters", class: "controls", onsubmit: event => event.preventDefault()},
    el("label", {}, "text", el("input", {type: "search", name: "text", placeholder: "in prompt or completion"})),
    rangeOf("step", "stepLow", "stepHigh"), rangeOf("score", "low", "high"));
  if (runs.length > 1) form.append(selectOf("run", "run", runs.map(i => [i, samples.names[i]])));
  else form.append(el("input", {type: "hidden", name: "run"}));
  form.append(selectOf("kind", "kind", kinds.map(kind => [kind, kind])));
  form.append(selectOf("reward", "reward", [...rewards].map(name => [name, name])),
    rangeOf("its value", "rewardLow", "rewardHigh"),
    el("label", {}, el("input", {type: "checkbox", name: "cut"}), "✂ cut off only"),
    el("button", {type: "reset"}, "all again"), el("output", {id: "sample-count", class: "small soft"}));
  let waiting = 0;
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filterSamples, 120); });
  form.addEventListener("reset", () => setTimeout(filterSamples));
  return form;
}

function showTable(place) {
  const space = el("div", {id: "sample-space"});
  const view = el("div", {id: "sample-view", class: "view", tabindex: "0", role: "listbox",
    "aria-label": "samples; arrow keys choose one", onkeydown: keys}, space);
  view.addEventListener("scroll", () => requestAnimationFrame(showRows), {passive: true});
  place.replaceChildren(filterForm(), el("div", {class: "grid"}, headLine(), view), el("div", {id: "sample-detail"}));
  filterSamples();
}

async function startSamples() {
  const place = byId("browser");
  if (!place) return;
  whenNear(place, async () => {
    try {
      Object.assign(samples, await unpack("sample-data"), {names: await unpack("sample-names")});
      const body = el("div", {}), pairs = beforeAndAfter();
      const tabs = [["all samples", showTable], ...(pairs.length ? [["before and after", showPairs]] : [])];
      const press = (pressed, show) => {
        buttons.forEach(button => button.setAttribute("aria-pressed", String(button === pressed)));
        show(body, pairs);
      };
      const buttons = tabs.map(([name, show]) =>
        el("button", {type: "button", onclick: event => press(event.target, show)}, name));
      place.replaceChildren(el("div", {class: "controls"}, ...buttons), body);
      buttons[0].click();
    } catch (error) {
      failed(place, error);
    }
  });
}
