// Predict, then reveal: a guessed number is compared with what the record says, kindly.

const NEAR = 0.1; // of the range: still called close

// `ask` is the question; `truth` the record's number within `low`..`high`; `reveal` is told when.
function guessBox({ask, truth, low, high, chart, reveal}) {
  const input = make("input", {
    type: "number", min: low, max: high, step: 1, id: "lesson-guess", inputmode: "numeric",
    "aria-describedby": "lesson-verdict",
  });
  const button = make("button", {type: "submit", class: "lesson-button"}, say("lesson.reveal"));
  const verdict = make("p", {id: "lesson-verdict", class: "lesson-verdict", role: "status"});
  const form = make("form", {class: "lesson-guess", novalidate: ""},
    ...chart, make("label", {for: "lesson-guess"}, ask), input, button, verdict);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const guess = readGuess(input.value, low, high);
    input.setAttribute("aria-invalid", String(guess === undefined));
    if (guess === undefined) return put(verdict, say("lesson.guess.bad", {low, high}));
    put(verdict, guessVerdict(guess, truth, high - low));
    reveal();
  });
  return form;
}

// Nothing typed is null: the answer is shown all the same. Not a number in the range: undefined.
function readGuess(text, low, high) {
  if (text.trim() === "") return null;
  const guess = Number(text);
  return Number.isInteger(guess) && guess >= low && guess <= high ? guess : undefined;
}

function guessVerdict(guess, truth, range) {
  if (guess === null) return say("lesson.guess.none", {truth});
  const far = Math.abs(guess - truth);
  const kind = far === 0 ? "exact" : far <= Math.max(1, NEAR * range) ? "near" : "far";
  return say(`lesson.guess.${kind}`, {truth, guess});
}

// All layers of a pass against the threshold, without saying where it left.
function guessChart(token, values, width) {
  const frame = scales(token, values, "upper", {width, height: HEIGHT});
  return draw("svg", {
    width, height: HEIGHT, role: "img", class: "trace",
    "aria-label": say("trace.aria", {values: listed(values.map((v) => v.toFixed(3)))}),
  }, ...axes(frame), ...thresholdLine(frame), line(values, frame, "trace-line"),
  ...dots(values, frame));
}
