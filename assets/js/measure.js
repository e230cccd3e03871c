// Work on the run on show that the server does on request: how far it is, and what came of it. The
// badge beside the speeds says whether they were measured with repeats.

const tasks = {ask: null, views: {}};
const taskFollowers = [];

function mountTasks(props, watch, trigger) {
  tasks.ask = (kind) => {
    const view = {kind, run: page.run, phase: "sent", said: say("status.sent"), share: 0, error: "",
      result: {}};
    takeTask(view);
    trigger("submit", {kind, run: page.run});
  };
  watch("value", () => props.value && takeTask(JSON.parse(props.value)));
  for (const update of taskFollowers) update();
}

function takeTask(view) {
  tasks.views[view.kind] = view;
  for (const update of taskFollowers) update();
}

// The newest word on such work for the run on show, if there is any.
function taskOf(kind) {
  const view = tasks.views[kind];
  return view && view.run === page.run ? view : null;
}

function busyTask(kind) {
  const task = taskOf(kind);
  return Boolean(task) && ["sent", "waiting", "working"].includes(task.phase);
}

function measuredFor(view) {
  const task = tasks.views.measure;
  return task && task.run === view.run && task.phase === "done" ? task.result : {};
}

function onMeasured(update) {
  taskFollowers.push(() => page.view && update(page.view));
}

// The tiles under the badge, and where that says "measured" those that are still of one run.
function tilesOf(view) {
  const measured = measuredFor(view).tiles;
  if (!measured) return [view.readouts.tiles, []];
  const keys = measured.map(({key}) => key);
  return [measured, view.readouts.tiles.filter(({key}) => !keys.includes(key))];
}

// Whether numbers are measured or those of one run.
function measureBadge(words = "") {
  return make("span", {class: words ? "measure-badge is-measured" : "measure-badge"},
    words || say("measure.quick"));
}

// A button that starts work of one kind, and while it is at work stops it.
function taskControl(kind) {
  const button = make("button", {type: "button", class: `${kind}-button`});
  const bar = make("progress", {max: 1, value: 0, "aria-label": say(`${kind}.progress`)});
  const said = make("span", {class: "quiet", role: "status"});
  const wrong = make("p", {class: "bad", role: "alert"});
  button.addEventListener("click", () => {
    if (busyTask(kind)) document.getElementById("stop").click();
    else tasks.ask(kind);
  });
  const update = () => {
    const [task, busy] = [taskOf(kind), busyTask(kind)];
    put(button, say(busy ? `${kind}.stop` : `${kind}.button`));
    button.hidden = !tasks.ask || !page.view || !page.view.comparison || Boolean(page.view.recorded);
    button.disabled = !busy && Object.keys(tasks.views).some(busyTask);
    bar.hidden = !busy;
    bar.value = task ? task.share : 0;
    put(said, busy || (task && task.phase === "stopped") ? task.said : "");
    put(wrong, task ? task.error : "");
  };
  follow(update);
  taskFollowers.push(update);
  return {button, bar, said, wrong};
}

function measureBar() {
  const badge = make("span", {class: "measure-badge"});
  const {button, bar, said, wrong} = taskControl("measure");
  const facts = make("details", {class: "measure-facts", hidden: ""});
  button.title = say("measure.about");
  const show = (view) => {
    const found = measuredFor(view);
    put(badge, found.badge || say("measure.quick"));
    badge.classList.toggle("is-measured", Boolean(found.badge));
    facts.hidden = !found.facts;
    if (found.facts) {
      once(facts, found.facts, () => [make("summary", {}, say("measure.details")),
        factList(found.facts)]);
    }
  };
  follow(show);
  onMeasured(show);
  const line = make("div", {class: "measure-line"}, badge, button, bar, said);
  return make("div", {class: "measure"}, line, wrong, facts);
}
