// Building elements. Model text enters the page only through `textContent` here.

const SVG = "http://www.w3.org/2000/svg";
const ENGLISH = /[\u2068\u2069]/; // the marks around it, see spoken
const UNKNOWN = ""; // the language of what a model or a person wrote

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children) {
    node.append(...(typeof child === "object" ? [child] : spoken(String(child).split(ENGLISH))));
  }
  return node;
}

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function put(node, text) {
  const parts = String(text).split(ENGLISH);
  if (node.textContent !== parts.join("")) node.replaceChildren(...spoken(parts));
}

// A stretch between these marks is English on a page in another language (app/views/english.py).
function spoken(parts) {
  return parts.map((part, i) => (i % 2
    ? make("span", {lang: "en"}, part)
    : document.createTextNode(part)));
}

function say(key, values = {}) {
  const sentence = TEXT[key];
  if (sentence === undefined) throw new Error(`no text for ${key}`);
  return sentence.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

// Words one after the other, as the language separates them.
function listed(parts, how = "comma") {
  return parts.join(say(`list.${how}`));
}

// Fills and textures of the KV sources, once for all drawings.
function textures() {
  const stripes = (id, path, back) =>
    draw("pattern", {id, width: 6, height: 6, patternUnits: "userSpaceOnUse"},
      draw("rect", {width: 6, height: 6, class: back}),
      draw("path", {d: path, class: "kv-line"}));
  return draw("svg", {width: 0, height: 0, "aria-hidden": "true", class: "defs"},
    draw("defs", {},
      stripes("kv-r", "M-1 7 L7 -1 M-1 1 L1 -1 M5 7 L7 5", "kv-r-back"),
      stripes("kv-d", "M1.5 0 V6 M4.5 0 V6", "kv-empty"),
      stripes("kv-p", "M1.5 1.5 h.01 M4.5 4.5 h.01", "kv-empty kv-dots")));
}
