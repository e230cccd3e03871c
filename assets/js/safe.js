// In the inspector: how early the selected token of the lane above could have left.

function safeBlock() {
  const {button, bar, said, wrong} = taskControl("safe");
  const found = make("p", {class: "safe-found"});
  const about = make("p", {class: "quiet"});
  const mean = make("p", {class: "quiet"});
  const show = () => {
    const task = taskOf("safe");
    const place = shownPlace();
    const result = task && task.phase === "done" ? task.result : null;
    const here = result && place && place.lane === "upper" ? place.index : -1;
    put(found, here > 0 ? safeWords(result, here) : "");
    put(about, here < 0 ? "" : say(here ? "safe.about" : "safe.first"));
    put(mean, result ? result.said : "");
    if (result) button.hidden = true;
  };
  follow(show);
  taskFollowers.push(show);
  onSelection(show);
  return make("div", {class: "safe"}, found, about, mean,
    make("div", {class: "safe-line"}, button, bar, said), wrong);
}

function safeWords({exits, stable}, index) {
  const words = {exit: exits[index], stable: stable[index]};
  return say(words.exit === words.stable ? "safe.token" : "safe.token_stable", words);
}
