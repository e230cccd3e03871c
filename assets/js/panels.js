// The three views of one token: its similarities, its cache column, its alternatives.

const panels = {};

function mountDetails(element) {
  const names = ["trace", "column", "choice"];
  const drawings = make("div", {class: "panels"}, ...names.map(panel));
  element.replaceChildren(textures(), drawings, readoutBlocks(), tokenTable());
  new ResizeObserver(measurePanels).observe(drawings);
  onSelection(drawPanels);
  follow((view) => {
    selectSomething(view);
    drawPanels();
  });
}

function panel(name) {
  const key = name === "trace" ? "panel.trace.empty" : `panel.${name}`;
  const title = make("h2", {}, say(key));
  const note = make("span", {class: "quiet"});
  const body = make("div", {class: "panel-body"});
  panels[name] = {title, note, body, drawn: "", width: 0};
  return make("section", {class: `panel panel-${name}`}, make("div", {class: "panel-head"}, title,
    note), body);
}

// Widths are read only here: reading them at each snapshot would force a layout each time.
function measurePanels() {
  for (const one of Object.values(panels)) one.width = one.body.clientWidth;
  drawPanels();
}

// A panel is drawn again only when what it shows, or its width, has changed.
function drawPanels() {
  if (!panels.trace) return;
  const place = shownPlace();
  const token = tokenAt(place);
  if (!token) return drawHints();
  const beside = tokenAt(besidePlace());
  nameTrace(place, token);
  redraw("trace", place, beside, (width) => traceOf(token, beside, place.lane, width));
  redraw("column", place, null, () => columnOf(token, place));
  redraw("choice", place, null, () => choiceOf(token));
}

function redraw(name, place, beside, drawing) {
  const {body, width} = panels[name];
  const key = [page.run, place.lane, place.index, beside && beside.label, width].join();
  if (!width || panels[name].drawn === key) return; // not measured yet, or nothing new
  panels[name].drawn = key;
  body.replaceChildren(...drawing(width));
}

function nameTrace(place, token) {
  put(panels.trace.title, say("panel.trace", {token: named(token)}));
  const number = say("panel.number", {
    number: place.index + 1, lane: say(`lane.${place.lane}`),
  });
  const pinned = same(place, chosen.pinned) ? ` · ${say("panel.pinned")}` : "";
  put(panels.trace.note, number + pinned);
}

function drawHints() {
  put(panels.trace.title, say("panel.trace.empty"));
  put(panels.trace.note, "");
  for (const name of Object.keys(panels)) {
    if (panels[name].drawn === "hint") continue;
    panels[name].drawn = "hint";
    const hint = name === "trace" ? [make("p", {class: "quiet hint"}, say("panel.hint"))] : [];
    panels[name].body.replaceChildren(...hint);
  }
}
