// Text or timeline: the tokens wrap as a text does, or each lane is one row of equal cells, so that
// equal token numbers of both lanes stand below each other. One scroller moves both rows.

const CELL = 80; // pixels from one token to the next in the timeline, as in long.css
const ROW = {height: 33, cell: 58}; // of a text's line and of a mean cell with its gaps
const reading = {timeline: false, grid: null};

function readingBar(grid) {
  reading.grid = grid;
  const buttons = ["text", "timeline"].map((name) => {
    const button = make("button", {
      type: "button", class: "origin-button", "data-reading": name, title: say(`long.${name}.title`),
    }, say(`long.${name}`));
    button.addEventListener("click", () => readAs(name === "timeline"));
    return button;
  });
  const group = make("div", {class: "origins reading", role: "group",
    "aria-label": say("long.reading")}, ...buttons);
  let known = 0; // it grows in height with every line
  new ResizeObserver(([{contentRect: {width}}]) => {
    if (width === known) return;
    known = width;
    grid.style.setProperty("--per-line", Math.max(1, width / ROW.cell));
    requestStrips();
  }).observe(grid);
  follow((view) => {
    const longest = Math.max(...LANES.map((lane) => page.tokens[lane].length));
    group.hidden = longest === 0;
    grid.setAttribute("aria-colcount", longest + 1);
  });
  pressReading(buttons);
  return group;

  function readAs(timeline) {
    reading.timeline = timeline;
    pressReading(buttons);
    grid.classList.toggle("timeline", timeline);
    const place = chosen.selected;
    if (timeline && place) grid.scrollLeft = place.index * CELL - grid.clientWidth / 2;
    requestStrips();
  }
}

function pressReading(buttons) {
  for (const button of buttons) {
    const pressed = (button.dataset.reading === "timeline") === reading.timeline;
    button.setAttribute("aria-pressed", String(pressed));
  }
}

// [first, end) of a lane's tokens in view below the strip, or null.
function tokensInView(lane, top) {
  const count = page.tokens[lane].length;
  const {scrollLeft, clientWidth} = reading.grid;
  if (reading.timeline) {
    const [first, end] = [Math.floor(scrollLeft / CELL), Math.ceil((scrollLeft + clientWidth) / CELL)];
    return first < count ? [first, Math.min(count, end)] : null;
  }
  const seen = rows[lane].chunks.filter(({element}) => {
    const box = element.getBoundingClientRect();
    return box.bottom > top && box.top < innerHeight;
  });
  if (!seen.length) return null;
  const first = firstCell(seen[0], lane, (box) => box.bottom > top + 1);
  const end = firstCell(seen.at(-1), lane, (box) => box.top > innerHeight - 1);
  return first < end ? [first, end] : null;
}

// Lines go down, so the cells of a chunk can be halved again and again.
function firstCell({first, made, end}, lane, test) {
  if (made < end) return first; // not made yet
  let [low, high] = [first, end];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(rows[lane].cells[middle].getBoundingClientRect())) high = middle;
    else low = middle + 1;
  }
  return low;
}
