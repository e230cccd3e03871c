// The views of one token, its similarities, its cache column, its alternatives, and the two maps.

const panels = {};

function mountDetails(element) {
  const token = make("div", {class: "panels"}, ...["trace", "column", "choice"].map(panel));
  const maps = make("div", {class: "panels panels-maps"}, ...["heat", "kv"].map(panel));
  for (const name of ["trace", "heat", "kv"]) panels[name].head.append(enlargeButton(name));
  element.replaceChildren(textures(), token, maps, enlargeDialog(), raceBlock(), comparisonBlock(),
    readoutBlocks(), savedBlock(), tokenTable());
  panels.choice.section.append(safeBlock());
  mountMap("heat", heatMap);
  mountMap("kv", kvMap);
  const widths = new ResizeObserver(measurePanels);
  for (const one of Object.values(panels)) widths.observe(one.body);
  watchTheme();
  onSelection(drawPanels);
  onSelection(requestMaps);
  followCalmly((view) => {
    selectSomething(view);
    drawPanels();
    requestMaps();
  });
}

function panel(name) {
  const key = name === "trace" ? "panel.trace.empty" : `panel.${name}`;
  const title = make("h2", {}, say(key));
  const note = make("span", {class: "quiet"});
  const body = make("div", {class: "panel-body"});
  const head = make("div", {class: "panel-head"}, title, note);
  const section = make("section", {class: `panel panel-${name}`}, head, body);
  panels[name] = {section, head, title, note, body, drawn: "", width: 0, height: HEIGHT};
  return section;
}

// Widths are read only here: reading them at each snapshot would force a layout each time.
function measurePanels() {
  let changed = false;
  for (const [name, one] of Object.entries(panels)) {
    const [width, height] = [one.body.clientWidth, heightOf(name)];
    changed ||= width !== one.width || height !== one.height;
    Object.assign(one, {width, height});
  }
  if (!changed) return;
  drawPanels();
  requestMaps();
}

// A panel is drawn again only when what it shows, or its width, has changed.
function drawPanels() {
  if (!panels.trace) return;
  const place = shownPlace();
  const token = tokenAt(place);
  if (!token) return drawHints();
  const beside = besidePlaces().map(tokenAt);
  nameTrace(place, token);
  redraw("trace", place, beside, (size) => traceOf(token, beside, place.lane, size));
  redraw("column", place, [], () => columnOf(token, place));
  redraw("choice", place, [], () => choiceOf(token, place.lane));
}

function redraw(name, place, beside, drawing) {
  const {body, width, height} = panels[name];
  const others = beside.map((token) => token.label);
  const key = [page.run, place.lane, place.index, ...others, width, height].join();
  if (!width || panels[name].drawn === key) return; // not measured yet, or nothing new
  panels[name].drawn = key;
  body.replaceChildren(...drawing({width, height}));
}

function nameTrace(place, token) {
  put(panels.trace.title, say("panel.trace", {token: named(token)}));
  const number = say("panel.number", {
    number: place.index + 1, lane: laneTitle(place.lane),
  });
  const pinned = isPinned(place) ? ` · ${say("panel.pinned")}` : "";
  put(panels.trace.note, number + pinned);
}

function drawHints() {
  put(panels.trace.title, say("panel.trace.empty"));
  put(panels.trace.note, "");
  for (const name of ["trace", "column", "choice"]) {
    if (panels[name].drawn === "hint") continue;
    panels[name].drawn = "hint";
    const hint = name === "trace" ? [make("p", {class: "quiet hint"}, say("panel.hint"))] : [];
    panels[name].body.replaceChildren(...hint);
  }
}
