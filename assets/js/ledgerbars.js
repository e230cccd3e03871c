// The ledger's drawings: the stacked bar with the three marks beside it, the table, the verdict.

const LABEL_FROM = 0.11; // of the bar's width: a part's name fits from there on

// null: not a size; undefined: not given.
function cardBytes() {
  if (ledger.card === "") return undefined;
  const size = Number(ledger.card);
  return size > 0 && size < 1e6 ? size * GIB : null;
}

function ledgerBars(parts) {
  const {model, context} = ledger;
  const marks = MARKS.map((mark) => [say(`ledger.mark.${mark}`), model.marks[mark][context]]);
  const [total, card] = [totalOf(parts), cardBytes()];
  const most = Math.max(total, ...marks.map(([, bytes]) => bytes));
  const line = card && card <= 1.6 * most ? card : null;
  const scale = Math.max(most, line || 0);
  const stacked = Object.entries(parts).filter(([, bytes]) => bytes > 0)
    .map(([part, bytes]) => segment(part, bytes, scale));
  const rows = [barRow(say("ledger.choice"), stacked, total, "chosen"),
    ...marks.map(([name, bytes]) => barRow(name, [segment("whole", bytes, scale)], bytes, "mark"))];
  if (line) rows.forEach((row) => row.children[1].append(cardLine(line / scale)));
  return rows;
}

function segment(part, bytes, scale) {
  const named = part !== "whole" && bytes / scale >= LABEL_FROM;
  const node = make("span", {class: `segment segment-${part}`}, named ? say(`memory.${part}`) : "");
  if (part !== "whole") {
    node.title = say("list.labelled", {name: say(`memory.${part}`), text: sizeText(bytes)});
  }
  node.style.width = `${(100 * bytes) / scale}%`;
  return node;
}

function barRow(name, segments, bytes, kind) {
  return make("div", {class: `ledger-row ledger-row-${kind}`},
    make("span", {class: "ledger-name"}, name),
    make("span", {class: "ledger-track", "aria-hidden": "true"}, ...segments),
    make("span", {class: "ledger-size"}, sizeText(bytes)));
}

function cardLine(share) {
  const node = make("span", {class: "card-line", title: say("ledger.card_line")});
  node.style.left = `${100 * share}%`;
  return node;
}

function fitSentence(total) {
  const {model, row} = ledger;
  const card = cardBytes();
  if (card === undefined) return say("ledger.fit.ask");
  if (card === null) return say("ledger.fit.bad");
  const words = {card: ledger.card, total: sizeText(total), resident: model.resident[row]};
  const fitting = model.resident.filter((_, i) => totalOf(partsAt(i)) <= card);
  const verdict = say(total <= card ? "ledger.fit.yes" : "ledger.fit.no", words);
  return `${verdict} ${mostSentence(fitting, card)}`;
}

function mostSentence(fitting, card) {
  const {model, context} = ledger;
  const words = {most: fitting[fitting.length - 1], layers: model.layers};
  if (words.most === model.layers) return say("ledger.fit.all", words);
  if (fitting.length) return say("ledger.fit.most", words);
  return say(model.marks.river[context] <= card ? "ledger.fit.river" : "ledger.fit.none", words);
}

function ledgerTable(parts) {
  const measured = measuredHere();
  const total = totalOf(parts);
  const columns = ["part", "formula", ...(ledger.model === ledger.loaded ? ["measured"] : [])];
  const head = make("tr", {}, ...columns.map((name) =>
    make("th", {scope: "col", class: name === "part" ? "" : "number"}, say(`ledger.column.${name}`))));
  const lines = Object.entries(parts).map(([part, bytes]) => ledgerLine(
    [make("span", {class: `swatch segment-${part}`, "aria-hidden": "true"}), say(`memory.${part}`)],
    bytes, measured && measured[part], columns.length));
  const thousand = ledgerLine([say("ledger.per_thousand")], ledger.model.kv_per_thousand, null, 2);
  const sum = ledgerLine([say("ledger.total")], total, measured && totalOf(measured), columns.length);
  sum.className = "ledger-sum";
  thousand.className = "ledger-aside";
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines, sum, thousand));
}

function ledgerLine(name, bytes, measured, columns) {
  const cells = [make("td", {class: "number"}, sizeText(bytes))];
  if (columns > 2) {
    const text = measured === null || measured === undefined ? "—" : sizeText(measured);
    cells.push(make("td", {class: "number measured"}, text));
  }
  return make("tr", {}, make("th", {scope: "row"}, ...name), ...cells);
}

// What a run measured, where it ran with the choice on show.
function measuredHere() {
  const {model, loaded, row, context, measured} = ledger;
  const whole = model === loaded && context === model.tokens.length - 1;
  return whole && measured && measured.resident === model.resident[row] ? measured.parts : null;
}

function noteSentence() {
  if (ledger.model !== ledger.loaded) return say("ledger.note");
  return `${say("ledger.note")} ${say(measuredHere() ? "ledger.note.measured" : "ledger.note.when")}`;
}
