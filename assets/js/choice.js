// The five likeliest tokens of the pass that chose this one.

function choiceOf(token) {
  const lines = token.alternatives.map((entry) => alternative(entry, token.id));
  return [
    make("table", {class: "choice"}, make("tbody", {}, ...lines)),
    make("p", {class: "quiet"}, say("choice.entropy", {entropy: token.entropy.toFixed(2)})),
  ];
}

function alternative([text, share, id], chosenId) {
  const bar = make("span", {class: "share", "aria-hidden": "true"});
  bar.style.width = `${100 * share}%`;
  const row = make("tr", {},
    make("th", {scope: "row"}, make("bdi", {class: "alt-text", title: text}, text)),
    make("td", {class: "share-cell"}, bar),
    make("td", {class: "number"}, `${(100 * share).toFixed(1)} %`));
  if (id === chosenId) row.className = "alt-chosen";
  return row;
}
