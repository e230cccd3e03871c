// One tab stop for all tokens (roving tabindex, W3C grid pattern), and the pointer.

const PAGE = 50; // tokens
let tabStop = null;

function listen(grid) {
  grid.addEventListener("keydown", onKey);
  grid.addEventListener("focusin", (event) => {
    const place = placeOf(event.target);
    if (place) {
      moveTabStop(place);
      select(place);
    }
  });
  grid.addEventListener("click", (event) => {
    const place = placeOf(event.target);
    if (place) togglePin(place);
  });
  grid.addEventListener("pointerover", (event) => {
    if (event.pointerType === "mouse") hover(placeOf(event.target));
  });
  grid.addEventListener("pointerleave", () => hover(null));
}

function placeOf(target) {
  const cell = target.closest(".lane .tok");
  if (!cell) return null;
  return {lane: cell.closest(".lane").dataset.lane, index: Number(cell.dataset.index)};
}

function onKey(event) {
  const place = placeOf(event.target);
  if (!place || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Enter" || event.key === " ") togglePin(place);
  else if (event.key === "Escape") unpin();
  else if (!focusCell(target(place, event.key))) return;
  event.preventDefault();
}

function target({lane, index}, key) {
  const last = page.tokens[lane].length - 1;
  const moves = {
    ArrowLeft: {lane, index: Math.max(0, index - 1)},
    ArrowRight: {lane, index: Math.min(last, index + 1)},
    PageUp: {lane, index: Math.max(0, index - PAGE)},
    PageDown: {lane, index: Math.min(last, index + PAGE)},
    Home: {lane, index: 0},
    End: {lane, index: last},
    ArrowUp: across("upper", index),
    ArrowDown: across("lower", index),
  };
  return moves[key];
}

function across(lane, index) {
  return {lane, index: Math.min(index, page.tokens[lane].length - 1)};
}

function focusCell(place) {
  const cell = cellAt(place);
  if (!cell) return false;
  cell.focus();
  return true;
}

function moveTabStop(place) {
  const before = cellAt(tabStop);
  if (before) before.tabIndex = -1;
  tabStop = place;
  cellAt(place).tabIndex = 0;
}

// There is always one cell that Tab reaches, from the first token on.
function keepTabStop() {
  if (cellAt(tabStop)) return;
  tabStop = null;
  const lane = LANES.find((name) => page.tokens[name].length);
  if (lane) moveTabStop({lane, index: 0});
}

// After a run, something is selected for the panels to show, without taking the focus.
function selectSomething(view) {
  if (shownPlace() || !["done", "stopped"].includes(view.phase)) return;
  const tokens = page.tokens.upper;
  if (!tokens.length) return;
  const early = tokens.findIndex((token, i) => i > 0 && !never(token));
  const place = {lane: "upper", index: Math.max(early, 0)};
  moveTabStop(place);
  select(place);
}
