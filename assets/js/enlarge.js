// One panel over the whole window, and back: the panel itself moves into a dialog, so that what it
// shows stays alive. Escape closes; the focus returns to the button.

const enlarged = {name: "", dialog: null, gap: null, height: 0};

function enlargeDialog() {
  enlarged.dialog = make("dialog", {class: "enlarged"});
  enlarged.dialog.addEventListener("close", putBack);
  enlarged.dialog.addEventListener("keydown", stepAside);
  return enlarged.dialog;
}

function enlargeButton(name) {
  const button = make("button", {type: "button", class: "enlarge"}, say("enlarge.open"));
  button.setAttribute("aria-label", say("enlarge.label", {panel: say(`enlarge.${name}`)}));
  button.addEventListener("click", () => {
    if (enlarged.name) enlarged.dialog.close();
    else enlarge(name, button);
  });
  return button;
}

function enlarge(name, button) {
  const {section} = panels[name];
  const gap = make("div", {class: "panel-gap"});
  gap.style.height = `${section.offsetHeight}px`;
  section.replaceWith(gap);
  Object.assign(enlarged, {name, gap, button});
  enlarged.dialog.setAttribute("aria-label", say(`enlarge.${name}`));
  enlarged.dialog.append(section);
  enlarged.dialog.showModal();
  relabel(say("enlarge.close"), say("enlarge.close"));
}

function putBack() {
  const {name, gap} = enlarged;
  if (!name) return;
  gap.replaceWith(panels[name].section);
  Object.assign(enlarged, {name: "", gap: null});
  relabel(say("enlarge.open"), say("enlarge.label", {panel: say(`enlarge.${name}`)}));
}

function relabel(text, name) {
  const {button} = enlarged;
  put(button, text);
  button.setAttribute("aria-label", name);
  measurePanels();
  button.focus();
}

// What a panel may draw in: most of the window's height while it is enlarged.
function heightOf(name) {
  return name === enlarged.name ? Math.max(HEIGHT, window.innerHeight - 230) : HEIGHT;
}

// The lanes cannot be reached behind the dialog: its arrow keys move the selection.
function stepAside(event) {
  const place = chosen.selected;
  if (!place || event.target.closest(".map-scroll")) return;
  const next = event.key.startsWith("Arrow") && target(place, event.key);
  if (!next || !cellAt(next)) return;
  event.preventDefault();
  moveTabStop(next);
  select(next);
}
