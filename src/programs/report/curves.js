// The curves, which plotly draws.
const curves = {data: null, hidden: new Set(), smooth: 0, log: false, bands: true, charts: [], range: null};

// Exponential moving average, each value divided by the weight that it stands for.
function smoothed(values, weight) {
  let sum = 0, of = 0;
  return values.map(value => {
    sum = weight * sum + (1 - weight) * value;
    of = weight * of + 1 - weight;
    return sum / of;
  });
}

// Plotly reads some markup in names.
const safeName = text => text.replace(ODD, "�").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
  .slice(0, 80);

function lineOf(x, y, i, more = {}) {
  const few = x.length < 20;
  return {x, y, type: "scatter", mode: few ? "lines+markers" : "lines", line: {color: runColor(i), width: 1.8},
    marker: {size: 5}, hovertemplate: "%{y:.5~g}", ...more};
}

// Mean, lowest and highest of the runs of one setting at the steps that two of them have.
function bandOf(series) {
  const at = new Map();
  for (const s of series) s.x.forEach((x, k) => at.set(x, [...(at.get(x) || []), s.y[k]]));
  const steps = [...at.keys()].filter(x => at.get(x).length > 1).sort((a, b) => a - b);
  const of = pick => steps.map(x => pick(at.get(x)));
  return {x: steps, mean: of(v => v.reduce((a, b) => a + b) / v.length), low: of(v => Math.min(...v)),
    high: of(v => Math.max(...v))};
}

function bandTraces(series, names) {
  const band = bandOf(series), i = series[0].run, weight = curves.smooth;
  const [mean, low, high] = [band.mean, band.low, band.high].map(v => weight ? smoothed(v, weight) : v);
  const edge = {mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false};
  return [lineOf(band.x, low, i, edge),
    lineOf(band.x, high, i, {...edge, fill: "tonexty"}),
    lineOf(band.x, mean, i, {name: safeName(`mean of ${series.length} seeds: ${names}`)})];
}

function tracesOf(metric) {
  const runs = curves.data.runs, traces = [], settings = new Map();
  for (const s of metric.series) {
    if (curves.hidden.has(s.run)) continue;
    const setting = curves.bands ? runs[s.run].setting : s.run;
    settings.set(setting, [...(settings.get(setting) || []), s]);
  }
  for (const series of settings.values()) {
    if (series.length > 1 && bandOf(series).x.length) {
      traces.push(...bandTraces(series, series.map(s => runs[s.run].name).join(", ")));
      continue;
    }
    for (const s of series) {
      const name = safeName(runs[s.run].name), rough = curves.smooth && s.x.length > 2;
      if (rough) traces.push(lineOf(s.x, s.y, s.run, {opacity: .25, hoverinfo: "skip", showlegend: false}));
      traces.push(lineOf(s.x, rough ? smoothed(s.y, curves.smooth) : s.y, s.run, {name}));
    }
  }
  return traces;
}

// Ticks at the lower edge where checkpoints lie, at the upper edge where evaluations do; dashed lines for findings.
function marksOf(metric) {
  const shapes = [], annotations = [];
  const tick = (x, i, y0, y1) => shapes.push({type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0, y1,
    line: {color: runColor(i), width: 2}});
  for (const s of metric.series) {
    if (curves.hidden.has(s.run)) continue;
    const run = curves.data.runs[s.run];
    run.checkpoints.slice(-200).forEach(x => tick(x, s.run, 0, .05));
    run.evaluations.slice(-200).forEach(x => tick(x, s.run, .95, 1));
    for (const f of run.findings.filter(f => f.metric === metric.name || f.metric === s.as)) {
      shapes.push({type: "line", xref: "x", yref: "paper", x0: f.step, x1: f.step, y0: 0, y1: 1,
        line: {color: color("--bad"), width: 1.5, dash: "dash"}});
      annotations.push({x: f.step, y: 1, yref: "paper", yanchor: "top", xanchor: "left", text: f.id, showarrow: false,
        font: {size: 11, color: color("--bad")}});
    }
  }
  return {shapes, annotations};
}

function draw(chart) {
  const ink = color("--soft"), line = color("--line"), touch = matchMedia("(pointer: coarse)").matches;
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line};
  const positive = chart.metric.series.some(s => s.y.some(y => y > 0));
  const layout = {margin: {l: 52, r: 10, t: 8, b: 34}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: ink, size: 12, family: "system-ui, sans-serif"}, hovermode: "x unified", showlegend: false,
    hoverlabel: {bgcolor: color("--paper"), font: {color: color("--ink")}}, dragmode: touch ? false : "zoom",
    xaxis: {...axis, title: {text: "step", standoff: 4}, ...(curves.range ? {range: curves.range} : {})},
    yaxis: {...axis, type: curves.log && positive ? "log" : "linear", exponentformat: "power", automargin: true},
    ...marksOf(chart.metric)};
  const options = {responsive: true, displaylogo: false, displayModeBar: false};
  Plotly.react(chart.plot, tracesOf(chart.metric), layout, options);
  if (!chart.drawn) chart.plot.on("plotly_relayout", change => sameRange(chart, change));
  chart.drawn = true;
  chart.stale = false;
}

// A zoom along the steps holds for all charts. Those that follow tell of it too, later: what is known ends it there.
function sameRange(chart, change) {
  const range = change["xaxis.autorange"] ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  if ((range && range[0] === undefined) || String(range) === String(curves.range)) return;
  curves.range = range;
  const axis = range ? {"xaxis.range": range} : {"xaxis.autorange": true};
  for (const other of curves.charts) if (other !== chart && other.drawn) Plotly.relayout(other.plot, axis);
}

function redraw() {
  for (const chart of curves.charts) {
    if (!chart.drawn) continue;
    if (chart.box.offsetParent) draw(chart);
    else chart.stale = true;
  }
}

function chartBox(metric) {
  const plot = el("div", {class: "plot"});
  const named = [...new Set(metric.series.map(s => s.as))].filter(name => name !== metric.name);
  const meaning = el("p", {class: "meaning"}, metric.meaning || "not in the glossary of references/metrics.md");
  for (const [word, text] of [["Healthy", metric.healthy], ["Warning", metric.warning]]) {
    if (text) meaning.append(" ", el("b", {}, word + ": "), text);
  }
  const bad = metric.series.filter(s => s.bad.length)
    .map(s => `${curves.data.runs[s.run].name}: ${s.bad.length} not finite, first at step ${s.bad[0]}`);
  const many = metric.series.filter(s => s.of > s.x.length).map(s => `${s.of} steps, drawn with ${s.x.length} points`);
  const said = [...(named.length ? ["in the log: " + named.join(", ")] : []), ...bad, ...many].join(" · ");
  const box = el("figure", {class: "box chart"}, el("h4", {}, shown(metric.name)), plot, meaning,
    el("button", {type: "button", class: "more", onclick: () => meaning.classList.toggle("whole")}, "more"),
    said ? el("p", {class: "small soft text"}, shown(said)) : null);
  box.dataset.metric = metric.name;
  return {metric, box, plot, drawn: false};
}

function groupBox(group, first) {
  const charts = curves.data.metrics.filter(m => m.group === group).map(chartBox);
  curves.charts.push(...charts);
  const grid = el("div", {class: "charts"}, ...charts.map(chart => chart.box));
  const box = el("details", {open: first}, el("summary", {}, el("b", {}, group), ` (${charts.length})`), grid);
  for (const chart of charts) whenNear(chart.box, () => draw(chart));
  box.addEventListener("toggle", () => charts.filter(chart => chart.stale).forEach(draw));
  return box;
}

function runChoice(run, i) {
  const box = el("input", {type: "checkbox", checked: true, onchange: event => {
    event.target.checked ? curves.hidden.delete(i) : curves.hidden.add(i);
    redraw();
  }});
  return el("label", {}, box, runDot(i), shown(run.name));
}

function controls() {
  const runs = curves.data.runs, several = new Set(runs.map(run => run.setting)).size < runs.length;
  const check = (text, key) => el("label", {}, el("input", {type: "checkbox", id: "curves-" + key, checked: curves[key],
    onchange: event => { curves[key] = event.target.checked; redraw(); }}), text);
  const smooth = el("input", {type: "range", id: "curves-smooth", min: "0", max: "0.98", step: "0.02", value: "0",
    oninput: event => { curves.smooth = Number(event.target.value); redraw(); }});
  return el("div", {class: "controls"}, el("label", {}, "smoothing", smooth),
    check("log scale", "log"), several ? check("seeds of a setting as a band", "bands") : null,
    ...(runs.length > 1 ? runs.map(runChoice) : []),
    el("span", {class: "small soft"},
      "drag to zoom, double-click to reset; ticks below: checkpoints, above: evaluations"));
}

async function startCurves() {
  const place = byId("plots");
  if (!place) return;
  curves.data = await unpack("curve-data");
  const library = el("script", {});
  library.nonce = pageNonce;
  library.textContent = await unpackText("plot-library");
  document.head.append(library);
  const groups = curves.data.groups.map((group, i) => groupBox(group, i === 0));
  place.append(controls(), ...groups);
  place.style.minHeight = 0; // which kept the place of the charts
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
