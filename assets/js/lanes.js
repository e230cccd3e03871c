// The two lanes as one grid of token cells.

const rows = {};

function mountLanes(element) {
  const grid = make("div", {role: "grid", class: "lanes", "aria-label": say("lane.grid")});
  for (const lane of LANES) grid.append(laneRow(lane));
  element.replaceChildren(readingBar(grid), overview(grid), make("div", {class: "lanes-box"}, grid),
    legendList(), promptTokens());
  listen(grid);
  follow((view) => { grid.dataset.run = view.run; });
  follow(updateLanes);
  onSelection(markCells);
}

function laneRow(lane) {
  const title = make("span", {class: "lane-title"});
  const caption = make("span", {class: "lane-caption"});
  const different = make("button", {class: "lane-different", type: "button", hidden: ""});
  const guess = make("span", {class: "guess", hidden: ""}, say("estimate.label"));
  const header = make("div", {role: "rowheader", class: "lane-head", "aria-colindex": "1"},
    title, caption, guess, different);
  const body = make("div", {class: "cells", role: "presentation"});
  const element = make("div", {role: "row", class: `lane lane-${lane}`, "data-lane": lane},
    header, body);
  different.addEventListener("click", () => focusCell({lane, index: page.view.difference}));
  rows[lane] = {
    element, title, caption, guess, different, body, chunks: [], cells: [], difference: null,
  };
  return element;
}

function promptTokens() {
  const summary = make("summary", {}, say("prompt.title"));
  const depth = make("p", {class: "quiet"});
  const tokens = make("p", {class: "prompt-tokens"});
  const box = make("details", {class: "prompt-box", hidden: ""}, summary, depth, tokens);
  follow((view, fresh) => {
    const {prompt, depth: sentence} = view.lanes.upper;
    box.hidden = prompt.length === 0;
    put(depth, sentence);
    if (fresh) tokens.replaceChildren();
    if (!tokens.firstChild) tokens.append(...prompt.flatMap(neutralCell));
  });
  return box;
}

function neutralCell([text, kind], index, all) {
  const spaced = index + 1 < all.length && all[index + 1][2] ? "spaced" : "";
  const cell = make("span", {class: `tok neutral ${kind} ${spaced}`},
    make("bdi", {class: "txt", lang: UNKNOWN}, text));
  return text.endsWith("↵") ? [cell, lineBreak()] : [cell];
}

function updateLanes(view, fresh) {
  for (const lane of LANES) {
    const row = rows[lane];
    if (fresh) clearRow(row);
    put(row.title, view.lanes[lane].title);
    put(row.caption, view.lanes[lane].caption);
    row.different.hidden = !view.lanes[lane].different;
    put(row.different, view.lanes[lane].different);
    growLane(lane);
    if (view.lanes[lane].ended) markEnd(row, page.tokens[lane]);
    markDifference(row, view.difference);
  }
  keepTabStop();
}

function clearRow(row) {
  clearLane(row);
  row.difference = null;
  row.element.classList.remove("estimated");
  row.guess.hidden = true;
}

// A cell and, after a token that ends a line, a line break.
function makeCell(lane, index) {
  const tokens = page.tokens[lane];
  const {text, kind, label, gap} = tokens[index];
  const {cells} = rows[lane];
  const cell = make("span", {
    role: "gridcell", class: `tok ${kind}`, tabindex: "-1", "aria-label": label,
    "aria-selected": "false", "data-index": index, "aria-colindex": index + 2,
  }, make("bdi", {class: "txt", lang: UNKNOWN}, text),
  make("span", {class: "bar", "aria-hidden": "true"}));
  if ((index + 1) % 10 === 0) cell.dataset.number = index + 1;
  cells[index] = cell;
  showExit(cell, lane, index);
  if (gap && cells[index - 1]) cells[index - 1].classList.add("spaced");
  if (index + 1 < tokens.length && tokens[index + 1].gap) cell.classList.add("spaced");
  if (index === page.view.difference) cell.classList.add("different");
  return text.endsWith("↵") ? [cell, lineBreak()] : [cell];
}

// A cell takes the fill, the frame and the bar of the exit layer that it shows, and is faint where
// the legend asks for others.
function showExit(cell, lane, index) {
  const exit = shownExit(lane, index);
  const entry = entryOf(exit);
  if (cell.dataset.exit !== String(exit)) paintCell(cell, exit, entry);
  cell.classList.toggle("faded", isFaded(entry));
}

function paintCell(cell, exit, entry) {
  const {layers, legend} = page.view;
  cell.className = cell.className.replace(/ (b\d|never)\b/g, "");
  cell.classList.add(`b${legend[entry].fill}`);
  if (exit === layers) cell.classList.add("never");
  cell.dataset.exit = exit;
  cell.lastChild.style.width = `${(100 * exit) / layers}%`;
}

function repaintLane(lane) {
  repaintCells([lane]);
  const guessed = lane === "upper" && Boolean(estimate.exits);
  rows[lane].element.classList.toggle("estimated", guessed);
  // A rule for the class would look at every cell again.
  rows[lane].body.style.outline = guessed ? "1px dashed var(--frame)" : "";
  rows[lane].guess.hidden = !guessed;
  countEntries();
  requestStrips();
}

function lineBreak() {
  return make("span", {class: "break", role: "presentation"});
}

// The end of the text is a token without text; once the lane says so, its cell says "end".
function markEnd(row, tokens) {
  const last = tokens.length - 1;
  if (last < 0 || tokens[last].kind !== "empty" || tokens[last].text === say("lane.end")) return;
  tokens[last].text = say("lane.end");
  if (row.cells[last]) put(row.cells[last].firstChild, tokens[last].text);
}

function markDifference(row, index) {
  if (row.difference === index) return;
  for (const [at, marked] of [[row.difference, false], [index, true]]) {
    if (row.cells[at]) row.cells[at].classList.toggle("different", marked);
  }
  row.difference = index;
}

let markedCells = [];

// Only the cells that were or are marked: there may be thousands.
function markCells() {
  const places = [chosen.selected, ...chosen.pins];
  const cells = places.map(cellAt).filter(Boolean);
  for (const cell of new Set([...markedCells, ...cells])) {
    cell.setAttribute("aria-selected", String(cells.includes(cell)));
    cell.classList.toggle("selected", cell === cellAt(chosen.selected));
    cell.classList.toggle("pinned", chosen.pins.some((pin) => cell === cellAt(pin)));
  }
  markedCells = cells;
}
