// The table of samples and its filters.
const RUN = 0, STEP = 1, KIND = 2, SCORE = 3, FINISHED = 4, PROMPT = 5, COMPLETION = 6, REWARDS = 7, OTHERS = 8;
const MORE = 200; // rows that are added to the table at once
const samples = {rows: [], prompts: [], found: [], sort: null, names: []};

// What a row says of its completion in one line: of a conversation all that was sampled.
function lineText(row) {
  if (row[COMPLETION] !== "") return plain(row[COMPLETION]);
  const {messages} = row[OTHERS];
  return Array.isArray(messages) ? messages.map(m => plain(m && m.content)).join(" ") : "";
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
  return row => ["", String(row[RUN])].includes(asked.run) && ["", row[KIND]].includes(asked.kind) &&
    between(row[STEP], asked.stepLow, asked.stepHigh) && between(row[SCORE], asked.low, asked.high) &&
    (asked.reward === "" || between(row[REWARDS][asked.reward] ?? null, asked.rewardLow, asked.rewardHigh)) &&
    (!asked.cut || !row[FINISHED]) && (!search || inPrompt[row[PROMPT]] || search.test(lineText(row)));
}

function sorted(found) {
  const {by, down} = samples.sort ?? {}, rows = samples.rows;
  return by === undefined ? found : found.sort((a, b) => {
    const x = rows[a][by], y = rows[b][by];
    if (x === y) return a - b;
    return x === null ? 1 : y === null ? -1 : (down ? -1 : 1) * (x < y ? -1 : 1);
  });
}

function filterSamples() {
  const asked = Object.fromEntries([...byId("filters").elements].filter(e => e.name)
    .map(e => [e.name, e.type === "checkbox" ? e.checked : e.value]));
  const wanted = wantedBy(asked);
  samples.found = sorted([...samples.rows.keys()].filter(i => wanted(samples.rows[i])));
  const all = samples.rows.length.toLocaleString("en"), some = samples.found.length.toLocaleString("en");
  byId("sample-count").textContent = some === all ? `${all} samples` : `${some} of ${all}`;
  byId("sample-rows").replaceChildren();
  addRows();
}

// A row of the table; a click or Enter chooses it.
function rowLine(place) {
  const row = samples.rows[samples.found[place]], line = text => text.slice(0, 300).replace(/\s+/g, " ");
  return el("tr", {tabIndex: 0, id: `row-${place}`, onclick: () => choose(place),
    onkeydown: event => { if (event.key === "Enter") choose(place); }},
    el("td", {}, runDot(row[RUN]), ` ${row[STEP] ?? ""}`), el("td", {}, shown(row[KIND])),
    el("td", {}, figure(row[SCORE]) + (row[FINISHED] ? "" : " ✂")),
    el("td", {}, shown(line(lastOf(samples.prompts[row[PROMPT]])))), el("td", {}, shown(line(lineText(row)))));
}

function addRows() {
  const body = byId("sample-rows"), end = Math.min(samples.found.length, body.children.length + MORE);
  for (let place = body.children.length; place < end; place++) body.append(rowLine(place));
  byId("sample-more").hidden = end === samples.found.length;
}

function choose(place) {
  document.querySelector("#sample-rows [aria-selected]")?.removeAttribute("aria-selected");
  byId(`row-${place}`)?.setAttribute("aria-selected", "true");
  showDetail(byId("sample-detail"), samples.found[place]);
}

function headLine() {
  const sortable = (text, by) => el("th", {}, el("button", {type: "button", onclick: () => {
    samples.sort = {by, down: samples.sort?.by === by ? !samples.sort.down : true};
    filterSamples();
  }}, text + " ⇅"));
  return el("thead", {}, el("tr", {}, sortable("step", STEP), sortable("kind", KIND), sortable("score", SCORE),
    el("th", {}, "prompt"), el("th", {}, "completion")));
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
  const several = index => [...new Set(samples.rows.map(row => row[index]))];
  const rewards = [...new Set(samples.rows.flatMap(row => Object.keys(row[REWARDS])))];
  let waiting = 0;
  const later = () => { clearTimeout(waiting); waiting = setTimeout(filterSamples, 120); };
  return el("form", {id: "filters", class: "controls", onsubmit: event => event.preventDefault(), oninput: later,
    onreset: later}, el("label", {}, "text", el("input", {type: "search", name: "text",
      placeholder: "in prompt or completion"})),
    rangeOf("step", "stepLow", "stepHigh"), rangeOf("score", "low", "high"),
    selectOf("run", "run", several(RUN).map(i => [i, samples.names[i]])),
    selectOf("kind", "kind", several(KIND).map(kind => [kind, kind])),
    selectOf("reward", "reward", rewards.map(name => [name, name])), rangeOf("its value", "rewardLow", "rewardHigh"),
    el("label", {}, el("input", {type: "checkbox", name: "cut"}), "✂ cut off only"),
    el("button", {type: "reset"}, "all again"), el("output", {id: "sample-count", class: "small soft"}));
}

function showTable(place) {
  place.replaceChildren(filterForm(), el("div", {class: "box view"}, el("table", {}, headLine(),
    el("tbody", {id: "sample-rows"})), el("button", {type: "button", id: "sample-more", onclick: addRows}, "more")),
    el("div", {id: "sample-detail"}));
  filterSamples();
}

async function startSamples() {
  const place = byId("browser");
  if (!place) return;
  Object.assign(samples, await unpack("sample-data"), {names: await unpack("sample-names")});
  const body = el("div", {}), pairs = beforeAndAfter();
  const button = (name, show) => el("button", {type: "button", onclick: () => show(body, pairs)}, name);
  place.replaceChildren(...(pairs.length ? [el("div", {class: "controls"}, button("all samples", showTable),
    button("before and after", showPairs))] : []), body);
  showTable(body);
}
