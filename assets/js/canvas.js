// What both maps share: a canvas as wide as its panel that draws the columns scrolled to, in one
// animation frame and only when something has changed; a mark, a hover text and a click.

const PLOT = {left: 26, right: 4, top: 5, bottom: 24, narrow: 3, wide: 16, widest: 40};
const maps = {};
const ink = {version: 0, colours: {}};
let asked = 0;

function mountMap(name, drawing) {
  const canvas = make("canvas", {role: "img", class: "map"});
  const strip = make("div", {class: "map-strip"}, canvas);
  const scroll = make("div", {class: "map-scroll"}, strip);
  const tip = make("div", {class: "map-tip", "aria-hidden": "true", hidden: ""});
  const legend = make("div", {class: "map-legend"});
  const caption = make("p", {class: "quiet map-caption"});
  panels[name].body.classList.add("map-body");
  panels[name].body.replaceChildren(scroll, tip, legend, caption);
  const map = {name, canvas, strip, scroll, tip, legend, caption, ...drawing, drawn: "", plot: null};
  maps[name] = map;
  scroll.addEventListener("scroll", requestMaps, {passive: true});
  canvas.addEventListener("pointermove", (event) => showTip(map, event));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => chooseColumn(map, event));
}

function requestMaps() {
  if (asked || !maps.kv) return;
  asked = requestAnimationFrame(() => {
    asked = 0;
    const start = performance.now();
    for (const map of Object.values(maps)) drawMap(map);
    maps.kv.canvas.dataset.milliseconds = Math.round(performance.now() - start);
  });
}

function mapLane() {
  const place = shownPlace();
  return place ? place.lane : "upper";
}

function drawMap(map) {
  const {width, height} = panels[map.name];
  const lane = mapLane();
  const columns = map.columns(lane);
  if (!width || !page.view) return;
  followSelection(map, lane, columns, width);
  const marks = [shownPlace(), ...besidePlaces()].filter((p) => p && p.lane === lane);
  const left = map.scroll.scrollLeft;
  const key = [page.run, page.view.phase, lane, columns, page.updates[lane].length, width, height, left,
    ink.version, marks.map((p) => p.index)].join();
  if (map.drawn === key) return;
  map.drawn = key;
  map.plot = plotOf({lane, columns, width, height, left, layers: page.view.layers || 1, marks});
  prepare(map);
  map.draw(map.canvas.getContext("2d"), map.plot);
}

// Columns share the width; below the narrowest the map scrolls instead.
function columnWidth(columns, width) {
  const room = (width - PLOT.left - PLOT.right) / Math.max(1, columns);
  return Math.min(enlarged.name ? PLOT.widest : PLOT.wide, Math.max(PLOT.narrow, room));
}

function plotOf(plot) {
  const step = columnWidth(plot.columns, plot.width);
  const row = (plot.height - PLOT.top - PLOT.bottom) / plot.layers;
  const seen = (plot.width - PLOT.left) / step;
  return {
    ...plot, step, row,
    gap: step >= 6 ? 1 : 0,
    first: Math.max(0, Math.floor(plot.left / step)),
    last: Math.min(plot.columns, Math.ceil(plot.left / step + seen)),
    x: (column) => Math.round(PLOT.left + column * step - plot.left),
    y: (layer) => Math.round(plot.height - PLOT.bottom - layer * row), // upper edge
  };
}

function prepare({canvas, strip, scroll, plot}) {
  const total = Math.ceil(PLOT.left + PLOT.right + plot.columns * plot.step);
  strip.style.width = `${Math.max(plot.width, total)}px`;
  if (total > plot.width + 1) {
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", say("map.scroll"));
  } else for (const name of ["tabindex", "role", "aria-label"]) scroll.removeAttribute(name);
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(plot.width * ratio), Math.round(plot.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) {
    Object.assign(canvas, {width, height});
    canvas.style.width = `${plot.width}px`;
    canvas.style.height = `${plot.height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, plot.width, plot.height);
}

// A selection made elsewhere comes into view, and so does the newest token while nothing is
// selected; what the reader scrolled to stays until then.
function followSelection(map, lane, columns, width) {
  const place = shownPlace();
  const column = place ? map.columnOf(place) : columns - 1;
  const key = [page.run, lane, column, width].join();
  if (map.followed === key || column < 0) return;
  map.followed = key;
  const step = columnWidth(columns, width);
  const room = width - PLOT.left - PLOT.right;
  if (step * columns <= room + 1) return;
  map.strip.style.width = `${Math.ceil(PLOT.left + PLOT.right + columns * step)}px`;
  const [x, left] = [column * step, map.scroll.scrollLeft];
  if (x < left || x + step > left + room) map.scroll.scrollLeft = Math.max(0, x - room / 2);
}

// Inside the axes only: columns that are partly scrolled away are cut there.
function inside(pen, plot, drawing) {
  pen.save();
  pen.beginPath();
  pen.rect(PLOT.left, 0, plot.width - PLOT.left, plot.height);
  pen.clip();
  drawing();
  pen.restore();
}

function layerAxis(pen, plot) {
  pen.fillStyle = ink.colours.quiet;
  pen.font = `11px ${ink.colours.font}`;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const layer of layerTicks(plot.layers)) {
    pen.fillText(layer, PLOT.left - 5, (plot.y(layer) + plot.y(layer - 1)) / 2 + 0.5);
  }
}

// Numbers below the columns; `number` is the first column's.
function columnAxis(pen, plot, number, from = 0) {
  const wanted = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * plot.step >= 36) || 1000;
  pen.fillStyle = ink.colours.quiet;
  pen.font = `11px ${ink.colours.font}`;
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  for (let i = Math.max(from, plot.first); i < plot.last; i++) {
    const shown = i + number;
    if (shown % wanted && !(shown === number && number === 1)) continue;
    if (shown === wanted && wanted < 3 && number === 1 && plot.step * wanted < 36) continue;
    pen.fillText(shown, plot.x(i) + plot.step / 2, plot.height - 4);
  }
}

// A frame around a column, with a rim that stands out on every fill, and a pointer below it.
function markColumn(pen, plot, column, dashed) {
  const [x, top, bottom] = [plot.x(column), plot.y(plot.layers), plot.y(0)];
  const width = Math.max(3, plot.x(column + 1) - x - plot.gap);
  pen.setLineDash(dashed ? [4, 3] : []);
  for (const [line, colour] of [[4, ink.colours.panel], [2, ink.colours.ink]]) {
    pen.lineWidth = line;
    pen.strokeStyle = colour;
    pen.strokeRect(x - 1, top - 1, width + 2, bottom - top + 2);
  }
  pen.setLineDash([]);
  if (dashed) return;
  const middle = x + width / 2;
  pen.fillStyle = ink.colours.ink;
  pen.beginPath();
  pen.moveTo(middle, bottom + 3);
  pen.lineTo(middle - 4, bottom + 9);
  pen.lineTo(middle + 4, bottom + 9);
  pen.fill();
}

function cellUnder({canvas, plot}, event) {
  if (!plot) return null;
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const column = Math.floor((x - PLOT.left + plot.left) / plot.step);
  const layer = Math.floor((plot.height - PLOT.bottom - y) / plot.row) + 1;
  const within = x >= PLOT.left && column < plot.columns && layer >= 1 && layer <= plot.layers;
  return within ? {column, layer, x, y} : null;
}

function showTip(map, event) {
  const cell = cellUnder(map, event);
  map.tip.hidden = !cell;
  if (!cell) return;
  put(map.tip, map.describe(map.plot.lane, cell.column, cell.layer));
  const right = cell.x > map.plot.width / 2;
  map.tip.style.left = right ? "" : `${cell.x + 14}px`;
  map.tip.style.right = right ? `${map.plot.width - cell.x + 10}px` : "";
  map.tip.style.top = `${Math.max(0, cell.y - 34)}px`;
}

function chooseColumn(map, event) {
  const cell = cellUnder(map, event);
  const index = cell ? map.indexOf(map.plot.lane, cell.column) : -1;
  const place = {lane: map.plot && map.plot.lane, index};
  if (index < 0 || !cellAt(place)) return;
  moveTabStop(place);
  select(place);
}

// Colours are read when the theme changes, not at each drawing.
function watchTheme() {
  const read = () => {
    const style = getComputedStyle(panels.heat.body);
    const names = ["ink", "quiet", "panel", "frame", "mark", "kv-b", "kv-r", "heat-low", "heat-mid",
      "heat-high"];
    ink.colours = Object.fromEntries(names.map((name) => [name,
      style.getPropertyValue(`--${name}`).trim()]));
    ink.colours.font = style.fontFamily;
    ink.patterns = {};
    ink.version++;
    requestMaps();
    requestStrips();
    recolourCharts();
  };
  const changes = new MutationObserver(read);
  for (const node of [document.documentElement, document.body]) {
    changes.observe(node, {attributes: true, attributeFilter: ["class"]});
  }
  matchMedia("(forced-colors: active)").addEventListener("change", read);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", read);
  read();
}

// A tile of `size` pixels as a fill that repeats.
function texture(pen, name, size, drawing) {
  if (ink.patterns[name]) return ink.patterns[name];
  const ratio = window.devicePixelRatio || 1;
  const tile = make("canvas");
  tile.width = tile.height = Math.round(size * ratio);
  const brush = tile.getContext("2d");
  brush.scale(tile.width / size, tile.width / size);
  drawing(brush);
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(size / tile.width));
  ink.patterns[name] = pattern;
  return pattern;
}

function strokes(brush, path, colour, width) {
  brush.strokeStyle = colour;
  brush.lineWidth = width;
  brush.stroke(new Path2D(path));
}
