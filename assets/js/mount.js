// What the page's components call: each is an empty element that one of these fills.

function mountParts(part, element, props, watch) {
  const root = element.querySelector(`[data-part="${part}"]`);
  if (part === "bar") mountBar(root, props, watch);
  else if (part === "alert") mountAlert(root);
  else if (part === "details") mountDetails(root);
  else {
    mountLanes(root);
    const read = () => receive(JSON.parse(props.value));
    read();
    watch("value", read);
  }
}

window.River = {mount: mountParts, sent};
window.dispatchEvent(new Event("river-script"));
