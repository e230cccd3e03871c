// Measured numbers: large tiles, then the same for both lanes, memory, and what it runs on.

function readoutBlocks() {
  const tiles = make("div", {class: "tiles"});
  const both = make("div", {class: "block"});
  const memory = make("div", {class: "block"});
  const machine = make("div", {class: "block"});
  const rest = make("div", {class: "tiles"});
  const more = make("div", {class: "measure measure-rest"}, measureBadge());
  const drawMeasured = (view) => {
    const [first, left] = tilesOf(view);
    once(tiles, first, () => first.map(tile));
    once(rest, left, () => left.map(tile));
    more.hidden = rest.hidden = !left.length;
    const [repeats, lines] = [measuredFor(view).rows, view.readouts.rows];
    once(both, [repeats, lines], () => [
      ...(repeats ? [heading("both_measured"), bothTable(repeats)] : []),
      heading("both"), bothTable(lines)]);
  };
  onMeasured(drawMeasured);
  followCalmly((view) => {
    const {memory: parts, machine: facts} = view.readouts;
    drawMeasured(view);
    once(memory, parts, () => [heading("memory"), memoryTable(parts)]);
    once(machine, facts, () => [heading("machine"), factList(facts)]);
  });
  return make("div", {}, measureBar(), tiles, more, rest,
    make("div", {class: "blocks"}, both, memory, machine));
}

function once(node, values, drawing) {
  const key = JSON.stringify(values);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...drawing());
}

function heading(name) {
  return make("h2", {}, say(`section.${name}`));
}

function tile(values) {
  const node = make("div", {class: `tile tile-${values.key}`},
    make("div", {class: "tile-value"}, values.value),
    make("div", {class: "tile-label"}, values.label));
  if (!values.measured) node.classList.add("unmeasured");
  if (values.note) {
    node.append(make("div", {class: values.bad ? "tile-note bad" : "tile-note"}, values.note));
  }
  return node;
}

function bothTable(lines) {
  const head = make("tr", {}, make("td"), ...LANES.map((lane) =>
    make("th", {scope: "col"}, laneTitle(lane))));
  const body = lines.map(([name, upper, lower]) => make("tr", {},
    make("th", {scope: "row"}, name), make("td", {}, upper), make("td", {}, lower)));
  return make("table", {class: "both"}, make("thead", {}, head), make("tbody", {}, ...body));
}

function memoryTable(parts) {
  if (!parts.length) return make("p", {class: "quiet"}, say("section.none"));
  return make("table", {class: "memory"}, make("tbody", {}, ...parts.map((part) => {
    const bar = make("span", {class: `share part-${part.part}`, "aria-hidden": "true"});
    bar.style.width = `${100 * part.share}%`;
    return make("tr", {}, make("th", {scope: "row"}, part.label),
      make("td", {class: "share-cell"}, bar), make("td", {class: "number"}, part.text));
  })));
}

function factList(facts) {
  if (!facts.length) return make("p", {class: "quiet"}, say("section.none"));
  return make("dl", {class: "facts"}, ...facts.flatMap(([name, text]) =>
    [make("dt", {}, name), make("dd", {}, text)]));
}
