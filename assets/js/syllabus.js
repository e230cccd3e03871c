// The seven steps of the lesson: which recorded run each needs, what it shows first and points at,
// what the learner does (read from the page's own state), and the record's numbers for its words.

const CLOSE = 0.9; // a similarity from which step 2 calls a layer's change small
const LOWER = 0.03; // how far below the measured threshold step 6 asks
const NEEDED = {
  whole: ({lanes, preview, difference}) =>
    preview && difference !== null && lanes.lower.policy === "backbone",
  holes: ({lanes, difference}) =>
    difference !== null && lanes.upper.policy === "river" && lanes.lower.policy === "kv-mask",
};

const SYLLABUS = [
  {
    run: "whole", moves: true,
    prepare: () => look({lane: "upper", index: earlyToken()}),
    lit: () => rows.lower.element,
    tasks: {lower: () => looked().lane === "lower"},
    facts: () => tokenFacts(looked()),
  },
  {
    run: "whole", moves: true,
    prepare: () => look({lane: "lower", index: 0}),
    lit: () => panels.trace.section,
    tasks: {three: () => lesson.seen.size >= 3},
    facts: () => traceFacts(looked()),
  },
  {
    run: "whole",
    prepare: () => {
      look({lane: "upper", index: earlyToken() - 1});
      veil(cellAt(guessed()));
    },
    lit: () => (lesson.revealed ? panels.trace.section : cellAt(guessed())),
    tasks: {guess: () => lesson.revealed},
    facts: () => tokenFacts(guessed()),
    guess: exitGuess,
  },
  {
    run: "holes",
    prepare: () => {
      look({lane: "lower", index: page.tokens.lower.length - 1});
      veil(rows.lower.element);
    },
    lit: () => panels.kv.section,
    tasks: {guess: () => lesson.revealed},
    facts: () => cacheFacts(looked()),
    guess: differenceGuess,
  },
  {
    run: "holes", moves: true,
    prepare: () => look({lane: "lower", index: page.view.difference + 1}),
    lit: () => panels.kv.section,
    tasks: {upper: () => looked().lane === "upper"},
    facts: () => cacheFacts(looked()),
  },
  {
    run: "whole",
    prepare: () => look({lane: "upper", index: earlyToken()}),
    lit: () => (lesson.done.has("drag") ? rows.lower.different : thresholdBox()),
    tasks: {
      drag: () => estimate.threshold !== null,
      difference: () => same(looked(), {lane: "lower", index: page.view.difference}),
    },
    facts: speedFacts,
    guess: meanGuess,
  },
  {
    run: "whole",
    prepare: () => look({lane: "upper", index: earlyToken()}),
    lit: () => document.querySelector(lesson.done.size ? ".tile-saved" : ".legend"),
    tasks: {never: () => shownEntries.has(page.view.legend.length - 1)},
    facts: speedFacts,
  },
];

function lessonRun(name) {
  return RECORDED.findIndex(NEEDED[name]);
}

function look(place) {
  chosen.pins = [];
  moveTabStop(place);
  select(place);
}

// What the learner has chosen; a passing pointer does not count.
function looked() {
  return chosen.pins.at(-1) || chosen.selected || {};
}

// A decoded token of the lane above that left in the middle, as the estimate says too.
function earlyToken() {
  const {layers} = page.view;
  const tokens = page.tokens.upper;
  const [low, high] = [layers / 4, (3 * layers) / 4];
  const exits = exitsAt(tokens[0].threshold);
  const fits = ({exit, forced}, i) => i > 0 && !forced && exit === exits[i];
  const found = tokens.findIndex((token, i) => fits(token, i) && token.exit > low && token.exit < high);
  return found > 0 ? found : Math.max(1, tokens.findIndex(fits));
}

function guessed() {
  return {lane: "upper", index: earlyToken()};
}

function thresholdBox() {
  return document.querySelector("#threshold");
}

function exitGuess(width) {
  const token = tokenAt(guessed());
  return {
    truth: token.exit, low: 1, high: page.view.layers,
    chart: [guessChart(token, estimate.traces[guessed().index], width)],
    after: () => look(guessed()),
  };
}

function differenceGuess() {
  const {difference} = page.view;
  return {
    truth: difference + 1, low: 1, high: page.tokens.lower.length, chart: [],
    after: () => look({lane: "lower", index: difference}),
  };
}

function meanGuess() {
  const mean = meanExit(exitsAt(lowerThreshold()));
  return {truth: Math.round(mean), low: 1, high: page.view.layers, chart: [], after: () => {}};
}

function lowerThreshold() {
  return page.tokens.upper[0].threshold - LOWER;
}

function tokenFacts(place) {
  const token = tokenAt(place);
  if (!token) return {};
  const value = similarities(token)[token.exit - 1];
  return {
    token: named(token), number: place.index + 1, exit: token.exit, lane: laneTitle(place.lane),
    threshold: token.threshold.toFixed(3), value: value === undefined ? "—" : value.toFixed(4),
  };
}

function traceFacts(place) {
  const token = tokenAt(place);
  if (!token) return {};
  const values = similarities(token);
  const least = values.indexOf(Math.min(...values));
  return {
    token: named(token), run: values.length, close: CLOSE,
    count: values.filter((value) => value > CLOSE).length,
    layer: least + 1, least: values[least].toFixed(2).replace("-", "−"),
  };
}

// What the pass that chose this token found in the cache.
function cacheFacts(place) {
  const token = tokenAt(place);
  if (!token) return {};
  const written = Math.min(rowCount(place.lane), promptLength(place.lane) + place.index);
  const counts = sourceCounts(place.lane, written, place.index);
  return {
    number: place.index + 1, token: named(token), lane: laneTitle(place.lane),
    slots: written * page.view.layers, missing: counts.m || 0, river: counts.r || 0,
  };
}

// As measured, and the most that the bytes of weights per token would allow.
function speedFacts() {
  const {preview, layers, readouts, legend, difference} = page.view;
  const value = (key) => readouts.tiles.find((one) => one.key === key).value;
  const [fixed, more] = preview.bytes;
  const bound = (exit) => ((fixed + more * layers) / (fixed + more * exit)).toFixed(2);
  const half = Math.floor(layers / 2);
  return {
    threshold: page.tokens.upper[0].threshold.toFixed(3), lower_threshold: lowerThreshold().toFixed(3),
    rate: value("upper_rate"), other: value("lower_rate"), saved: value("saved"),
    mean: preview.mean.toFixed(1), bound: bound(preview.mean), half, most: bound(half),
    never: legend.at(-1).count, tokens: page.tokens.upper.length,
    same: difference === null ? page.tokens.upper.length : difference,
  };
}
