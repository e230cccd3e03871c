// The legend: one toggle per bin, in layers of the loaded model, with its count in the lane above.
// Pressed entries leave only their tokens at full strength.

const shownEntries = new Set();

function legendList() {
  const list = make("div", {class: "legend", role: "group", "aria-label": say("legend.title")});
  const help = make("p", {class: "quiet legend-help", hidden: ""}, say("legend.help"));
  followCalmly((view, fresh) => {
    if (fresh) shownEntries.clear();
    drawLegend(list, view.legend);
    if (estimate.exits) countEntries();
    help.hidden = view.legend.length === 0;
  });
  return make("div", {}, list, help);
}

function drawLegend(list, entries) {
  const key = entries.map((e) => e.text).join();
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...(entries.length ? [make("span", {class: "quiet"},
      say("legend.title"))] : []), ...entries.map(entryButton));
  }
  entries.forEach((entry, i) => {
    const button = list.querySelectorAll("button")[i];
    put(button.querySelector(".count"), String(entry.count));
    button.setAttribute("aria-pressed", String(shownEntries.has(i)));
  });
}

// The legend entry that counts an exit layer.
function entryOf(exit) {
  const {layers, legend} = page.view;
  return exit === layers ? legend.length - 1 : legend.findIndex(({last}) => exit <= last);
}

// The counts of what the upper lane shows now, estimate included.
function countEntries() {
  const counts = page.view.legend.map(() => 0);
  page.tokens.upper.forEach((_, index) => { counts[entryOf(shownExit("upper", index))]++; });
  document.querySelectorAll(".legend .entry .count").forEach((count, i) =>
    put(count, String(counts[i])));
}

function entryButton(entry, index) {
  const swatch = make("span", {
    class: `swatch b${entry.fill} ${entry.never ? "never" : ""}`, "aria-hidden": "true",
  });
  const button = make("button", {type: "button", class: "entry", title: say("legend.toggle")},
    swatch, make("span", {}, entry.text), make("span", {class: "count"}));
  button.addEventListener("click", () => {
    if (!shownEntries.delete(index)) shownEntries.add(index);
    button.setAttribute("aria-pressed", String(shownEntries.has(index)));
    fadeCells();
  });
  return button;
}

function isFaded(entry) {
  return shownEntries.size > 0 && !shownEntries.has(entry);
}

function fadeCells() {
  repaintCells(LANES);
  requestStrips();
}
