// Layers x tokens: similarity after each layer a token ran, with the staircase of exits over it.

const SHADES = 48;
const TENTH = 1000; // codes per 0.1: similarity s is code 10000 (s + 1)
const ranges = {};

const heatMap = {
  columns: (lane) => page.tokens[lane].length,
  columnOf: (place) => place.index,
  indexOf: (lane, column) => column,
  describe: describeHeat,
  draw: drawHeat,
};

// Codes of a token's similarities, read once.
function codes(token) {
  if (!token.codes) {
    token.codes = Uint16Array.from({length: token.trace.length / 3}, (_, i) =>
      parseInt(token.trace.slice(3 * i, 3 * i + 3), BASE));
  }
  return token.codes;
}

// The colours span most of the values that this lane has, the lowest fifth apart: they may
// all lie between 0.9 and 1. Counted as tokens arrive, never anew.
function rangeOf(lane) {
  let known = ranges[lane];
  if (!known || known.tokens !== page.tokens[lane]) {
    known = ranges[lane] = {
      tokens: page.tokens[lane], read: 0, count: 0, numbers: new Uint32Array(20001),
    };
  }
  for (; known.read < known.tokens.length; known.read++) {
    for (const code of codes(known.tokens[known.read])) {
      known.numbers[code]++;
      known.count++;
    }
  }
  const low = quantile(known, 0.2);
  const high = quantile(known, 0.98);
  const step = high - low > TENTH / 2 ? 100 : 10; // hundredths, or thousandths where values are close
  const from = Math.floor(low / step) * step;
  return {low: from, high: Math.max(from + step, Math.ceil(high / step) * step), step};
}

function quantile({numbers, count}, share) {
  let left = share * count;
  for (let code = 0; code < numbers.length; code++) {
    left -= numbers[code];
    if (left <= 0 && count) return code;
  }
  return 20 * TENTH; // nothing counted: 1.0
}

function similarityText(code, step) {
  return (code / 10000 - 1).toFixed(step === 100 ? 2 : 3).replace("-", "−");
}

function drawHeat(pen, plot) {
  const tokens = page.tokens[plot.lane];
  const range = rangeOf(plot.lane);
  inside(pen, plot, () => {
    for (let i = plot.first; i < plot.last; i++) heatColumn(pen, plot, i, tokens[i], range);
    staircase(pen, plot, tokens);
    plot.marks.slice().reverse().forEach((place) =>
      markColumn(pen, plot, place.index, place !== plot.marks[0]));
  });
  layerAxis(pen, plot);
  inside(pen, plot, () => columnAxis(pen, plot, 1));
  nameHeat(plot, tokens, range);
}

function heatColumn(pen, plot, column, token, range) {
  const x = plot.x(column);
  const width = plot.x(column + 1) - x - plot.gap;
  const values = codes(token);
  const shades = ramp();
  values.forEach((code, i) => {
    const share = Math.min(1, Math.max(0, (code - range.low) / (range.high - range.low)));
    const y = plot.y(i + 1);
    pen.fillStyle = shades[Math.round(share * (SHADES - 1))];
    pen.fillRect(x, y, width, plot.y(i) - y - plot.gap);
  });
  const top = plot.y(plot.layers);
  pen.fillStyle = notRun(pen);
  pen.fillRect(x, top, width, plot.y(values.length) - top);
}

function notRun(pen) {
  return texture(pen, "none", 6, (brush) => {
    brush.globalAlpha = 0.45;
    strokes(brush, "M-1 7 L7 -1 M-1 1 L1 -1 M5 7 L7 5", ink.colours.frame, 0.8);
  });
}

// Three stops, mixed in sRGB; a later theme has its own.
function ramp() {
  if (ink.patterns.ramp) return ink.patterns.ramp;
  const stops = ["low", "mid", "high"].map((name) => {
    const hex = ink.colours[`heat-${name}`];
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  });
  ink.patterns.ramp = Array.from({length: SHADES}, (_, i) => {
    const at = (2 * i) / (SHADES - 1);
    const [from, to] = at < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
    const part = at < 1 ? at : at - 1;
    return `rgb(${from.map((v, k) => Math.round(v + part * (to[k] - v))).join()})`;
  });
  return ink.patterns.ramp;
}

// Along the upper edge of the last layer each token ran.
function staircase(pen, plot, tokens) {
  pen.strokeStyle = ink.colours.mark;
  pen.lineWidth = plot.step < 5 ? 1.5 : 2;
  pen.beginPath();
  for (let i = plot.first; i < plot.last; i++) {
    const y = plot.y(tokens[i].exit);
    if (i === plot.first) pen.moveTo(plot.x(i), y);
    else pen.lineTo(plot.x(i), y);
    pen.lineTo(plot.x(i + 1), y);
  }
  pen.stroke();
}

function describeHeat(lane, column, layer) {
  const token = page.tokens[lane][column];
  const values = {number: column + 1, token: named(token), layer, exit: token.exit};
  if (layer > token.exit) return say("heat.tip_not_run", values);
  const code = codes(token)[layer - 1];
  if (code === undefined) return say("heat.tip_unknown", values);
  return say("heat.tip", {...values, value: (code / 10000 - 1).toFixed(4).replace("-", "−")});
}

function nameHeat(plot, tokens, range) {
  const map = maps.heat;
  const [low, high] = [range.low, range.high].map((code) => similarityText(code, range.step));
  const lane = laneTitle(plot.lane);
  const mark = plot.marks[0];
  const parts = [say("heat.summary", {lane, tokens: tokens.length, layers: plot.layers, low, high})];
  if (mark) parts.push(say("heat.selected", {sentence: tokens[mark.index].label}));
  map.canvas.setAttribute("aria-label", listed(parts, "sentence"));
  put(panels.heat.note, lane);
  once(map.legend, [low, high], () => [
    make("span", {class: "map-key"}, say("heat.low", {low}),
      make("span", {class: "heat-ramp", "aria-hidden": "true"}), say("heat.high", {high})),
    make("span", {class: "map-key"}, make("span", {class: "heat-none", "aria-hidden": "true"}),
      say("heat.not_run")),
    make("span", {class: "map-key"}, make("span", {class: "heat-exit", "aria-hidden": "true"}),
      say("heat.exit")),
  ]);
  put(map.caption, say(page.view.lanes[plot.lane].exits ? "heat.caption" : "heat.caption_all"));
}
