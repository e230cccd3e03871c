// The race's drawing: a row of cells per lane, the axis, and a line at the moment on show.

function raceRow(lane) {
  return RACE.top + LANES.indexOf(lane) * (RACE.height + RACE.gap);
}

function raceX(seconds) {
  const room = race.width - RACE.left - RACE.right;
  return RACE.left + (race.end > 0 ? (room * seconds) / race.end : 0);
}

function raceHeight() {
  return RACE.top + 2 * RACE.height + RACE.gap + 8 + RACE.axis;
}

function drawRace() {
  const {canvas, section} = race.nodes;
  if (!race.width || section.hidden || !race.run) return;
  const [width, height, ratio] = [race.width, raceHeight(), window.devicePixelRatio || 1];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    Object.assign(canvas.style, {width: `${width}px`, height: `${height}px`});
    canvas.setAttribute("aria-label", say("race.canvas"));
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  for (const lane of LANES) drawRaceLane(pen, lane);
  drawRaceAxis(pen, height);
  drawRaceMoment(pen, height);
}

// A cell's colour is its exit layer's, and so is its height: 1 of L is low, L fills the row.
function drawRaceLane(pen, lane) {
  const [tokens, top] = [page.tokens[lane], raceRow(lane)];
  const fills = raceFills();
  const shown = countAt(lane, race.at);
  pen.fillStyle = ink.colours.quiet;
  pen.font = `11.5px ${ink.colours.font}`;
  pen.textAlign = "left";
  pen.fillText(laneTitle(lane), RACE.left, top - 5);
  pen.fillStyle = ink.colours.frame;
  pen.fillRect(RACE.left, top + RACE.height, raceX(race.ends[lane]) - RACE.left, 1);
  for (let i = 0; i < shown; i++) {
    const from = i ? raceX(tokens[i - 1].seconds) : RACE.left - 3;
    const width = raceX(tokens[i].seconds) - from;
    const tall = Math.max(3, (RACE.height * tokens[i].exit) / page.view.layers);
    const wide = Math.max(1, width - (width > 4 ? 1 : 0));
    pen.fillStyle = fills[tokens[i].bin];
    pen.fillRect(from, top + RACE.height - tall, wide, tall);
    pen.fillStyle = ink.colours.frame; // the deepest fill is hard to see in the dark theme
    pen.fillRect(from, top + RACE.height - tall, wide, 1);
  }
}

// The cells' own fills, read from the style once per theme.
function raceFills() {
  if (race.version === ink.version) return race.fills;
  const style = getComputedStyle(document.documentElement);
  race.version = ink.version;
  race.fills = [0, 1, 2, 3, 4, 5].map((bin) => style.getPropertyValue(`--fill-${bin}`).trim());
  return race.fills;
}

function drawRaceAxis(pen, height) {
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300]
    .find((one) => raceX(one) - raceX(0) >= 56) || 600;
  pen.fillStyle = ink.colours.quiet;
  pen.font = `11px ${ink.colours.font}`;
  pen.textBaseline = "alphabetic";
  for (let i = 0; i * step <= race.end + 1e-9; i++) {
    const x = raceX(i * step);
    pen.textAlign = i ? "center" : "left";
    if (x > race.width - 30) pen.textAlign = "right";
    pen.fillText(`${Number((i * step).toFixed(1))} s`, x, height - 4);
    pen.fillRect(Math.round(x), height - RACE.axis, 1, 4);
  }
}

function drawRaceMoment(pen, height) {
  pen.fillStyle = ink.colours.mark;
  pen.fillRect(Math.round(raceX(race.at)) - 1, RACE.top - 3, 2, height - RACE.axis - RACE.top + 5);
}

// The token whose pass is under the pointer is selected, as a cell of a map is.
function chooseInRace(event) {
  const box = race.nodes.canvas.getBoundingClientRect();
  const y = event.clientY - box.top;
  const lane = LANES.find((name) => y >= raceRow(name) && y <= raceRow(name) + RACE.height);
  if (!lane) return;
  const room = race.width - RACE.left - RACE.right;
  const seconds = ((event.clientX - box.left - RACE.left) / room) * race.end;
  const index = page.tokens[lane].findIndex((token) => token.seconds >= seconds);
  const place = {lane, index};
  if (index < 0 || !cellAt(place)) return;
  moveTabStop(place);
  select(place);
}
