// The guided lesson: a docked panel, seven steps over recorded runs. It changes nothing for good:
// closing it brings back what was on show. The page below stays usable all the while.

const SIDE = "(min-width: 1100px)";
const lesson = {
  open: false, step: 0, seen: new Set(), done: new Set(), revealed: false, before: null, parts: {},
};

function lessonButton() {
  const button = make("button", {
    type: "button", class: "lesson-open", "aria-expanded": "false", "aria-haspopup": "dialog",
  }, say("lesson.open"));
  button.hidden = Object.keys(NEEDED).some((name) => lessonRun(name) < 0);
  button.addEventListener("click", () => (lesson.open ? closeLesson() : openLesson(0)));
  lesson.button = button;
  return button;
}

function lessonPanel() {
  const parts = lessonParts();
  Object.assign(lesson, {parts, panel: parts.panel});
  onSelection(followLesson);
  follow(followLesson);
  for (const name of ["click", "input", "change"]) {
    document.addEventListener(name, () => setTimeout(followLesson));
  }
  document.addEventListener("keydown", onLessonEscape, true);
  matchMedia(SIDE).addEventListener("change", dockLesson);
  new ResizeObserver(dockLesson).observe(parts.panel);
  return [parts.panel, spotlightRing()];
}

// `?lesson=4` opens step 4, once everything that a step may point at is there.
function lessonFromLink() {
  const asked = new URLSearchParams(location.search).get("lesson");
  const ready = lesson.panel && maps.kv && rows.upper && document.querySelector(".estimate");
  if (asked === null || !ready || lesson.linked || lesson.button.hidden) return;
  lesson.linked = true;
  const number = Number(asked);
  openLesson(Number.isInteger(number) && SYLLABUS[number - 1] ? number - 1 : 0);
}

function openLesson(step) {
  if (!maps.kv || !page.view) return;
  lesson.before = rememberPage();
  lesson.open = true;
  lesson.button.setAttribute("aria-expanded", "true");
  lesson.panel.hidden = false;
  dockLesson();
  showStep(step);
}

function closeLesson() {
  lesson.open = false;
  lesson.button.setAttribute("aria-expanded", "false");
  lesson.panel.hidden = true;
  shineOff();
  unveil();
  dockLesson();
  linkToStep(null);
  if (onLessonRun()) restorePage(lesson.before);
  lesson.button.focus();
}

function showStep(number) {
  if (number >= SYLLABUS.length) return closeLesson();
  const step = SYLLABUS[number];
  unveil();
  Object.assign(lesson, {step: number, revealed: false});
  lesson.seen = new Set();
  lesson.done = new Set();
  lesson.beginning = true;
  beginStep(step);
  lesson.beginning = false;
  writeStep(number, step);
  linkToStep(number);
  shineOn(step.lit);
  followLesson();
  lesson.parts.title.focus({preventScroll: true});
}

// The step's run, without the marks that the learner has left.
function beginStep(step) {
  origins.number = lessonRun(step.run);
  showOrigin("recorded");
  tryThreshold(null);
  shownEntries.clear();
  drawLegend(document.querySelector(".legend"), page.view.legend);
  fadeCells();
  step.prepare();
}

function onLessonRun() {
  return page.run === RECORDED[lessonRun(SYLLABUS[lesson.step].run)].run;
}

// After anything on the page has changed: what is done, what the record says, what to point at.
function followLesson() {
  if (!lesson.open || lesson.beginning) return;
  const step = SYLLABUS[lesson.step];
  const here = onLessonRun();
  lesson.parts.away.hidden = here;
  if (!here) return;
  const place = looked();
  if (tokenAt(place)) lesson.seen.add(`${place.lane}${place.index}`);
  for (const [name, done] of Object.entries(step.tasks)) if (done()) lesson.done.add(name);
  markTasks(step);
}

function revealGuess(after) {
  unveil();
  lesson.revealed = true;
  after();
  followLesson();
}

function veil(element) {
  element.classList.add("veiled");
}

function unveil() {
  for (const element of document.querySelectorAll(".veiled")) element.classList.remove("veiled");
}

// At the side where there is room, else along the bottom; the page keeps clear of it.
function dockLesson() {
  const side = matchMedia(SIDE).matches;
  const {body, documentElement: root} = document;
  if (lesson.open) body.dataset.lesson = side ? "side" : "bottom";
  else delete body.dataset.lesson;
  const height = lesson.open && !side ? lesson.panel.offsetHeight : 0;
  body.style.setProperty("--lesson-height", `${height}px`);
  root.style.scrollPaddingBottom = `${height}px`;
}

// Where Escape has a nearer meaning (a pin, a list, a text, the enlarged panel) it keeps it.
function onLessonEscape(event) {
  if (event.key !== "Escape" || !lesson.open || enlarged.name) return;
  const typing = event.target.closest && event.target.closest("textarea, select, [role=listbox]");
  if (typing || (chosen.pins.length && placeOf(event.target))) return;
  event.preventDefault();
  closeLesson();
}

function rememberPage() {
  const slider = document.querySelector("#threshold input[type=range]");
  return {
    shown: origins.shown, number: origins.number, run: page.run, selected: chosen.selected,
    pins: chosen.pins, entries: [...shownEntries], threshold: estimate.threshold,
    slider: slider && slider.value,
  };
}

function restorePage(before) {
  restoreSlider(before.slider);
  origins.number = before.number;
  if (before.shown === "live") showOrigin("live");
  else showOrigin("recorded");
  if (page.run !== before.run) return; // a live run that has gone on or begun meanwhile
  Object.assign(chosen, {selected: before.selected, pins: before.pins, hovered: null});
  if (before.selected) moveTabStop(before.selected);
  announce();
  tryThreshold(before.threshold);
  shownEntries.clear();
  before.entries.forEach((entry) => shownEntries.add(entry));
  drawLegend(document.querySelector(".legend"), page.view.legend);
  fadeCells();
}

function restoreSlider(value) {
  const slider = document.querySelector("#threshold input[type=range]");
  if (!slider || slider.value === value) return;
  slider.value = value;
  slider.dispatchEvent(new Event("input", {bubbles: true}));
}

function lessonLink(number) {
  const link = new URL(location.href);
  if (number === null) link.searchParams.delete("lesson");
  else link.searchParams.set("lesson", number + 1);
  return link.href;
}

function linkToStep(number) {
  try {
    history.replaceState(history.state, "", lessonLink(number));
  } catch (error) {
    if (error.name !== "SecurityError") throw error; // a page from disk may keep its address
  }
}
