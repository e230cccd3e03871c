// A lane's cells in chunks. The browser lays out and paints the chunks in view only (long.css); the
// script makes and repaints those at once and the others when nothing else is to be done.

const CHUNK = {least: 120, most: 150}; // tokens; between the two a line end is the better place
const AT_ONCE = 300; // cells made within one snapshot
const PER_FRAME = 2; // chunks repainted
const chunkOf = new WeakMap();
const idly = window.requestIdleCallback || ((work) => setTimeout(work, 30));
let later = false;

const sight = new IntersectionObserver((entries) => {
  for (const {target, isIntersecting} of entries) {
    chunkOf.get(target).near = isIntersecting;
  }
  finishSome();
}, {rootMargin: "25% 0px", scrollMargin: "25%"});

// Of a chunk only: its cells need not look again when it grows.
CSS.registerProperty({name: "--count", syntax: "<number>", inherits: false, initialValue: "1"});

// Puts every known token into a chunk, and makes the cells of as many as one task has time for.
function growLane(lane) {
  const {chunks, cells} = rows[lane];
  const tokens = page.tokens[lane];
  for (let i = cells.length; i < tokens.length; i++) {
    if (!chunks.length || isFull(chunks.at(-1), tokens)) startChunk(lane, i);
    chunks.at(-1).end = i + 1;
  }
  cells.length = tokens.length;
  let room = AT_ONCE;
  for (const chunk of chunks) {
    if (chunk.made === chunk.end) continue;
    chunk.element.style.setProperty("--count", chunk.end - chunk.first);
    room -= chunk.end - chunk.made;
    if (room >= 0) fillChunk(chunk);
  }
  finishLater();
}

function isFull({first, end}, tokens) {
  const size = end - first;
  return size >= CHUNK.most || (size >= CHUNK.least && tokens[end - 1].text.endsWith("↵"));
}

function startChunk(lane, first) {
  const element = make("div", {class: "chunk", role: "presentation", "data-number": first + 1});
  const chunk = {lane, element, first, made: first, end: first, near: false, stale: false};
  rows[lane].chunks.push(chunk);
  rows[lane].body.append(element);
  chunkOf.set(element, chunk);
  sight.observe(element);
}

function fillChunk(chunk) {
  const added = [];
  for (; chunk.made < chunk.end; chunk.made++) added.push(...makeCell(chunk.lane, chunk.made));
  chunk.element.append(...added);
}

function clearLane(row) {
  for (const {element} of row.chunks) sight.unobserve(element);
  row.body.replaceChildren();
  Object.assign(row, {chunks: [], cells: []});
}

// The cell of a token, made if need be.
function cellAt(place) {
  const row = place && rows[place.lane];
  if (!row || !(place.index in page.tokens[place.lane])) return undefined;
  if (!row.cells[place.index]) {
    fillChunk(row.chunks.find(({end}) => place.index < end) || {made: 0, end: 0});
  }
  return row.cells[place.index];
}

// What the cells of these lanes show has changed.
function repaintCells(lanes) {
  for (const chunk of lanes.flatMap((lane) => rows[lane].chunks)) chunk.stale = true;
  finishSome();
}

function finishChunk(chunk) {
  const {lane, first, made} = chunk;
  if (chunk.stale) {
    for (let i = first; i < made; i++) showExit(rows[lane].cells[i], lane, i);
  }
  chunk.stale = false;
  fillChunk(chunk);
}

function waitingChunks() {
  return LANES.flatMap((lane) => rows[lane].chunks)
    .filter((chunk) => chunk.stale || chunk.made < chunk.end);
}

// A few that are in view now, more of them with the next frame; then the others, one by one.
function finishSome() {
  const seen = waitingChunks().filter((chunk) => chunk.near);
  seen.slice(0, PER_FRAME).forEach(finishChunk);
  finishLater();
}

function finishLater() {
  if (later) return;
  const waiting = waitingChunks();
  later = waiting.length > 0;
  const go = (finish) => () => {
    later = false;
    finish();
  };
  if (waiting.some((chunk) => chunk.near)) requestAnimationFrame(() => setTimeout(go(finishSome)));
  else if (later) idly(go(finishOne));
}

function finishOne() {
  waitingChunks().slice(0, 1).forEach(finishChunk);
  finishLater();
}
