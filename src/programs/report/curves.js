// The curves, which plotly draws when their group is open.
const curves = {data: null, hidden: new Set(), smooth: 0, log: false, groups: []};

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

function tracesOf(metric) {
  const traces = [];
  for (const s of metric.series.filter(s => !curves.hidden.has(s.run))) {
    if (curves.smooth) traces.push(lineOf(s.x, s.y, s.run, {hoverinfo: "skip", opacity: .25}));
    const name = safeName(curves.data.runs[s.run].name);
    traces.push(lineOf(s.x, smoothed(s.y, curves.smooth), s.run, {name}));
  }
  return traces;
}

// Dashed lines where the findings are.
function marksOf(metric) {
  const shapes = [], annotations = [], red = color("--bad");
  for (const s of metric.series.filter(s => !curves.hidden.has(s.run))) {
    for (const f of curves.data.runs[s.run].findings.filter(f => f.metric === metric.name || f.metric === s.as)) {
      shapes.push({type: "line", xref: "x", yref: "paper", x0: f.step, x1: f.step, y0: 0, y1: 1,
        line: {color: red, width: 1.5, dash: "dash"}});
      annotations.push({x: f.step, y: 1, yref: "paper", yanchor: "top", xanchor: "left", text: f.id, showarrow: false,
        font: {size: 11, color: red}});
    }
  }
  return {shapes, annotations};
}

function draw({metric, plot}) {
  const line = color("--line"), touch = matchMedia("(pointer: coarse)").matches;
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line};
  const positive = metric.series.some(s => s.y.some(y => y > 0));
  const layout = {margin: {l: 52, r: 10, t: 8, b: 34}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: color("--soft"), size: 12, family: "system-ui, sans-serif"}, hovermode: "x unified",
    showlegend: false, dragmode: touch ? false : "zoom", uirevision: "same",
    hoverlabel: {bgcolor: color("--paper"), font: {color: color("--ink")}},
    xaxis: {...axis, title: {text: "step", standoff: 4}},
    yaxis: {...axis, type: curves.log && positive ? "log" : "linear", exponentformat: "power", automargin: true},
    ...marksOf(metric)};
  Plotly.react(plot, tracesOf(metric), layout, {responsive: true, displaylogo: false, displayModeBar: false});
}

function redraw() {
  for (const {box, charts} of curves.groups) if (box.open) charts.forEach(draw);
}

function chartBox(metric) {
  const plot = el("div", {class: "plot"});
  const meaning = el("p", {class: "small soft"}, metric.meaning || "not in the glossary of references/metrics.md");
  for (const [word, text] of [["Healthy", metric.healthy], ["Warning", metric.warning]]) {
    if (text) meaning.append(" ", el("b", {}, word + ": "), text);
  }
  const named = [...new Set(metric.series.map(s => s.as))].filter(name => name !== metric.name);
  const bad = metric.series.filter(s => s.bad.length)
    .map(s => `${curves.data.runs[s.run].name}: ${s.bad.length} not finite, first at step ${s.bad[0]}`);
  const many = metric.series.filter(s => s.of > s.x.length).map(s => `${s.of} steps, drawn with ${s.x.length} points`);
  const notes = [...(named.length ? ["in the log: " + named.join(", ")] : []), ...bad, ...many].join(" · ");
  const box = el("figure", {class: "box chart", "data-metric": metric.name}, el("h4", {}, shown(metric.name)), plot,
    meaning, notes ? el("p", {class: "small soft text"}, shown(notes)) : null);
  return {metric, box, plot};
}

function groupBox(name, first) {
  const charts = curves.data.metrics.filter(m => m.group === name).map(chartBox);
  const box = el("details", {open: first, ontoggle: () => { if (box.open) charts.forEach(draw); }},
    el("summary", {}, el("b", {}, name), ` (${charts.length})`),
    el("div", {class: "charts"}, ...charts.map(chart => chart.box)));
  curves.groups.push({box, charts});
  return box;
}

function checkbox(checked, change, ...label) {
  return el("label", {}, el("input", {type: "checkbox", checked, onchange: event => {
    change(event.target.checked);
    redraw();
  }}), ...label);
}

function controls() {
  const {runs} = curves.data;
  const smooth = el("input", {type: "range", id: "curves-smooth", min: "0", max: "0.98", step: "0.02", value: "0",
    oninput: event => { curves.smooth = Number(event.target.value); redraw(); }});
  return el("div", {class: "controls"}, el("label", {}, "smoothing", smooth),
    checkbox(false, on => { curves.log = on; }, "log scale"),
    ...(runs.length > 1 ? runs.map((run, i) => checkbox(true, on => curves.hidden[on ? "delete" : "add"](i), runDot(i),
      shown(run.name))) : []),
    el("span", {class: "small soft"}, "drag to zoom, double-click to reset"));
}

async function startCurves() {
  const place = byId("plots");
  if (!place) return;
  curves.data = await unpack("curve-data");
  const library = el("script", {});
  library.nonce = pageNonce;
  library.textContent = await unpackText("plot-library");
  document.head.append(library);
  place.append(controls(), ...curves.data.groups.map((group, i) => groupBox(group, i === 0)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
