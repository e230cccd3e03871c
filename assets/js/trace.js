// One token's similarity, layer by layer, against the threshold; up to three others beside it.

const HEIGHT = 216;
const BESIDE = ["dashed", "dotted", "dashdotted"];
const LETTER = 7.2; // width of a letter of a mark, at most
const EDGE = {left: 36, right: 12, top: 22, bottom: 34};

function traceOf(token, beside, lane, {width, height}) {
  const values = similarities(token);
  const frame = scales(token, values, lane, {width, height});
  const svg = draw("svg", {
    width, height, role: "img", class: "trace",
    "aria-label": say("trace.aria", {values: listed(values.map((v) => v.toFixed(3)))}),
  }, ...axes(frame));
  if (frame.threshold !== null) svg.append(...thresholdLine(frame), ...tail(token, frame));
  beside.forEach((other, i) => {
    svg.append(line(similarities(other), frame, `trace-beside trace-${BESIDE[i]}`));
  });
  svg.append(line(values, frame, "trace-line"), ...dots(values, frame));
  svg.append(...verdict(token, values, frame));
  const below = belowAxis(values, frame);
  const others = beside.map((other, i) => say(`trace.${BESIDE[i]}`, {token: named(other)}));
  const notes = [below, ...others].filter(Boolean).join(" · ");
  return notes ? [svg, make("p", {class: "quiet"}, notes)] : [svg];
}

// The axis ends below the second smallest value: a first layer that changes everything would
// otherwise press the rest together.
function scales(token, values, lane, {width, height}) {
  const threshold = page.view.lanes[lane].exits ? token.threshold : null;
  const sorted = [...values].sort((a, b) => a - b);
  const second = sorted[Math.min(1, sorted.length - 1)] ?? 0;
  const lowest = Math.min(second, (threshold ?? 1) - 0.1);
  const floor = Math.max(-1, Math.floor(lowest * 10 - 1e-9) / 10);
  const layers = page.view.layers;
  const span = {x: width - EDGE.left - EDGE.right, y: height - EDGE.top - EDGE.bottom};
  return {
    threshold, floor, layers, width, height,
    x: (layer) => EDGE.left + (span.x * (layer - 1)) / Math.max(1, layers - 1),
    y: (value) => EDGE.top + (span.y * (1 - Math.max(floor, value))) / (1 - floor),
  };
}

function axes(frame) {
  const parts = [];
  const step = frame.floor < 0.45 ? 0.2 : 0.1;
  for (let value = 1; value > frame.floor - 1e-9; value -= step) {
    const y = frame.y(value);
    parts.push(draw("path", {d: `M${EDGE.left} ${y}H${frame.width - EDGE.right}`, class: "grid"}));
    parts.push(label(EDGE.left - 6, y + 4, value.toFixed(1), "end"));
  }
  for (const layer of layerTicks(frame.layers)) {
    parts.push(label(frame.x(layer), frame.height - 18, layer, "middle"));
  }
  parts.push(label((EDGE.left + frame.width) / 2, frame.height - 3, say("trace.axis"), "middle"));
  return parts;
}

function layerTicks(layers) {
  const step = layers > 40 ? 10 : 5;
  const ticks = [1];
  for (let layer = step; layer < layers - step / 2; layer += step) ticks.push(layer);
  return layers > 1 ? [...ticks, layers] : ticks;
}

function label(x, y, text, anchor, kind = "tick") {
  return draw("text", {x, y, "text-anchor": anchor, class: kind}, text);
}

function thresholdLine(frame) {
  const y = frame.y(frame.threshold);
  const text = say("trace.threshold", {threshold: frame.threshold.toFixed(3)});
  return [
    draw("path", {d: `M${EDGE.left} ${y}H${frame.width - EDGE.right}`, class: "trace-threshold"}),
    label(EDGE.left + 4, EDGE.top - 8, text, "start", "mark"),
  ];
}

// Layers that ran in the river instead: shaded, to the right of the exit.
function tail(token, frame) {
  if (token.exit >= frame.layers) return [];
  const x = frame.x(Math.max(token.exit, 1));
  const [width, y] = [frame.x(frame.layers) - x, EDGE.top];
  const height = frame.height - EDGE.top - EDGE.bottom;
  return [draw("rect", {x, y, width, height, class: "trace-tail"})];
}

function line(values, frame, kind) {
  const points = values.map((v, i) => `${frame.x(i + 1).toFixed(1)},${frame.y(v).toFixed(1)}`);
  return draw("polyline", {points: points.join(" "), class: kind});
}

function dots(values, frame) {
  return values.map((v, i) => draw("circle", {
    cx: frame.x(i + 1), cy: frame.y(v), r: v < frame.floor ? 0 : 2.4, class: "trace-dot",
  }));
}

// Where it left, or that it never did.
function verdict(token, values, frame) {
  if (frame.threshold === null) return [mark(frame, say("trace.all"))];
  if (token.exit === frame.layers) return [mark(frame, neverText(frame))];
  if (!values.length) return [];
  const [x, y] = [frame.x(token.exit), frame.y(values[values.length - 1])];
  const text = say(token.forced ? "trace.forced" : "trace.left", {layer: token.exit});
  const right = x + 12 + LETTER * text.length > frame.width;
  return [
    draw("circle", {cx: x, cy: y, r: 6, class: "trace-exit"}),
    label(x + (right ? -10 : 10), y + 20, text, right ? "end" : "start", "mark"),
  ];
}

function neverText(frame) {
  const text = say("trace.never");
  return LETTER * text.length < frame.width - EDGE.left ? text : say("trace.never_short");
}

function mark(frame, text) {
  return label(frame.width - EDGE.right - 4, frame.height - EDGE.bottom - 8, text, "end", "mark");
}

function belowAxis(values, frame) {
  const layer = values.findIndex((v) => v < frame.floor - 1e-9) + 1;
  if (!layer) return "";
  return say("trace.below", {layer, value: values[layer - 1].toFixed(2).replace("-", "−")});
}
