// The token river as a picture for paper: white, a fixed width, generic fonts, legend and captions.
// Elements are made as for the page, and the serialiser escapes what they hold.

const PAPER = {
  width: 720, edge: 20, size: 12.5, unit: 7.6, box: 24, row: 29, line: 16, letter: 6.3,
  frame: "#71717a", ink: "#1b1b1f", quiet: "#5b5b63", mark: "#b04a00",
};
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]|\p{Extended_Pictographic}/u;
const NOT_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g;

function riverSvg() {
  const paper = {y: PAPER.edge, nodes: []};
  const {prompt, label} = figureWords();
  const title = say("export.figure", {prompt});
  writeLines(paper, title, {"font-weight": 650, "font-size": 14});
  for (const lane of LANES) if (page.tokens[lane].length) drawLane(paper, lane);
  drawKey(paper);
  writeLines(paper, say("export.figure.caption", {layers: page.view.layers, label}),
    {fill: PAPER.quiet, "font-size": 11.5});
  const height = Math.ceil(paper.y + PAPER.edge / 2);
  const root = draw("svg", {
    width: PAPER.width, height, viewBox: `0 0 ${PAPER.width} ${height}`, role: "img",
    "font-family": "sans-serif", "font-size": 12, fill: PAPER.ink,
  }, draw("title", {}, clean(title)),
  draw("rect", {width: PAPER.width, height, fill: "#ffffff"}), ...paper.nodes);
  return {text: new XMLSerializer().serializeToString(root), height};
}

function figureWords() {
  const {recorded, card} = page.view;
  if (recorded) return {prompt: recorded.title, label: recorded.label};
  const [model, device] = (card || page.card).chips.map(([text]) => text);
  return {prompt: share.asked.prompt || "", label: say("export.figure.live", {model, device})};
}

function clean(text) {
  return text.replace(NOT_XML, "\ufffd");
}

function scaleColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Text in lines that fit, by the usual width of a letter; words that do not fit are cut.
function writeLines(paper, text, look) {
  const most = Math.floor((PAPER.width - 2 * PAPER.edge) / (PAPER.letter * (look["font-size"] / 12)));
  const words = clean(text).split(/\s+/).flatMap((word) =>
    graphemes(word).length > most ? piecesOf(word, most) : [word]);
  let line = "";
  for (const word of [...words, null]) {
    if (word !== null && line.length + word.length < most) {
      line += (line && " ") + word;
      continue;
    }
    paper.y += PAPER.line;
    paper.nodes.push(draw("text", {x: PAPER.edge, y: paper.y - 4, ...look}, line));
    line = word;
  }
  paper.y += 4;
}

function graphemes(text) {
  if (!window.Intl || !Intl.Segmenter) return [...text];
  return Array.from(new Intl.Segmenter().segment(text), ({segment}) => segment);
}

function unitsOf(grapheme) {
  return WIDE.test(grapheme) ? 2 : 1;
}

// A token that is longer than a row stands in several boxes.
function piecesOf(text, most) {
  const pieces = [];
  let [piece, units] = ["", 0];
  for (const grapheme of graphemes(text)) {
    if (piece && units + unitsOf(grapheme) > most) {
      pieces.push(piece);
      [piece, units] = ["", 0];
    }
    piece += grapheme;
    units += unitsOf(grapheme);
  }
  return [...pieces, piece];
}

function drawLane(paper, lane) {
  const {title, caption} = page.view.lanes[lane];
  paper.y += 8;
  writeLines(paper, title, {"font-weight": 650, "font-size": 12.5});
  paper.y -= 4;
  writeLines(paper, caption, {fill: PAPER.quiet, "font-size": 11.5});
  paper.y += 4;
  const most = Math.floor((PAPER.width - 2 * PAPER.edge - 10) / PAPER.unit);
  let x = PAPER.edge;
  page.tokens[lane].forEach((token, index) => {
    if (token.gap && x > PAPER.edge) x += 5;
    piecesOf(clean(token.text), most).forEach((piece, part) => {
      const units = graphemes(piece).reduce((sum, one) => sum + unitsOf(one), 0);
      const width = Math.max(20, units * PAPER.unit + 9);
      if (x + width > PAPER.width - PAPER.edge) [x, paper.y] = [PAPER.edge, paper.y + PAPER.row];
      paper.nodes.push(...drawBox(token, piece, {x, y: paper.y, width}));
      if (index === page.view.difference && !part) paper.nodes.push(...drawMark(x, paper.y));
      x += width + 2;
    });
    if (token.text.endsWith("↵")) [x, paper.y] = [PAPER.edge, paper.y + PAPER.row];
  });
  paper.y += x > PAPER.edge ? PAPER.row : 0;
}

function drawBox(token, text, {x, y, width}) {
  const entry = page.view.legend[token.entry];
  const [fill, ink] = [scaleColour(`--fill-${entry.fill}`), scaleColour(`--ink-${entry.fill}`)];
  const height = PAPER.box;
  const plain = /^[ -~]+$/.test(text);
  const nodes = [draw("rect", {x, y, width, height, rx: 3, fill, stroke: PAPER.frame})];
  if (entry.never) nodes.push(innerFrame({x, y, width, height}, ink));
  nodes.push(draw("text", {
    x: x + width / 2, y: y + 15, "text-anchor": "middle", fill: ink, "font-family": "monospace",
    "font-size": token.kind === "text" ? PAPER.size : PAPER.size - 2,
    ...(plain && text.length > 1 && token.kind === "text"
      ? {textLength: (text.length * PAPER.unit).toFixed(1), lengthAdjust: "spacingAndGlyphs"} : {}),
  }, text));
  const long = (width - 2) * (token.exit / page.view.layers);
  return [...nodes, draw("rect", {x: x + 1, y: y + height - 4, width: long, height: 3, fill: ink})];
}

function innerFrame({x, y, width, height}, stroke) {
  return draw("rect", {
    x: x + 2, y: y + 2, width: width - 4, height: height - 4, rx: 2, fill: "none", stroke,
    "stroke-width": 0.7,
  });
}

function drawMark(x, y) {
  return [
    draw("circle", {cx: x, cy: y, r: 6, fill: PAPER.mark}),
    draw("text", {x, y: y + 4, "text-anchor": "middle", "font-size": 10, fill: "#ffffff"}, "≠"),
  ];
}

// The legend: layer ranges with their counts in the lane above, as on the page.
function drawKey(paper) {
  paper.y += 6;
  let x = PAPER.edge;
  const entries = [[say("legend.title"), null], ...page.view.legend.map((entry) => [
    `${entry.text}: ${entry.count}`, entry])];
  if (page.view.difference !== null) entries.push([say("export.figure.different"), "mark"]);
  for (const [text, entry] of entries) {
    const width = text.length * PAPER.letter + (entry ? 24 : 0);
    if (x + width > PAPER.width - PAPER.edge) [x, paper.y] = [PAPER.edge, paper.y + 20];
    if (entry === "mark") paper.nodes.push(...drawMark(x + 7, paper.y + 7));
    else if (entry) paper.nodes.push(...swatch(entry, x, paper.y));
    paper.nodes.push(draw("text", {x: x + (entry ? 19 : 0), y: paper.y + 11, "font-size": 11.5},
      clean(text)));
    x += width + 10;
  }
  paper.y += 22;
}

function swatch(entry, x, y) {
  const box = {x, y, width: 14, height: 14};
  const fill = scaleColour(`--fill-${entry.fill}`);
  const square = draw("rect", {...box, rx: 2, fill, stroke: PAPER.frame});
  return entry.never ? [square, innerFrame(box, scaleColour(`--ink-${entry.fill}`))] : [square];
}

// The same picture as pixels, twice as many as units where the browser's canvas is large enough.
async function riverPng() {
  const {text, height} = riverSvg();
  const scale = Math.min(2, 16000 / height);
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await picture.decode();
  const canvas = make("canvas", {width: PAPER.width * scale, height: Math.ceil(height * scale)});
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
