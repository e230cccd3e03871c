// Everything the drawings show, as one table of text. Built when it is opened.

const COLUMNS = [
  ["lane", (token, lane) => say(`lane.${lane}`)],
  ["number", (token, lane, index) => index + 1],
  ["position", (token) => token.position],
  ["token", named],
  ["id", (token) => token.id],
  ["exit", (token) => token.exit],
  ["threshold", (token) => token.threshold.toFixed(3)],
  ["probability", (token) => token.probability.toFixed(3)],
  ["entropy", (token) => token.entropy.toFixed(2)],
  ["seconds", (token) => token.seconds.toFixed(3)],
  ["kv", (token) => token.kv],
  ["alternatives", (token) =>
    token.alternatives.map(([text, share]) => `${text} ${share.toFixed(3)}`).join("  ")],
  ["similarities", (token) => similarities(token).map((v) => v.toFixed(4)).join(" ")],
];

function tokenTable() {
  const body = make("tbody");
  const head = make("tr", {}, ...COLUMNS.map(([name]) =>
    make("th", {scope: "col"}, say(`table.${name}`))));
  const table = make("table", {class: "tokens"}, make("thead", {}, head), body);
  const scroll = make("div", {
    class: "scroll", tabindex: "0", role: "region", "aria-label": say("table.scroll"),
  }, table);
  const box = make("details", {class: "table-box"},
    make("summary", {}, say("section.table")), scroll);
  const counts = {river: 0, backbone: 0};
  box.addEventListener("toggle", () => box.open && fillTable(body, counts));
  follow((view, fresh) => {
    if (fresh) emptyTable(body, counts);
    if (box.open) fillTable(body, counts);
  });
  return box;
}

function emptyTable(body, counts) {
  body.replaceChildren();
  for (const lane of LANES) counts[lane] = 0;
}

function fillTable(body, counts) {
  for (const lane of LANES) {
    const tokens = page.tokens[lane];
    for (; counts[lane] < tokens.length; counts[lane]++) {
      const index = counts[lane];
      body.append(make("tr", {}, ...COLUMNS.map(([name, value]) =>
        make("td", {class: `col-${name}`}, make("bdi", {}, value(tokens[index], lane, index))))));
    }
  }
}
