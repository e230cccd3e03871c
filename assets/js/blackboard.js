// What the lesson's panel says: its elements, and a step's words written into them.

const QUESTIONS = [1, 2, 3];

function lessonParts() {
  const title = make("h2", {id: "lesson-title", tabindex: "-1"});
  const count = make("p", {class: "quiet lesson-count"});
  const close = lessonControl("lesson.close", closeLesson);
  const [plain, term, fact] = ["plain", "term", "fact"].map((name) =>
    make("p", {class: `lesson-${name}`}));
  fact.setAttribute("role", "status");
  const [tasks, guess, moves] = [make("ul", {class: "lesson-tasks"}), make("div"), tokenMoves()];
  const away = make("p", {class: "lesson-away", role: "status", hidden: ""}, say("lesson.away"),
    lessonControl("lesson.again", () => showStep(lesson.step)));
  const questions = make("div", {class: "lesson-questions"});
  const notes = make("div");
  const body = make("div", {class: "lesson-body"}, plain, term, away, tasks, guess, moves, fact,
    questions, make("details", {class: "lesson-notes"},
      make("summary", {}, say("lesson.notes")), notes));
  const foot = lessonFoot();
  const panel = make("section", {
    class: "lesson", role: "dialog", "aria-labelledby": "lesson-title", hidden: "",
  }, make("div", {class: "lesson-head"}, count, close, title), body, foot.element);
  return {panel, title, count, plain, term, fact, tasks, guess, moves, away, questions, notes, body,
    ...foot};
}

function lessonControl(key, act) {
  const button = make("button", {type: "button", class: "lesson-button"}, say(key));
  button.addEventListener("click", act);
  return button;
}

function lessonFoot() {
  const back = lessonControl("lesson.back", () => showStep(lesson.step - 1));
  const skip = lessonControl("lesson.skip", () => showStep(lesson.step + 1));
  const next = lessonControl("lesson.next", () => showStep(lesson.step + 1));
  next.classList.add("lesson-next");
  const dots = SYLLABUS.map((step, i) => lessonDot(i));
  const list = make("ol", {class: "lesson-dots", "aria-label": say("lesson.steps")},
    ...dots.map((dot) => make("li", {}, dot)));
  const link = lessonLinkLine();
  const element = make("div", {class: "lesson-foot"}, list, link,
    make("div", {class: "lesson-nav"}, back, skip, next));
  return {element, back, skip, next, dots};
}

function lessonDot(number) {
  const name = say("lesson.dot", {number: number + 1, title: say(`lesson.${number + 1}.title`)});
  const dot = make("button", {
    type: "button", class: "lesson-dot", "aria-label": name, title: name,
  });
  dot.addEventListener("click", () => showStep(number));
  return dot;
}

// Where copying is not allowed, the link stands there to be copied by hand.
function lessonLinkLine() {
  const said = make("span", {class: "quiet", role: "status"});
  const byHand = make("input", {
    type: "text", readonly: "", hidden: "", class: "lesson-link", "aria-label": say("lesson.link"),
  });
  const copy = async () => {
    byHand.hidden = true;
    try {
      await navigator.clipboard.writeText(lessonLink(lesson.step));
      put(said, say("lesson.copied"));
    } catch {
      put(said, say("lesson.by_hand"));
      Object.assign(byHand, {hidden: false, value: lessonLink(lesson.step)});
      byHand.select();
    }
    setTimeout(() => put(said, ""), 4000);
  };
  return make("div", {class: "lesson-link-line"}, lessonControl("lesson.copy", copy), said, byHand);
}

// The same moves as the arrow keys in the lanes, so that what is pointed at can stay in view.
function tokenMoves() {
  const across = ({lane}) => (lane === "upper" ? "ArrowDown" : "ArrowUp");
  const move = (key) => () => {
    const place = chosen.selected;
    const next = place && target({...place}, key(place));
    if (!next || !cellAt(next)) return;
    moveTabStop(next);
    chosen.pins = [];
    select(next);
  };
  return make("div", {class: "lesson-moves", role: "group", "aria-label": say("lesson.moves")},
    lessonControl("lesson.previous_token", move(() => "ArrowLeft")),
    lessonControl("lesson.next_token", move(() => "ArrowRight")),
    lessonControl("lesson.other_lane", move(across)));
}

function writeStep(number, step) {
  const {parts} = lesson;
  const words = stepWords(step);
  const tell = (name) => say(`lesson.${number + 1}.${name}`, words);
  put(parts.count, say("lesson.count", {number: number + 1, steps: SYLLABUS.length}));
  for (const name of ["title", "plain", "term"]) put(parts[name], tell(name));
  parts.tasks.replaceChildren(...Object.keys(step.tasks).map((name) => taskLine(name, tell)));
  parts.guess.replaceChildren(...(step.guess ? [stepGuess(step, tell)] : []));
  parts.moves.hidden = !step.moves;
  parts.questions.replaceChildren(make("h3", {}, say("lesson.questions")),
    ...QUESTIONS.map((i) => make("details", {}, make("summary", {}, tell(`q${i}`)),
      make("p", {}, tell(`a${i}`)))));
  parts.notes.replaceChildren(...["time", "say", "wrong"].map((name) =>
    make("p", {}, make("strong", {}, say(`lesson.notes.${name}`)), " ", tell(name))));
  parts.back.disabled = number === 0;
  put(parts.next, say(number + 1 < SYLLABUS.length ? "lesson.next" : "lesson.finish"));
  parts.dots.forEach((dot, i) => dot.toggleAttribute("aria-current", i === number));
  parts.dots[number].setAttribute("aria-current", "step");
  parts.body.scrollTop = 0;
}

function stepWords(step) {
  const {layers, lanes, recorded} = page.view;
  return {
    layers, upper: lanes.upper.title, lower: lanes.lower.title, ...recorded, ...step.facts(),
  };
}

function taskLine(name, tell) {
  const tick = make("span", {class: "lesson-tick", "aria-hidden": "true"});
  return make("li", {"data-task": name}, tick, make("span", {class: "sr"}),
    make("span", {}, tell(`task.${name}`)));
}

function stepGuess(step, tell) {
  const guess = step.guess(Math.max(240, lesson.parts.body.clientWidth - 36));
  return guessBox({...guess, ask: tell("ask"), reveal: () => revealGuess(guess.after)});
}

function markTasks(step) {
  const {parts, done} = lesson;
  for (const item of parts.tasks.children) {
    const ticked = done.has(item.dataset.task);
    item.classList.toggle("done", ticked);
    put(item.querySelector(".lesson-tick"), ticked ? "✓" : "○");
    put(item.querySelector(".sr"), say(ticked ? "lesson.done" : "lesson.todo"));
  }
  const finished = done.size === Object.keys(step.tasks).length;
  parts.next.disabled = !finished;
  parts.skip.hidden = finished;
  const number = lesson.step + 1;
  const told = finished || !step.guess;
  put(parts.fact, told ? say(`lesson.${number}.fact`, stepWords(step)) : "");
}
