// Which token the panels show: the pinned one, else the one under the pointer, else the selected
// one. Places are {lane, index}.

const chosen = {selected: null, pinned: null, hovered: null};
const watchers = [];

function onSelection(redraw) {
  watchers.push(redraw);
}

function shownPlace() {
  return chosen.pinned || chosen.hovered || chosen.selected;
}

// The token drawn dashed beside a pinned one.
function besidePlace() {
  if (!chosen.pinned) return null;
  const beside = chosen.hovered || chosen.selected;
  return beside && !same(beside, chosen.pinned) ? beside : null;
}

function same(one, other) {
  return Boolean(one && other && one.lane === other.lane && one.index === other.index);
}

function select(place) {
  chosen.selected = place;
  announce();
}

function hover(place) {
  if (same(place, chosen.hovered) || (!place && !chosen.hovered)) return;
  chosen.hovered = place;
  announce();
}

function togglePin(place) {
  chosen.pinned = same(place, chosen.pinned) ? null : place;
  announce();
}

function unpin() {
  if (!chosen.pinned) return;
  chosen.pinned = null;
  announce();
}

function forgetSelection() {
  chosen.selected = chosen.pinned = chosen.hovered = null;
  announce();
}

function announce() {
  for (const redraw of watchers) redraw();
}
