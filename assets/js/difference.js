// Where two finished answers part, and what each lane thought there.

function comparisonBlock() {
  const body = make("div", {class: "compare-body"});
  const section = make("section", {class: "compare", "aria-labelledby": "compare-title"},
    make("h2", {id: "compare-title"}, say("compare.title")), body);
  follow((view) => once(body, [view.run, view.comparison], () => comparisonOf(view.comparison)));
  return section;
}

function comparisonOf(compared) {
  if (!compared) return [make("p", {class: "quiet"}, say("compare.none"))];
  const parts = [make("p", {}, compared.sentence)];
  if (compared.difference) {
    const {index, lanes} = compared.difference;
    parts.push(differenceHead(index));
    parts.push(make("div", {class: "compare-sides"},
      ...lanes.map((side, i) => sideOf(side, lanes[1 - i].title))));
    parts.push(make("p", {class: "quiet"}, compared.after));
  }
  return parts;
}

// The token in the lane above, or in the other where that one has ended.
function differenceHead(index) {
  const number = index + 1;
  const button = make("button", {type: "button", class: "link-button compare-show"},
    say("compare.show", {number}));
  button.addEventListener("click", () =>
    focusCell({lane: "upper", index}) || focusCell({lane: "lower", index}));
  return make("p", {class: "compare-first"},
    make("strong", {}, say("compare.first", {number})), " ", button);
}

function sideOf(side, other) {
  const said = side.said ? [make("p", {class: "quiet"}, side.said)] : [];
  if (!side.token) return make("div", {class: "compare-side"}, ...said);
  const title = make("h3", {}, `${say("compare.chose", {policy: side.title})} `,
    make("bdi", {class: "compare-token", lang: UNKNOWN}, side.token));
  const rows = side.rows.map((row) => opinion(row, other));
  return make("div", {class: "compare-side"}, title,
    make("table", {class: "choice"}, make("tbody", {}, ...rows)), ...said);
}

function opinion([text, share, whose], other) {
  const bar = make("span", {class: "share", "aria-hidden": "true"});
  bar.style.width = `${100 * share}%`;
  const name = make("th", {scope: "row"}, alternativeText(text));
  if (whose) {
    name.append(make("span", {class: `whose whose-${whose}`},
      whose === "own" ? say("compare.own") : say("compare.other", {policy: other})));
  }
  const row = make("tr", {}, name, make("td", {class: "share-cell"}, bar),
    make("td", {class: "number"}, `${(100 * share).toFixed(1)} %`));
  if (whose === "own") row.className = "alt-chosen";
  return row;
}
