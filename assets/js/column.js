// Where each layer's keys and values of one position come from: layer 1 at the bottom.

const COLUMN = {left: 30, width: 46, top: 6, height: 190};

function columnOf(token, place) {
  const layers = token.kv.length;
  const step = COLUMN.height / layers;
  const svg = draw("svg", {
    width: COLUMN.left + COLUMN.width + 4, height: COLUMN.height + 2 * COLUMN.top, class: "kv-column",
    role: "img", "aria-label": listed(partNames(token.kv), "semicolon"),
  });
  [...token.kv].forEach((letter, i) => {
    const y = COLUMN.top + COLUMN.height - (i + 1) * step;
    svg.append(...slot(letter, y, step));
  });
  for (const layer of layerTicks(layers)) {
    const y = COLUMN.top + COLUMN.height - (layer - 0.5) * step + 4;
    svg.append(label(COLUMN.left - 6, y, layer, "end"));
  }
  const sentence = make("p", {class: "column-sentence"}, columnSentence(place, token));
  const keys = make("ul", {class: "column-keys"}, ...partKeys(token.kv));
  return [make("div", {class: "column-box"}, svg, make("div", {}, sentence, keys))];
}

function slot(letter, y, step) {
  const box = {x: COLUMN.left, y, width: COLUMN.width, height: step};
  const parts = [draw("rect", {...box, class: `slot kv-slot-${letter}`})];
  if (letter === "m") {
    const [right, bottom] = [box.x + box.width, y + step];
    parts.push(draw("path", {
      d: `M${box.x} ${y}L${right} ${bottom}M${right} ${y}L${box.x} ${bottom}`, class: "kv-cross",
    }));
  }
  return parts;
}

// Token i is described by the pass at the position before it.
function columnSentence(place, token) {
  const position = token.position - 1;
  if (place.index === 0) return say("column.first", {position});
  const fed = page.tokens[place.lane][place.index - 1];
  return say("column.sentence", {text: say("list.quoted", {text: named(fed)}), position});
}

function partNames(letters) {
  return spans(letters).map(([letter, first, last]) =>
    say("column.part", {name: say(`source.${letter}.name`), layers: layerSpan(first, last)}));
}

// From the top down, as the column is read.
function partKeys(letters) {
  const names = partNames(letters);
  return spans(letters).map(([letter], i) => {
    const swatch = draw("svg", {width: 22, height: 14, "aria-hidden": "true", class: "key"},
      ...slotKey(letter));
    return make("li", {}, swatch, make("span", {}, names[i]));
  }).reverse();
}

function slotKey(letter) {
  const parts = [draw("rect", {
    x: 0.5, y: 0.5, width: 21, height: 13, class: `slot kv-slot-${letter}`,
  })];
  if (letter === "m") parts.push(draw("path", {d: "M0 0L22 14M22 0L0 14", class: "kv-cross"}));
  return parts;
}
