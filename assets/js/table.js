// Everything the drawings show, as one table of text. Built when it is opened.

const COLUMNS = [
  ["lane", (token, lane) => laneTitle(lane)],
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
  ["later", (token, lane) => laterChanges(lane, token.position - 1)],
  ["alternatives", (token) =>
    token.alternatives.map(([text, share]) => `${text} ${share.toFixed(3)}`).join("  ")],
  ["similarities", (token) => similarities(token).map((v) => v.toFixed(4)).join(" ")],
];

const WRITTEN = ["token", "alternatives"]; // by the model

function tableCell(name, value) {
  const lang = WRITTEN.includes(name) ? UNKNOWN : null;
  return make("td", {class: `col-${name}`}, make("bdi", {lang}, value));
}

function tokenTable() {
  const body = make("tbody", {class: "of-answers"});
  const prompts = make("tbody", {class: "of-prompts"});
  const head = make("tr", {}, ...COLUMNS.map(([name]) =>
    make("th", {scope: "col"}, say(`table.${name}`))));
  const table = make("table", {class: "tokens"}, make("thead", {}, head), prompts, body);
  const scroll = make("div", {
    class: "scroll", tabindex: "0", role: "region", "aria-label": say("table.scroll"),
  }, table);
  const box = make("details", {class: "table-box"},
    make("summary", {}, say("section.table")), scroll);
  const counts = {upper: 0, lower: 0};
  const fill = () => {
    fillPrompts(prompts);
    fillTable(body, counts);
  };
  box.addEventListener("toggle", () => box.open && fill());
  let phase = "";
  followCalmly((view, fresh) => {
    const ended = view.phase !== phase; // then the later changes are all known
    if (fresh || ended) emptyTable(body, counts);
    phase = view.phase;
    if (box.open) fill();
  });
  return box;
}

function laterChanges(lane, position) {
  return listed(changesAt(lane, position).map(([pass, , source, ...edges]) => {
    const layers = edges.flatMap((edge, i) => (i % 2 ? [] : [layerSpan(edge, edges[i + 1])]));
    return say("table.change", {
      token: pass + 1, layers: listed(layers), name: say(`source.${source}.name`),
    });
  }), "semicolon");
}

// The prompt's rows of the cache: what later tokens find there.
function fillPrompts(body) {
  const {prompt} = page.view.lanes.upper;
  once(body, [page.run, page.view.phase, prompt.length], () => LANES.flatMap((lane) =>
    prompt.slice(0, promptLength(lane)).map(([text, , gap], position) => {
      const known = {
        lane: laneTitle(lane), position, token: (gap ? "·" : "") + text,
        kv: writtenRow(lane, position), later: laterChanges(lane, position),
      };
      return make("tr", {}, ...COLUMNS.map(([name]) =>
        tableCell(name, known[name] ?? "")));
    })));
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
        tableCell(name, value(tokens[index], lane, index)))));
    }
  }
}
