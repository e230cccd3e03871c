// The run's tokens as CSV: a row per token and lane, columns as RunRecord.to_frame().

// What a spreadsheet may take for a formula. An apostrophe before it makes it text; one more is put
// before apostrophes that already stand there, so that taking one away gives the token back.
const FORMULA = /^'*[=+\-@\t\r\n＝＋－＠]/;

function csvOf(lines) {
  const rows = tokenRows(lines);
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const written = rows.map((row) => columns.map((name) => csvCell(row[name])));
  return [columns, ...written].map((cells) => `${cells.join(",")}\r\n`).join("");
}

function tokenRows(lines) {
  const rows = [];
  let lane = -1;
  for (const line of lines.split("\n").filter(Boolean)) {
    const {type, ...values} = JSON.parse(line);
    if (type === "header") lane += 1;
    if (type === "token") rows.push({lane: LANES[lane], ...values});
  }
  return rows;
}

function csvCell(value) {
  if (value === undefined || value === null) return "";
  if (typeof value === "object") return quoted(JSON.stringify(value));
  if (typeof value !== "string") return String(value);
  return quoted(FORMULA.test(value) ? `'${value}` : value);
}

function quoted(text) {
  return `"${text.replaceAll('"', '""')}"`;
}
