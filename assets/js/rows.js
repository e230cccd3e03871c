// The cache by position, from the engine's records: what each row received when it was written,
// and which later passes changed it. Position p >= prompt length was written by the pass that
// chose token p - length + 1.

const changes = {upper: null, lower: null};
const knownRows = {};

function promptLength(lane) {
  return page.view.lanes[lane].prompt_length;
}

function rowCount(lane) {
  const prompt = page.view.lanes[lane].prompt_kv.reduce((sum, [count]) => sum + count, 0);
  return prompt + Math.max(0, page.tokens[lane].length - 1);
}

// As it was written.
function writtenRow(lane, position) {
  const index = position - promptLength(lane) + 1;
  if (index > 0) return page.tokens[lane][index].kv;
  let before = 0;
  for (const [count, runs] of page.view.lanes[lane].prompt_kv) {
    before += count;
    if (position < before) return knownRows[runs] || (knownRows[runs] = letters(runs));
  }
  return "";
}

// As it was after the pass that chose token `moment`.
function rowAt(lane, position, moment) {
  const row = writtenRow(lane, position);
  const later = changesAt(lane, position).filter(([pass]) => pass <= moment);
  if (!later.length) return row;
  const slots = [...row];
  for (const [, , source, ...edges] of later) {
    for (let i = 0; i < edges.length; i += 2) slots.fill(source, edges[i] - 1, edges[i + 1]);
  }
  return slots.join("");
}

function changesAt(lane, position) {
  const updates = page.updates[lane];
  let known = changes[lane];
  if (!known || known.updates !== updates) known = changes[lane] = {updates, read: 0, at: new Map()};
  for (; known.read < updates.length; known.read++) {
    const update = updates[known.read];
    known.at.set(update[1], [...(known.at.get(update[1]) || []), update]);
  }
  return known.at.get(position) || [];
}

// Source -> number of slots in the first `count` positions.
function sourceCounts(lane, count, moment) {
  const rows = new Map();
  for (let position = 0; position < count; position++) {
    const row = rowAt(lane, position, moment);
    rows.set(row, (rows.get(row) || 0) + 1);
  }
  const counts = {};
  for (const [row, times] of rows) {
    for (const letter of row) counts[letter] = (counts[letter] || 0) + times;
  }
  return counts;
}
