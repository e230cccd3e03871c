// Both lanes on one axis of seconds, from the recorded times: a cell is as wide as the pass that
// chose its token. The prompt pass is told apart and takes no room.

const RACE = {height: 26, gap: 22, top: 18, axis: 20, left: 4, right: 8};
const race = {run: null, at: 0, playing: false, last: 0, ends: {}, end: 0, width: 0, nodes: null};

function raceBlock() {
  const nodes = raceNodes();
  race.nodes = nodes;
  nodes.play.addEventListener("click", pressPlay);
  nodes.slider.addEventListener("input", () => {
    stopRace();
    seekRace(Number(nodes.slider.value));
  });
  nodes.canvas.addEventListener("click", chooseInRace);
  new ResizeObserver(() => {
    race.width = nodes.canvas.parentElement.clientWidth;
    drawRace();
  }).observe(nodes.canvas.parentElement);
  follow(beginRace);
  return nodes.section;
}

function raceNodes() {
  const play = make("button", {type: "button", class: "race-play"}, playWord());
  const slider = make("input", {
    type: "range", class: "race-slider", min: 0, step: "any", "aria-label": say("race.slider"),
  });
  const clock = make("output", {class: "race-clock"});
  const canvas = make("canvas", {role: "img", class: "race-canvas"});
  const lanes = Object.fromEntries(LANES.map((lane) => [lane, {
    head: make("p", {class: "race-head"}), text: make("p", {class: "race-text", lang: UNKNOWN}),
  }]));
  const section = make("section", {class: "race", hidden: "", "aria-labelledby": "race-title"},
    make("h2", {id: "race-title"}, say("race.title")),
    make("p", {class: "quiet"}, say("race.label")),
    make("div", {class: "race-controls"}, play, slider, clock),
    make("div", {class: "race-strip"}, canvas),
    make("div", {class: "race-lanes"}, ...LANES.map((lane) =>
      make("div", {class: "race-lane"}, lanes[lane].head, lanes[lane].text))));
  return {section, play, slider, clock, canvas, lanes};
}

function playWord() {
  if (stillRace()) return say("race.step");
  return say(race.playing ? "race.pause" : "race.play");
}

function stillRace() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// A finished run is on show: its end is drawn, and nothing moves until it is asked to.
function beginRace(view, fresh) {
  const {section, slider} = race.nodes;
  section.hidden = !view.comparison;
  if (fresh) race.run = null;
  if (!view.comparison || race.run === view.run) return;
  stopRace();
  race.run = view.run;
  for (const lane of LANES) race.ends[lane] = page.tokens[lane].at(-1).seconds;
  race.end = Math.max(race.ends.upper, race.ends.lower);
  slider.max = race.end;
  for (const lane of LANES) race.nodes.lanes[lane].shown = 0;
  for (const lane of LANES) race.nodes.lanes[lane].text.replaceChildren(new Text(""));
  race.width = race.nodes.canvas.parentElement.clientWidth;
  seekRace(race.end);
}

function pressPlay() {
  if (stillRace()) return stepRace();
  if (race.playing) return stopRace();
  if (race.at >= race.end) seekRace(0);
  race.playing = true;
  race.last = performance.now();
  put(race.nodes.play, playWord());
  requestAnimationFrame(advanceRace);
}

function advanceRace(now) {
  if (!race.playing) return;
  seekRace(Math.min(race.end, race.at + Math.max(0, now - race.last) / 1000));
  race.last = now;
  if (race.at >= race.end) stopRace();
  else requestAnimationFrame(advanceRace);
}

function stopRace() {
  race.playing = false;
  put(race.nodes.play, playWord());
}

// To the next token of either lane; from the end to the start.
function stepRace() {
  if (race.at >= race.end) return seekRace(0);
  const next = LANES.map((lane) => page.tokens[lane][countAt(lane, race.at)])
    .filter(Boolean).map((token) => token.seconds);
  seekRace(Math.min(race.end, ...next));
}

function seekRace(seconds) {
  race.at = seconds;
  const {slider, clock} = race.nodes;
  slider.value = seconds;
  const words = {seconds: seconds.toFixed(2)};
  const counts = LANES.map((lane) => countAt(lane, seconds));
  put(clock, say("race.clock", words));
  slider.setAttribute("aria-valuetext", say("race.spoken", {
    ...words, upper: counts[0], lower: counts[1],
    first: laneTitle("upper"), second: laneTitle("lower"),
  }));
  LANES.forEach((lane, i) => growText(lane, counts[i]));
  drawRace();
}

// Tokens chosen by then: the first was chosen by the prompt pass, at 0.
function countAt(lane, seconds) {
  const tokens = page.tokens[lane];
  let [low, high] = [0, tokens.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tokens[middle].seconds <= seconds + 1e-9) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Only what is new is added: setting a long text anew in each frame would cost a layout each.
function growText(lane, count) {
  const one = race.nodes.lanes[lane];
  const tokens = page.tokens[lane];
  const words = {policy: laneTitle(lane), count, all: tokens.length};
  const done = count === tokens.length;
  put(one.head, say(done ? "race.done" : "race.head", {
    ...words, seconds: race.ends[lane].toFixed(2), prefill: prefillOf(lane),
  }));
  const node = one.text.firstChild;
  const said = (from) => tokens.slice(from, count).map(plainText).join("");
  if (count > one.shown) node.appendData(said(one.shown));
  else if (count < one.shown) node.data = said(0);
  if (count !== one.shown) one.text.scrollTop = one.text.scrollHeight;
  one.shown = count;
}

function plainText({text, kind, gap}) {
  return kind === "empty" ? "" : (gap ? " " : "") + text.replaceAll("↵", "↵\n");
}

function prefillOf(lane) {
  const seconds = page.view.comparison.prefill[lane];
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(2)} s`;
}
