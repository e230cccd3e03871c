// The charts carry the colours of the theme in which the server drew them. They are repainted when
// the page's theme is another one: when it changes, and when a chart arrives or is shown again.

const chartInks = {light: [], dark: []}; // the same inks in the same order

function pageIsDark() {
  return Boolean(document.querySelector(".dark"));
}

function readInks({light, dark}) {
  Object.assign(chartInks, {light, dark});
}

function recolourCharts() {
  const [now, old] = pageIsDark() ? ["dark", "light"] : ["light", "dark"];
  const inks = new Map(chartInks[old].map((ink, i) => [ink, chartInks[now][i]]));
  for (const plot of document.querySelectorAll("#charts .js-plotly-plot")) {
    if (!plot.layout || !inks.has(plot.layout.font.color)) continue;
    const [data, layout] = [repainted(plot.data, inks), repainted(plot.layout, inks)];
    window.Plotly.react(plot, data, layout, plot._context);
  }
}

// A copy with other inks; numbers, and arrays of them, stay the same ones.
function repainted(value, inks) {
  if (typeof value === "string") return inks.get(value) || value;
  if (Array.isArray(value)) {
    return typeof value[0] === "number" ? value : value.map((one) => repainted(one, inks));
  }
  if (!value || Object.getPrototypeOf(value) !== Object.prototype) return value;
  const copy = {};
  for (const [name, one] of Object.entries(value)) copy[name] = repainted(one, inks);
  return copy;
}

function watchCharts() {
  const box = document.getElementById("charts");
  if (!box || box.dataset.watched) return;
  box.dataset.watched = "yes";
  let asked = false;
  new MutationObserver(() => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      recolourCharts();
    });
  }).observe(box, {childList: true, subtree: true});
}
