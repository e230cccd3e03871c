// The threshold slider of a page without a server; elsewhere it is Gradio's, of the same name.

function plainSlider() {
  const input = make("input", {
    type: "range", min: 0.4, max: 1, step: 0.001, id: "threshold-range",
  });
  follow((view, fresh) => {
    const [token] = page.tokens.upper;
    if (fresh && token) input.value = token.threshold;
  });
  return make("div", {id: "threshold", class: "rv"},
    make("label", {for: "threshold-range"}, say("threshold.label")), input);
}

// Gradio's own names of the two inputs are English in every language.
function nameSlider(box) {
  for (const kind of ["range", "number"]) {
    const input = box.querySelector(`input[type=${kind}]`);
    const name = say(`slider.${kind}`, {label: say("threshold.label")});
    if (input) fill(input, {"aria-label": name}, []);
  }
}
