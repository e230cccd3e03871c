// The two lanes as one grid of token cells.

const rows = {};

function mountLanes(element) {
  const grid = make("div", {role: "grid", class: "lanes", "aria-label": say("lane.grid")});
  for (const lane of LANES) grid.append(laneRow(lane));
  element.replaceChildren(grid, legendList(), promptTokens());
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
  const header = make("div", {role: "rowheader", class: "lane-head"},
    title, caption, guess, different);
  const element = make("div", {role: "row", class: `lane lane-${lane}`, "data-lane": lane}, header);
  different.addEventListener("click", () => focusCell({lane, index: page.view.difference}));
  rows[lane] = {element, title, caption, guess, different, cells: [], marked: null};
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
    make("bdi", {class: "txt"}, text));
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
    const tokens = page.tokens[lane];
    const added = [];
    for (let i = row.cells.length; i < tokens.length; i++) added.push(...addCell(lane, i));
    if (added.length) row.element.append(...added);
    if (view.lanes[lane].ended) markEnd(row, tokens);
    markDifference(row, view.difference);
  }
  keepTabStop();
}

function clearRow(row) {
  for (const node of row.element.querySelectorAll(".tok, .break")) node.remove();
  row.cells = [];
  row.marked = null;
  row.element.classList.remove("estimated");
  row.guess.hidden = true;
}

function addCell(lane, index) {
  const token = page.tokens[lane][index];
  const cell = make("span", {
    role: "gridcell", class: `tok ${token.kind}`, tabindex: "-1", "aria-label": token.label,
    "aria-selected": "false", "data-index": index,
  }, make("bdi", {class: "txt"}, token.text), make("span", {class: "bar", "aria-hidden": "true"}));
  paintCell(cell, shownExit(lane, index));
  if (token.gap && index) rows[lane].cells[index - 1].classList.add("spaced");
  rows[lane].cells.push(cell);
  return token.text.endsWith("↵") ? [cell, lineBreak()] : [cell];
}

// A cell takes the fill, the frame and the bar of an exit layer.
function paintCell(cell, exit) {
  const {layers, legend} = page.view;
  const entry = exit === layers ? legend.length - 1 : legend.findIndex(({last}) => exit <= last);
  cell.className = cell.className.replace(/ (b\d|never)\b/g, "");
  cell.classList.add(`b${legend[entry].fill}`);
  if (exit === layers) cell.classList.add("never");
  cell.dataset.entry = entry;
  cell.querySelector(".bar").style.width = `${(100 * exit) / layers}%`;
}

function repaintLane(lane) {
  rows[lane].cells.forEach((cell, index) => paintCell(cell, shownExit(lane, index)));
  const guessed = lane === "upper" && Boolean(estimate.exits);
  rows[lane].element.classList.toggle("estimated", guessed);
  rows[lane].guess.hidden = !guessed;
  countEntries();
}

function lineBreak() {
  return make("span", {class: "break", role: "presentation"});
}

// The end of the text is a token without text; once the lane says so, its cell says "end".
function markEnd(row, tokens) {
  const last = tokens.length - 1;
  if (last < 0 || tokens[last].kind !== "empty" || row.cells[last].dataset.end) return;
  row.cells[last].dataset.end = "1";
  tokens[last].text = say("lane.end");
  row.cells[last].querySelector(".txt").textContent = tokens[last].text;
}

function markDifference(row, index) {
  const cell = index === null ? null : row.cells[index] || null;
  if (cell === row.marked) return;
  if (row.marked) row.marked.classList.remove("different");
  if (cell) cell.classList.add("different");
  row.marked = cell;
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

function cellAt(place) {
  return place && rows[place.lane] ? rows[place.lane].cells[place.index] : undefined;
}
