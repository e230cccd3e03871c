// A ring around one element of the page, with the rest dimmed. It takes no clicks, and follows the
// element through scrolling, resizing and new layouts: one rectangle is read per frame while it is on.

const AROUND = 5; // pixels between the element and the ring
const spotlight = {ring: null, find: null, on: null, drawn: "", frame: 0};

function spotlightRing() {
  spotlight.ring = make("div", {class: "spotlight", "aria-hidden": "true", hidden: ""});
  let width = window.innerWidth; // a phone's own bars change the height while one scrolls
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) spotlight.on = null;
    width = window.innerWidth;
  });
  return spotlight.ring;
}

// `find` gives the element to point at now, or nothing while there is none.
function shineOn(find) {
  spotlight.find = find;
  spotlight.on = null;
  if (!spotlight.frame) followTarget();
}

function shineOff() {
  cancelAnimationFrame(spotlight.frame);
  Object.assign(spotlight, {find: null, on: null, drawn: "", frame: 0});
  spotlight.ring.hidden = true;
}

function followTarget() {
  spotlight.frame = requestAnimationFrame(followTarget);
  const lit = spotlight.find();
  if (lit && lit !== spotlight.on) bringIntoView(lit);
  spotlight.on = lit;
  const box = lit && lit.getBoundingClientRect();
  const sides = box && box.width ? [box.left, box.top, box.width, box.height].map(Math.round) : [];
  if (spotlight.drawn === sides.join()) return;
  spotlight.drawn = sides.join();
  drawRing(sides);
}

function drawRing([left, top, width, height]) {
  spotlight.ring.hidden = width === undefined;
  if (spotlight.ring.hidden) return;
  Object.assign(spotlight.ring.style, {
    left: `${left - AROUND}px`, top: `${top - AROUND}px`,
    width: `${width + 2 * AROUND}px`, height: `${height + 2 * AROUND}px`,
  });
}

// Into the middle of what the docked panel leaves free; a taller element begins at the top.
function bringIntoView(lit) {
  const room = window.innerHeight - parseFloat(getComputedStyle(document.documentElement)
    .scrollPaddingBottom || 0);
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  lit.scrollIntoView({
    block: lit.offsetHeight < 0.9 * room ? "center" : "start", inline: "nearest",
    behavior: calm ? "auto" : "smooth",
  });
}
