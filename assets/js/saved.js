// Layers saved next to time saved: three bars on one scale, the numbers, and a sentence.

function savedBlock() {
  const body = make("div", {class: "gap-body"});
  const section = make("section", {class: "gap", hidden: ""}, body);
  const show = (view) => {
    const gap = measuredFor(view).saved || (view.comparison && view.comparison.saved);
    section.hidden = !gap;
    const {badge} = measuredFor(view);
    if (gap) once(body, [gap, badge], () => savedOf(gap, badge));
  };
  follow(show);
  onMeasured(show);
  return section;
}

function savedOf(gap, badge) {
  return [
    make("div", {class: "gap-head"}, make("h2", {}, gap.title), measureBadge(badge)),
    ...gap.sentences.map((sentence) => make("p", {}, sentence)),
    make("div", {class: "gap-columns"}, gapBars(gap.bars), gapLines(gap.lines)),
  ];
}

// The backbone's time is 100 %; a slow-down reaches beyond it.
function gapBars(bars) {
  const sum = ({parts}) => parts.reduce((all, [, size]) => all + size, 0);
  const scale = Math.max(1, ...bars.map(sum));
  const shares = bars.map(({label: name, value}) => `${name} ${value}`);
  const lines = bars.map((bar) => {
    const pieces = bar.parts.map(([name, size]) => {
      const piece = make("span", {class: `gap-piece gap-${name}`, title: say(`gap.part.${name}`)});
      piece.style.width = `${(100 * size) / scale}%`;
      return piece;
    });
    return make("div", {class: "gap-bar"}, make("span", {class: "gap-label"}, bar.label),
      make("span", {class: "gap-track"}, ...pieces), make("span", {class: "number"}, bar.value));
  });
  const picture = make("div", {role: "img", "aria-label": say("gap.chart", {bars: listed(shares)})},
    ...lines);
  return make("div", {class: "gap-bars"}, picture, gapKeys(bars));
}

function gapKeys(bars) {
  const names = [...new Set(bars.flatMap(({parts}) => parts.map(([name]) => name)))];
  return make("ul", {class: "gap-keys"}, ...names.map((name) => make("li", {},
    make("span", {class: `gap-key gap-${name}`, "aria-hidden": "true"}), say(`gap.part.${name}`))));
}

function gapLines(lines) {
  return make("table", {class: "gap-lines"}, make("tbody", {}, ...lines.map(([name, value, of]) =>
    make("tr", {}, make("th", {scope: "row"}, name), make("td", {class: "number"}, value),
      make("td", {class: "quiet"}, of)))));
}
