// The threshold slider on a finished run: where its tokens would leave elsewhere, at once. The text
// stays, its similarities are those of one full-depth pass, and the exit rule is applied anew.

const STEPS = 60; // thresholds in the little chart
const CHART = {width: 320, height: 56, edge: 4};
const estimate = {run: null, traces: [], exits: null, threshold: null, chart: null};
let drawEstimate = () => {};

function mountEstimate(element) {
  const sentence = make("p", {class: "estimate-line", role: "status"});
  const restore = make("button", {type: "button", class: "link-button", hidden: ""},
    say("estimate.restore"));
  const chart = make("div", {class: "estimate-chart"});
  element.replaceChildren(make("div", {class: "estimate"}, chart,
    make("div", {}, sentence, restore)));
  drawEstimate = () => {
    put(sentence, estimateSentence());
    restore.hidden = !estimate.exits;
    const {min, max} = thresholdSlider() || {};
    once(chart, [page.run, estimate.traces.length, estimate.threshold, min, max], estimateChart);
  };
  restore.addEventListener("click", () => tryThreshold(null));
  document.addEventListener("input", (event) => {
    if (event.target.closest && event.target.closest("#threshold")) {
      tryThreshold(Number(event.target.value));
    }
  });
  watchSlider();
  follow((view, fresh) => {
    if (fresh) forgetEstimate();
    if (view.preview && estimate.run !== page.run) readPreview(view.preview);
    drawEstimate();
  });
}

function thresholdSlider() {
  return document.querySelector("#threshold input[type=range]");
}

// Its ends change when the model is ready, and it may be made after this part.
function watchSlider() {
  const box = document.querySelector("#threshold");
  if (!box) return setTimeout(watchSlider, 200);
  const options = {subtree: true, childList: true, attributeFilter: ["min", "max"]};
  const changed = () => {
    nameSlider(box);
    if (page.view) drawEstimate();
  };
  new MutationObserver(changed).observe(box, options);
  changed();
}

function forgetEstimate() {
  Object.assign(estimate, {run: null, traces: [], exits: null, threshold: null});
}

function readPreview(preview) {
  estimate.run = page.run;
  estimate.traces = preview.trace.split("\n").map((trace) => similarities({trace}));
  estimate.chart = null;
}

// The rule is strict, and the prompt pass keeps its depth: it was not run again.
function exitsAt(threshold) {
  const {first} = page.view.preview;
  return estimate.traces.map((values, index) => {
    if (index === 0) return page.tokens.upper[0].exit;
    const found = values.findIndex((value, i) => i + 1 >= first && value > threshold);
    return found < 0 ? values.length : found + 1;
  });
}

// The mean exit layer at each of the thresholds, which rise: no token leaves earlier at the next
// one, so each token's layers are walked through once.
function meansAt(thresholds) {
  const {first} = page.view.preview;
  const decoded = estimate.traces.slice(1);
  const sums = thresholds.map(() => 0);
  for (const values of decoded) {
    let exit = first;
    thresholds.forEach((threshold, i) => {
      while (exit < values.length && values[exit - 1] <= threshold) exit++;
      sums[i] += Math.min(exit, values.length);
    });
  }
  return sums.map((sum) => sum / Math.max(1, decoded.length));
}

function meanExit(exits) {
  const decoded = exits.slice(1);
  return decoded.length ? decoded.reduce((sum, e) => sum + e, 0) / decoded.length : null;
}

// As measured, times what the bytes of weights per token allow.
function rateAt(mean) {
  const {bytes: [fixed, more], rate, mean: measured} = page.view.preview;
  if (!rate || measured === null || !fixed) return null;
  return (rate * (fixed + more * measured)) / (fixed + more * mean);
}

function tryThreshold(threshold) {
  if (!estimate.traces.length || !page.view.preview) return;
  estimate.threshold = threshold;
  estimate.exits = threshold === null ? null : exitsAt(threshold);
  repaintLane("upper");
  drawEstimate();
}

// The exit layer that the cell shows: as estimated where there is an estimate.
function shownExit(lane, index) {
  const known = lane === "upper" && estimate.run === page.run && estimate.exits;
  if (known && index in known) return known[index];
  return page.tokens[lane][index].exit;
}

function estimateSentence() {
  const {lanes, preview, layers, phase} = page.view;
  if (!preview) {
    const ended = phase === "done" && lanes.upper.tokens;
    return say(ended ? "estimate.not_here" : "estimate.none");
  }
  const mean = meanExit(estimate.exits || page.tokens.upper.map((token) => token.exit));
  if (mean === null) return say("estimate.none");
  const words = {layers, mean: mean.toFixed(1)};
  if (!estimate.exits) {
    const last = page.tokens.upper[page.tokens.upper.length - 1];
    return say("estimate.asked", {...words, threshold: last.threshold.toFixed(4)});
  }
  const rate = rateAt(mean);
  const line = say(rate === null ? "estimate.line_exits" : "estimate.line", {
    ...words, threshold: estimate.threshold.toFixed(4),
    rate: rate === null ? "" : rate.toFixed(1),
    change: rate === null ? "" : `${(rate / preview.rate).toFixed(2)}×`,
  });
  return say("estimate.spoken", {label: say("estimate.label"), line});
}

function estimateChart() {
  const slider = thresholdSlider();
  if (!page.view.preview || !slider) return [];
  const [low, high] = [Number(slider.min), Number(slider.max)];
  const {width, height, edge} = CHART;
  const x = (value) => edge + ((width - 2 * edge) * (value - low)) / (high - low);
  const bars = [];
  const middles = Array.from({length: STEPS}, (_, i) => low + ((high - low) * (i + 0.5)) / STEPS);
  const known = estimate.chart && estimate.chart.low === low && estimate.chart.high === high;
  if (!known) estimate.chart = {low, high, means: meansAt(middles)};
  for (let i = 0; i < STEPS; i++) {
    const share = estimate.chart.means[i] / page.view.layers;
    const tall = (height - 14) * share;
    bars.push(draw("rect", {
      x: x(low + ((high - low) * i) / STEPS) + 0.5, y: height - 12 - tall,
      width: (width - 2 * edge) / STEPS - 1, height: tall, class: "estimate-bar",
    }));
  }
  const now = estimate.threshold ?? page.tokens.upper[page.tokens.upper.length - 1].threshold;
  const at = x(Math.min(high, Math.max(low, now)));
  return [draw("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": say("estimate.chart"),
  }, ...bars, draw("path", {d: `M${at} 0V${height - 12}`, class: "estimate-now"}),
  draw("text", {x: edge, y: height - 1, class: "tick"}, low.toFixed(2)),
  draw("text", {x: width - edge, y: height - 1, class: "tick", "text-anchor": "end"},
    high.toFixed(2)))];
}
