// What the page knows of the run on show. A snapshot carries a lane's lines from some token on;
// known tokens are skipped, and after a gap the page waits for a snapshot that closes it.

const LANES = ["upper", "lower"];
const BASE = 36;
const CALM = 2000; // milliseconds

const page = {
  view: null,
  run: null,
  card: null,
  tokens: {upper: [], lower: []},
  updates: {upper: [], lower: []},
};
const followers = [];
const calm = {followers: [], phase: "", drawn: 0};

function follow(update) {
  followers.push(update);
  if (page.view) update(page.view, true);
}

// For what nobody reads several times a second: all of it together every two seconds, and at each change
// of phase. On a laptop every drawing takes time from decoding.
function followCalmly(update) {
  calm.followers.push(update);
  if (page.view) update(page.view, true);
}

function receive(view) {
  const fresh = view.run !== page.run;
  if (fresh) startOver(view.run);
  page.view = view;
  for (const lane of LANES) {
    readLines(page.tokens[lane], view.lanes[lane]);
    readUpdates(page.updates[lane], view.lanes[lane].updates);
  }
  for (const update of followers) update(view, fresh);
  if (!fresh && view.phase === calm.phase && Date.now() - calm.drawn < CALM) return;
  Object.assign(calm, {phase: view.phase, drawn: Date.now()});
  for (const update of calm.followers) update(view, fresh);
}

function startOver(run) {
  page.run = run;
  page.tokens = {upper: [], lower: []};
  page.updates = {upper: [], lower: []};
  forgetSelection();
}

function readLines(tokens, {from, tokens: text}) {
  if (!text || from > tokens.length) return;
  for (const line of text.split("\n").slice(tokens.length - from)) {
    const values = JSON.parse(line);
    const token = {};
    FIELDS.forEach((name, i) => { token[name] = values[i]; });
    token.kv = letters(token.kv);
    tokens.push(token);
  }
}

function readUpdates(known, [from, updates]) {
  if (from <= known.length) known.push(...updates.slice(known.length - from));
}

const spelled = new Map(); // thousands of rows, a few dozen different ones

// "b2r2" -> "bbrr"
function letters(runs) {
  if (!spelled.has(runs)) {
    spelled.set(runs, runs.replace(/(\D)(\d+)/g, (_, letter, count) => letter.repeat(Number(count))));
  }
  return spelled.get(runs);
}

function similarities(token) {
  const values = [];
  for (let i = 0; i < token.trace.length; i += 3) {
    values.push(parseInt(token.trace.slice(i, i + 3), BASE) / 10000 - 1);
  }
  return values;
}

function laneTitle(lane) {
  return page.view.lanes[lane].title;
}

function tokenAt(place) {
  return place ? page.tokens[place.lane][place.index] : undefined;
}

// A run of equal letters in 1-based layers: "bbrr" -> [["b", 1, 2], ["r", 3, 4]].
function spans(letters) {
  const runs = [];
  [...letters].forEach((letter, i) => {
    const last = runs[runs.length - 1];
    if (last && last[0] === letter) last[2] = i + 1;
    else runs.push([letter, i + 1, i + 1]);
  });
  return runs;
}

function layerSpan(first, last) {
  return first === last ? say("layer.one", {layer: first}) : say("layer.span", {first, last});
}

// A token's text for a sentence: the gap of its leading space as a middle dot.
function named(token) {
  return (token.gap ? "·" : "") + token.text;
}

function never(token) {
  return token.exit === page.view.layers;
}
