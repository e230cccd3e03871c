// Which token the panels show: the newest pinned one, else the one under the pointer, else the
// selected one. Places are {lane, index}.

const MOST_PINS = 3;
const chosen = {selected: null, pins: [], hovered: null};
const watchers = [];

function onSelection(redraw) {
  watchers.push(redraw);
}

function shownPlace() {
  return chosen.pins.at(-1) || chosen.hovered || chosen.selected;
}

function isPinned(place) {
  return chosen.pins.some((pin) => same(pin, place));
}

// The tokens drawn dashed beside the newest pin: the other pins and the one being looked at.
function besidePlaces() {
  if (!chosen.pins.length) return [];
  const looked = chosen.hovered || chosen.selected;
  const others = chosen.pins.slice(0, -1).reverse();
  return looked && !isPinned(looked) ? [looked, ...others] : others;
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
  if (isPinned(place)) chosen.pins = chosen.pins.filter((pin) => !same(pin, place));
  else chosen.pins = [...chosen.pins, place].slice(-MOST_PINS);
  announce();
}

function unpin() {
  if (!chosen.pins.length) return;
  chosen.pins = [];
  announce();
}

function forgetSelection() {
  chosen.selected = chosen.hovered = null;
  chosen.pins = [];
  announce();
}

function announce() {
  for (const redraw of watchers) redraw();
}
