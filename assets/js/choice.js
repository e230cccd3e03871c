// Why this token left where it did, and the five likeliest tokens of the pass that chose it.

function choiceOf(token, lane) {
  const lines = token.alternatives.map((entry) => alternative(entry, token.id));
  return [
    make("p", {class: "why"}, why(token, lane)),
    make("table", {class: "choice"}, make("tbody", {}, ...lines)),
    make("p", {class: "quiet"}, say("choice.entropy", {entropy: token.entropy.toFixed(2)})),
    ...timesOf(token),
    make("p", {class: "quiet choice-parts"}, token.label),
  ];
}

// The rule is strict: a token leaves where the similarity is greater than the threshold.
function why(token, lane) {
  const values = similarities(token);
  const last = values[token.exit - 1];
  const words = {
    layer: token.exit, layers: page.view.layers, threshold: token.threshold.toFixed(3),
    value: last === undefined ? "—" : last.toFixed(4),
  };
  return say(`why.${reason(token, lane, last)}`, words);
}

function reason(token, lane, last) {
  if (!page.view.lanes[lane].exits) return "all";
  if (token.forced) return "forced";
  if (never(token)) return "never";
  if (token.exit === 0) return "river";
  return last > token.threshold - 0.00005 ? "crossed" : "other";
}

function timesOf(token) {
  if (!token.parts) return [];
  const parts = Object.entries(token.parts).map(([name, spent]) =>
    say("choice.part", {name: TEXT[`part.${name}`] || name, time: spent.toFixed(2)}));
  return [make("p", {class: "quiet choice-parts"}, say("choice.parts", {parts: listed(parts)}))];
}

function alternativeText(text) {
  return make("bdi", {class: "alt-text", lang: UNKNOWN, title: text}, text);
}

function alternative([text, share, id], chosenId) {
  const bar = make("span", {class: "share", "aria-hidden": "true"});
  bar.style.width = `${100 * share}%`;
  const row = make("tr", {},
    make("th", {scope: "row"}, alternativeText(text)),
    make("td", {class: "share-cell"}, bar),
    make("td", {class: "number"}, `${(100 * share).toFixed(1)} %`));
  if (id === chosenId) row.className = "alt-chosen";
  return row;
}
