// What the page's components call: each is an empty element that one of these fills.

function mountParts(part, element, props, watch) {
  const root = element.querySelector(`[data-part="${part}"]`);
  if (part === "bar") mountBar(root, props, watch);
  else if (part === "alert") mountAlert(root);
  else if (part === "estimate") mountEstimate(root);
  else if (part === "details") mountDetails(root);
  else {
    mountLanes(root);
    const read = () => arrive(JSON.parse(props.value));
    read();
    watch("value", read);
  }
  lessonFromLink();
}

// A page without a server: recorded runs only.
function replay(part, element) {
  page.card = RECORDED[0].card;
  if (part === "estimate") element.prepend(plainSlider());
  const props = {value: JSON.stringify(part === "bar" ? page.card : RECORDED[0])};
  mountParts(part, element, props, () => {});
}

window.River = {mount: mountParts, sent, replay};
window.dispatchEvent(new Event("river-script"));
