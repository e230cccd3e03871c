// What the page's components call: each is an empty element that one of these fills.

function mountParts(part, element, props, watch, trigger) {
  const root = element.querySelector(`[data-part="${part}"]`);
  if (part === "bar") mountBar(root, props, watch);
  else if (part === "alert") mountAlert(root);
  else if (part === "estimate") mountEstimate(root);
  else if (part === "details") mountDetails(root);
  else if (part === "ledger") mountLedger(root, props, watch);
  else if (part.startsWith("chart-")) mountChart(root, props, watch);
  else if (part === "tasks") mountTasks(props, watch, trigger);
  else {
    mountLanes(root);
    const read = () => arrive(JSON.parse(props.value));
    read();
    watch("value", read);
    document.getElementById("rv-first")?.remove(); // app/first_paint.py: this run is drawn now
  }
  lessonFromLink();
}

// A page without a server: recorded runs, and what models would take.
function replay(part, element) {
  page.card = RECORDED[0].card;
  if (part === "estimate") element.prepend(plainSlider());
  const sizes = () => document.getElementById("river-ledger").textContent;
  const value = () => JSON.stringify(part === "bar" ? page.card : RECORDED[0]);
  mountParts(part, element, {value: part === "ledger" ? sizes() : value()}, () => {});
}

window.River = {mount: mountParts, files: mountFiles, sent, replay, chartsOf};
window.dispatchEvent(new Event("river-script"));
