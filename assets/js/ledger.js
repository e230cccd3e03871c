// "What fits?": a model's bytes by part for a choice of resident layers, context and card. The
// tables come from the server, once; here they are looked up and added.

const GIB = 2 ** 30;
const MIB = 2 ** 20;
const MARKS = ["alone", "all", "river"];
const ledger = {
  models: [], loaded: null, model: null, row: 0, context: 0, card: "", measured: null,
  resident: 0, // backbone layers of the loaded model that were last known to be there
  chosen: false, // by the reader: the loaded model's table, which comes later, leaves that alone
};
const ledgerNodes = {};

function mountLedger(element, props, watch) {
  element.replaceChildren(ledgerSection());
  const read = () => readLedger(JSON.parse(props.value));
  read();
  watch("value", read);
  followCalmly(readMeasured);
}

function readLedger(view) {
  ledger.parts = view.parts;
  ledger.byLayer = view.by_layer;
  ledger.loaded = view.loaded;
  ledger.resident = page.card ? page.card.resident : 0;
  ledger.models = [...(view.loaded ? [view.loaded] : []), ...view.models];
  const options = ledger.models.map((model) => make("option", {}, modelTitle(model)));
  ledgerNodes.model.replaceChildren(...options);
  const same = ({name, shape}) => name === ledger.model.name && shape === ledger.model.shape;
  const kept = ledger.chosen ? ledger.models.findIndex(same) : -1;
  if (kept < 0) return chooseModel(0);
  ledger.model = ledger.models[kept];
  ledgerNodes.model.selectedIndex = kept;
  drawLedger();
}

// Layers were evicted or restored: the slider goes along, unless the reader has moved it elsewhere.
function followResident() {
  const [{loaded, model}, before, now] = [ledger, ledger.resident, page.card.resident];
  if (!loaded || before === now) return;
  ledger.resident = now;
  const row = loaded.resident.indexOf(now);
  const there = !ledger.chosen || ledger.row === loaded.resident.indexOf(before);
  if (model !== loaded || row < 0 || !there) return;
  ledgerNodes.resident.value = ledger.row = row;
  drawLedger();
}

// Only of a run of the model that is loaded; what another machine measured stands elsewhere.
function readMeasured(view) {
  const {loaded} = ledger;
  const named = view.card && view.card.chips.length ? view.card.chips[0][0] : "";
  const parts = view.readouts.memory;
  ledger.measured = null;
  if (loaded && named === loaded.name && parts.length && !view.recorded) {
    ledger.measured = {
      resident: view.card.resident,
      parts: Object.fromEntries(parts.map(({part, bytes}) => [part, bytes])),
    };
  }
  if (loaded) drawLedger();
}

function modelTitle(model) {
  if (model === ledger.loaded) return say("ledger.loaded", {name: model.name});
  return say(`ledger.model.${model.shape}`);
}

function ledgerSection() {
  const nodes = ledgerNodes;
  nodes.model = control("select", {id: "ledger-model"}, () => chooseModel(nodes.model.selectedIndex));
  nodes.resident = control("input", {type: "range", min: 0, step: 1, id: "ledger-resident"}, () => {
    ledger.row = Number(nodes.resident.value);
    drawLedger();
  });
  nodes.context = control("select", {id: "ledger-context"}, () => {
    ledger.context = nodes.context.selectedIndex;
    drawLedger();
  });
  nodes.card = control("input", {type: "number", min: 0, step: "any", id: "ledger-card"}, () => {
    ledger.card = nodes.card.validity.badInput ? "?" : nodes.card.value.trim();
    drawLedger();
  });
  for (const name of ["about", "bars", "fit", "table", "note", "command"]) {
    nodes[name] = make(name === "about" || name === "note" ? "p" : "div", {class: `ledger-${name}`});
  }
  nodes.fit.setAttribute("role", "status");
  nodes.said = make("output", {for: "ledger-resident"});
  return make("section", {class: "ledger", "aria-label": say("ledger.title")},
    make("h2", {}, say("ledger.title")), nodes.about,
    make("div", {class: "ledger-controls"}, labelled("model"), labelled("context"),
      labelled("resident", nodes.said), labelled("card")),
    nodes.bars, nodes.fit, nodes.table, nodes.note, nodes.command);
}

function control(tag, attributes, changed) {
  const node = make(tag, attributes);
  node.addEventListener("input", () => {
    ledger.chosen = true;
    changed();
  });
  return node;
}

function labelled(name, ...more) {
  const words = make("span", {}, say(`ledger.${name}`), " ", ...more);
  return make("label", {class: `ledger-field ledger-field-${name}`}, words, ledgerNodes[name]);
}

function chooseModel(index) {
  const model = ledger.models[index];
  const {resident, context} = ledgerNodes;
  ledger.model = model;
  context.replaceChildren(...model.tokens.map((tokens, i) => make("option", {},
    say(i < 3 ? "ledger.tokens" : "ledger.capacity", {tokens: grouped(tokens)}))));
  const usual = ledger.context < 3 ? ledger.context : 1;
  ledger.context = model === ledger.loaded ? model.tokens.length - 1 : usual;
  context.selectedIndex = ledger.context;
  resident.max = model.resident.length - 1;
  const kept = model === ledger.loaded ? model.resident.indexOf(page.card.resident) : -1;
  ledger.row = kept < 0 ? model.resident.length - 1 : kept;
  resident.value = ledger.row;
  drawLedger();
}

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

function sizeText(bytes) {
  if (bytes >= GIB) return `${(bytes / GIB).toFixed(2)} GiB`;
  return `${(bytes / MIB).toFixed(bytes < 10 * MIB ? 1 : 0)} MiB`;
}

// Part -> bytes of the model on show with the row's resident layers, in the order of the stack.
function partsAt(row) {
  const {model, context, byLayer, parts} = ledger;
  const moved = Object.fromEntries(byLayer.map((part, i) => [part, model.rows[row][i]]));
  const cached = {kv: model.kv[context], buffers: model.buffers[context]};
  const all = {...model.fixed, ...moved, ...cached};
  return Object.fromEntries(parts.map((part) => [part, all[part]]));
}

function totalOf(parts) {
  return Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);
}

function drawLedger() {
  const {model, row, context} = ledger;
  const [parts, nodes, resident] = [partsAt(row), ledgerNodes, model.resident[row]];
  put(nodes.about, model.about);
  put(nodes.said, say("ledger.of", {resident, layers: model.layers}));
  nodes.resident.setAttribute("aria-valuetext", nodes.said.textContent);
  nodes.card.setAttribute("aria-invalid", String(cardBytes() === null));
  nodes.bars.replaceChildren(...ledgerBars(parts));
  put(nodes.fit, fitSentence(totalOf(parts)));
  nodes.table.replaceChildren(ledgerTable(parts));
  put(nodes.note, noteSentence());
  const names = {name: model.name, resident};
  once(nodes.command, names, () => [say("ledger.command"), make("code", {},
    say("ledger.command.app", names)), make("code", {}, say("ledger.command.python", names))]);
  nodes.bars.dataset.context = model.tokens[context];
}
