// The charts are drawn by the server when their box is opened; here stand what it is asked for, the
// words beneath each one, and its numbers as a file.

const chartsDrawn = {run: null};

// The run on show, and whether the page is dark.
function chartsOf() {
  chartsDrawn.run = page.run;
  return [page.view && page.view.phase === "done" ? page.run : "", pageIsDark()];
}

function mountChart(element, props, watch) {
  const show = () => {
    if (!props.value) return;
    const {name, caption, table, inks} = JSON.parse(props.value);
    readInks(inks);
    watchCharts();
    const save = make("button", {type: "button", class: "link-button"}, say("charts.csv"));
    save.addEventListener("click", () => saveText(`river-${name}.csv`, chartCsv(table)));
    element.replaceChildren(make("div", {class: "chart-note"}, make("p", {}, caption), save));
    const plot = document.getElementById(`chart-${name}`);
    if (plot) fill(plot, {role: "group", "aria-label": say(`charts.${name}.title`)}, []);
  };
  show();
  watch("value", show);
}

// RFC 4180; a cell that a spreadsheet would take for a formula cannot arise from numbers and names.
function chartCsv(table) {
  const cell = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return `${table.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

function saveText(name, text) {
  const link = make("a", {href: URL.createObjectURL(new Blob([text], {type: "text/csv"})),
    download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Another finished run is on show while the charts are open: they are drawn again for it.
follow((view) => {
  const button = document.getElementById("charts-draw");
  if (!button || !button.offsetParent || view.phase !== "done") return;
  if (chartsDrawn.run !== page.run) button.click();
});
