// Recorded or Live: which run the page shows. Both pass through `receive`. Live snapshots are kept
// while a recorded run is on show; the bar always tells of the live model.

const origins = {shown: RECORDED.length ? "recorded" : "live", live: null, number: 0};
const liveFollowers = [];
let drawSwitch = () => {};
let addRecorded = () => {};

function followLive(update) {
  liveFollowers.push(update);
  if (origins.live) update(origins.live);
}

// A snapshot from the server, or the page's own word that Run was pressed.
function arrive(view) {
  origins.live = view;
  for (const update of liveFollowers) update(view);
  if (origins.shown === "live") receive(view);
  else if (!page.view) showRecorded();
}

function showRecorded() {
  receive(RECORDED[origins.number]);
}

function showOrigin(name) {
  if (name === "recorded") {
    origins.shown = name;
    showRecorded();
  } else if (origins.shown !== name) {
    origins.shown = name;
    if (origins.live) receive(origins.live);
  }
  drawSwitch();
}

function recordedSwitch() {
  const buttons = ["recorded", "live"].map(originButton);
  const chooser = make("select", {class: "run-chooser", "aria-label": say("recorded.chooser")},
    ...RECORDED.map(runOption));
  const label = make("span", {class: "quiet recorded-label"});
  chooser.addEventListener("change", () => {
    origins.number = Number(chooser.value);
    showOrigin("recorded");
  });
  addRecorded = (view) => {
    origins.number = RECORDED.push(view) - 1;
    chooser.append(runOption(view, origins.number));
    showOrigin("recorded");
  };
  drawSwitch = () => {
    box.hidden = RECORDED.length === 0;
    chooser.value = origins.number;
    const recorded = origins.shown === "recorded";
    buttons.forEach((button) =>
      button.setAttribute("aria-pressed", String(button.dataset.origin === origins.shown)));
    chooser.value = String(origins.number);
    chooser.hidden = !recorded || RECORDED.length < 2;
    put(label, recorded ? RECORDED[origins.number].recorded.label : say("recorded.live"));
  };
  const group = make("div", {class: "origins", role: "group", "aria-label": say("recorded.switch")},
    ...buttons);
  const box = make("div", {class: "recorded-bar"}, group, chooser, label);
  drawSwitch();
  return box;
}

function runOption(view, number) {
  return make("option", {value: number}, view.recorded.title);
}

function originButton(name) {
  const key = name === "live" ? "recorded.live_button" : "recorded.recorded";
  const button = make("button", {type: "button", class: "origin-button", "data-origin": name},
    say(key));
  button.addEventListener("click", () => showOrigin(name));
  return button;
}
