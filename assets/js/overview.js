// Above a long answer, one strip per lane: every token as a bar in the colour and the height of its
// exit layer, with what is in view, what is selected and the first difference. A click goes there.

const STRIP = {above: 150, widest: 8, marks: [6, 6, 4], heights: [14, 10, 6]}; // tokens, then pixels
const NARROW = 560; // pixels
const LOW = 0.4; // height of a bar for no layer, of one for all
const strips = {box: null, width: 0, asked: 0, height: 0, upper: null, lower: null};

function overview() {
  strips.box = make("div", {class: "overview", hidden: ""}, ...LANES.map(strip));
  new ResizeObserver(([{contentRect: {width}}]) => {
    if (strips.width === Math.floor(width)) return;
    strips.width = Math.floor(width);
    requestStrips();
  }).observe(strips.box);
  document.addEventListener("scroll", requestStrips, {passive: true, capture: true});
  addEventListener("resize", requestStrips);
  onSelection(requestStrips);
  followCalmly(requestStrips);
  return strips.box;
}

function strip(lane) {
  const canvas = make("canvas", {class: "strip", "aria-hidden": "true", title: say("long.jump")});
  const summary = make("p", {class: "quiet strip-summary"});
  strips[lane] = {canvas, summary, picture: make("canvas"), drawn: ""};
  const go = (event) => goTo(lane, event);
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    go(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) go(event);
  });
  return make("div", {class: `strip-box strip-${lane}`}, summary, canvas);
}

function requestStrips() {
  if (strips.asked || !strips.box || !page.view) return;
  strips.asked = requestAnimationFrame(() => {
    strips.asked = 0;
    drawStrips();
  });
}

function drawStrips() {
  const longest = Math.max(...LANES.map((lane) => page.tokens[lane].length));
  strips.box.hidden = longest <= STRIP.above;
  reading.grid.classList.toggle("many", longest > STRIP.above);
  if (strips.box.hidden || !strips.width || !ink.version) return;
  const {bottom: top, height} = strips.box.getBoundingClientRect();
  if (strips.height !== height) reading.grid.style.setProperty("--strips", `${height + 12}px`);
  strips.height = height;
  const seen = LANES.map((lane) => tokensInView(lane, top));
  const plan = stripPlan(longest);
  LANES.forEach((lane, i) => drawStrip(lane, plan, seen[i]));
}

// A token is at least one pixel wide: a strip that is too short for all continues below itself.
// Both lanes have the same scale.
function stripPlan(count) {
  const lines = Math.ceil(count / strips.width);
  const perLine = Math.ceil(count / lines);
  const [high, marks] = [STRIP.heights, STRIP.marks].map((sizes) => sizes[Math.min(lines, 3) - 1]);
  const step = Math.min(STRIP.widest, strips.width / perLine);
  return {
    perLine, high, lines, pitch: high + marks,
    x: (index) => Math.round((index % perLine) * step),
    line: (index) => Math.floor(index / perLine),
    at: (x, line) => line * perLine + Math.min(perLine - 1, Math.max(0, Math.floor(x / step))),
    step,
  };
}

function drawStrip(lane, plan, seen) {
  const {canvas, picture, summary} = strips[lane];
  const count = page.tokens[lane].length;
  canvas.parentElement.hidden = count === 0;
  if (!count) return;
  const height = plan.pitch * (plan.line(count - 1) + 1) + 2;
  const key = [page.run, count, strips.width, plan.perLine, ink.version, estimate.threshold,
    ...shownEntries].join();
  if (strips[lane].drawn !== key) {
    strips[lane].drawn = key;
    for (const one of [canvas, picture]) sizeStrip(one, height);
    drawTokens(picture.getContext("2d"), lane, plan);
  }
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, strips.width, height);
  pen.drawImage(picture, 0, 0, strips.width, height);
  drawMarks(pen, lane, plan, seen);
  put(summary, stripSentence(lane, count, seen));
}

function sizeStrip(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(strips.width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
}

function drawTokens(pen, lane, plan) {
  const {legend, layers} = page.view;
  const style = getComputedStyle(strips.box);
  const fills = legend.map(({fill}) => style.getPropertyValue(`--fill-${fill}`).trim());
  for (let index = 0; index < page.tokens[lane].length; index++) {
    const exit = shownExit(lane, index);
    const entry = entryOf(exit);
    const [x, high] = [plan.x(index), Math.round(plan.high * (LOW + ((1 - LOW) * exit) / layers))];
    pen.globalAlpha = isFaded(entry) ? FAINT : 1;
    pen.fillStyle = fills[entry];
    pen.fillRect(x, bottomOf(plan, index) - high, Math.round(plan.step * ((index % plan.perLine) + 1)) - x,
      high);
  }
}

function bottomOf(plan, index) {
  return (plan.line(index) + 1) * plan.pitch;
}

function drawMarks(pen, lane, plan, seen) {
  if (seen) frameTokens(pen, plan, seen);
  const {difference} = page.view;
  if (difference in page.tokens[lane]) {
    pen.fillStyle = ink.colours.mark;
    const [x, y] = [plan.x(difference) + plan.step / 2, bottomOf(plan, difference) - plan.high];
    pen.fill(new Path2D(`M${x - 4} ${y - 6}h8l-4 6z`));
  }
  for (const place of [chosen.selected, ...chosen.pins]) {
    if (place && place.lane === lane) markToken(pen, plan, place.index);
  }
}

// What is in view, line by line of the strip.
function frameTokens(pen, plan, [first, end]) {
  pen.strokeStyle = ink.colours.ink;
  pen.lineWidth = 1.5;
  for (let line = plan.line(first); line <= plan.line(end - 1); line++) {
    const from = Math.max(first, line * plan.perLine);
    const last = Math.min(end, (line + 1) * plan.perLine) - 1;
    const x = plan.x(from);
    pen.strokeRect(x + 0.75, bottomOf(plan, from) - plan.high - 1,
      Math.max(3, plan.x(last) + plan.step - x - 1.5), plan.high + 1.75);
  }
}

function markToken(pen, plan, index) {
  const [x, y] = [plan.x(index) + plan.step / 2, bottomOf(plan, index)];
  const top = y - plan.high - 4;
  pen.fillStyle = ink.colours.panel;
  pen.fillRect(x - 2.5, top, 5, y - top + 1);
  pen.fillStyle = ink.colours.mark;
  pen.fillRect(x - 1.5, top, 3, y - top + 1);
}

function stripSentence(lane, count, seen) {
  const words = {lane: laneTitle(lane), count};
  const parts = [seen
    ? say("long.in_view", {...words, first: seen[0] + 1, last: seen[1]})
    : say("long.none_in_view", words)];
  const {selected} = chosen;
  if (selected && selected.lane === lane) {
    parts.push(say("long.selected", {number: selected.index + 1}));
  }
  if (page.view.difference in page.tokens[lane] && strips.width > NARROW) {
    parts.push(say("long.difference", {number: page.view.difference + 1}));
  }
  return parts.join(" · ");
}

function goTo(lane, event) {
  const count = page.tokens[lane].length;
  const plan = stripPlan(Math.max(...LANES.map((name) => page.tokens[name].length)));
  const box = strips[lane].canvas.getBoundingClientRect();
  const line = Math.min(plan.lines - 1, Math.max(0, Math.floor((event.clientY - box.top) / plan.pitch)));
  const index = Math.min(count - 1, plan.at(event.clientX - box.left, line));
  if (same(chosen.selected, {lane, index})) return;
  const cell = cellAt({lane, index});
  cell.scrollIntoView({block: "center", inline: "center"});
  cell.focus({preventScroll: true});
}
