// The page: elements, text shown as text, unpacking; starts curves and samples.
const pageNonce = document.currentScript.nonce;
const byId = id => document.getElementById(id);

// An element; strings become text, never markup.
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && typeof value !== "string") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

// Control and format characters, line separators and lone surrogates are shown by their number.
const ODD = /(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const LONG = 20000; // characters that are laid out at once

function shown(text, length = LONG) {
  const part = document.createDocumentFragment(), whole = String(text);
  let start = 0;
  const visible = whole.length > length ? whole.slice(0, length) : whole;
  for (const match of visible.matchAll(ODD)) {
    part.append(visible.slice(start, match.index));
    const number = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    part.append(el("span", {class: "odd", title: "an invisible character"}, "U+" + number));
    start = match.index + match[0].length;
  }
  part.append(visible.slice(start));
  if (whole.length > visible.length) {
    const more = el("button", {type: "button", class: "more"},
      ` … ${(whole.length - length).toLocaleString("en")} more characters`);
    more.addEventListener("click", () => more.replaceWith(shown(whole.slice(length), Infinity)));
    part.append(more);
  }
  return part;
}

const plain = text => typeof text === "string" ? text : text === null || text === undefined ? "" : JSON.stringify(text);

// What a prompt says last, for one line of a table.
function lastOf(prompt) {
  if (!Array.isArray(prompt)) return plain(prompt);
  const last = prompt[prompt.length - 1];
  return last && typeof last === "object" ? plain(last.content) : plain(last);
}

const figure = value => value === null || value === undefined ? "" :
  Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));

async function unpackText(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
const unpack = async id => JSON.parse(await unpackText(id));

// A colour of the style sheet as rgb(…) in the theme that is shown.
function color(name) {
  const probe = document.body.appendChild(el("i", {style: `color: var(${name})`}));
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
const runColor = i => color("--run" + i % 8);
// A dot in a run's colour.
const runDot = i => el("i", {class: "dot", style: `background: var(--run${i % 8})`});

for (const [start, id] of [[startCurves, "plots"], [startSamples, "browser"]]) {
  start().catch(error => {
    byId(id).replaceChildren(el("p", {class: "soft"}, "This browser cannot show it: " + error.message));
    console.error(error);
  });
}
