// Building elements. Model text enters the page only through `textContent` here.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children) {
    node.append(typeof child === "object" ? child : document.createTextNode(String(child)));
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
  if (node.textContent !== text) node.textContent = text;
}

function say(key, values = {}) {
  const sentence = TEXT[key];
  if (sentence === undefined) throw new Error(`no text for ${key}`);
  return sentence.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
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
