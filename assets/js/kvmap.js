// Who wrote each slot of the cache, by position, at the moment the selected token was chosen. What
// was written after that is faint.

const FAINT = 0.22;
const SOURCES = "brpdmn";

const kvMap = {
  columns: rowCount,
  columnOf: ({lane, index}) => promptLength(lane) + index - 1,
  indexOf: (lane, column) => Math.max(-1, column - promptLength(lane) + 1),
  describe: describeSlot,
  draw: drawSlots,
};

// Token index of the moment on show, and the number of positions written by then.
function momentOf(plot) {
  const last = page.tokens[plot.lane].length - 1;
  const moment = plot.marks[0] ? plot.marks[0].index : Math.max(0, last);
  return {moment, written: Math.min(plot.columns, promptLength(plot.lane) + moment)};
}

function drawSlots(pen, plot) {
  const {moment, written} = momentOf(plot);
  inside(pen, plot, () => {
    for (let i = plot.first; i < plot.last; i++) {
      const later = i >= written;
      pen.globalAlpha = later ? FAINT : 1;
      slotColumn(pen, plot, i, rowAt(plot.lane, i, later ? Infinity : moment));
    }
    pen.globalAlpha = 1;
    promptEdge(pen, plot);
    plot.marks.slice().reverse().forEach((place) =>
      markColumn(pen, plot, kvMap.columnOf(place), place !== plot.marks[0]));
  });
  layerAxis(pen, plot);
  inside(pen, plot, () => columnAxis(pen, plot, 0, promptLength(plot.lane)));
  nameSlots(plot, moment, written);
}

function slotColumn(pen, plot, column, row) {
  const x = plot.x(column);
  const width = plot.x(column + 1) - x - plot.gap;
  for (const [letter, first, last] of spans(row)) {
    const [top, bottom] = [plot.y(last), plot.y(first - 1)];
    pen.fillStyle = slotFill(pen, letter);
    pen.fillRect(x, top, width, bottom - top);
    if (letter !== "b" && letter !== "r") frame(pen, {x, top, width, bottom});
    if (letter === "m") crosses(pen, plot, {x, width, first, last});
  }
}

function slotFill(pen, letter) {
  const {frame: line, "kv-r": river} = ink.colours;
  const tiles = {
    r: (brush) => {
      brush.fillStyle = river;
      brush.fillRect(0, 0, 6, 6);
      strokes(brush, "M-1 7 L7 -1 M-1 1 L1 -1 M5 7 L7 5", "rgb(255 255 255 / 0.75)", 1.1);
    },
    p: (brush) => {
      brush.fillStyle = line;
      for (const [x, y] of [[0, 0], [2, 2]]) brush.fillRect(x, y, 1.4, 1.4);
    },
    d: (brush) => strokes(brush, "M1 0 V3", line, 1),
  };
  if (letter === "b") return ink.colours["kv-b"];
  if (!tiles[letter]) return "transparent";
  return texture(pen, letter, letter === "r" ? 6 : letter === "p" ? 4 : 3, tiles[letter]);
}

function frame(pen, {x, top, width, bottom}) {
  pen.strokeStyle = ink.colours.frame;
  pen.lineWidth = 0.5;
  pen.strokeRect(x + 0.5, top + 0.5, width - 1, bottom - top - 1);
}

function crosses(pen, plot, {x, width, first, last}) {
  pen.strokeStyle = ink.colours.frame;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let layer = first; layer <= last; layer++) {
    const [top, bottom] = [plot.y(layer), plot.y(layer - 1)];
    pen.moveTo(x, top);
    pen.lineTo(x + width, bottom);
    pen.moveTo(x + width, top);
    pen.lineTo(x, bottom);
  }
  pen.stroke();
}

function promptEdge(pen, plot) {
  const end = plot.x(promptLength(plot.lane));
  const bottom = plot.y(0);
  pen.strokeStyle = ink.colours.quiet;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(plot.x(0), bottom + 5.5);
  pen.lineTo(end - 2, bottom + 5.5);
  pen.stroke();
  pen.fillStyle = ink.colours.quiet;
  pen.font = `11px ${ink.colours.font}`;
  pen.textBaseline = "alphabetic";
  const word = say("kv.prompt");
  if (pen.measureText(word).width > end - plot.x(0)) return;
  pen.textAlign = "left";
  pen.fillText(word, Math.max(plot.x(0), PLOT.left), plot.height - 4);
}

// The token that stands at a position, for people.
function standing(lane, position) {
  const index = position - promptLength(lane);
  if (index >= 0) return named(page.tokens[lane][index]);
  const [text, , gap] = page.view.lanes.upper.prompt[position] || [""];
  return (gap ? "·" : "") + text;
}

function describeSlot(lane, position, layer) {
  const {moment, written} = momentOf(maps.kv.plot);
  const row = rowAt(lane, position, position < written ? moment : Infinity);
  const values = {position, layer, token: standing(lane, position),
    source: say(`source.${row[layer - 1]}.name`)};
  return say(position < written ? "kv.tip" : "kv.tip_later", values);
}

function nameSlots(plot, moment, written) {
  const map = maps.kv;
  const counts = sourceCounts(plot.lane, written, moment);
  const present = [...SOURCES].filter((letter) => counts[letter]);
  const lane = laneTitle(plot.lane);
  const counted = present.map((letter) =>
    say("kv.count", {name: say(`source.${letter}.name`), count: counts[letter]}));
  const token = page.tokens[plot.lane][moment];
  const sentence = token
    ? say("kv.caption", {number: moment + 1, token: named(token), positions: written})
    : say("kv.caption_empty");
  const summary = say("kv.summary", {lane, layers: plot.layers});
  map.canvas.setAttribute("aria-label", listed([summary, sentence, listed(counted)], "sentence"));
  put(panels.kv.note, lane);
  put(map.caption, sentence);
  once(map.legend, counted, () => present.map((letter, i) => make("span", {class: "map-key"},
    draw("svg", {width: 22, height: 14, "aria-hidden": "true", class: "key"}, ...slotKey(letter)),
    make("span", {class: "kv-count", "data-source": letter}, counted[i]))));
}
