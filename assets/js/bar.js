// The top bar, the sentence under the prompt when something was wrong, and the line read aloud.

const SPOKEN_EVERY = 4000; // milliseconds
let speak = () => {};

function mountBar(element, props, watch) {
  const title = make("h1", {}, say("title"));
  const tagline = make("span", {class: "tagline"}, say("tagline"));
  const chips = make("div", {class: "chips"});
  const origin = make("p", {class: "origin quiet"});
  const spoken = make("p", {class: "sr", role: "status", "aria-live": "polite"});
  const header = make("header", {class: "topbar"}, title, tagline, chips);
  const row = make("div", {class: "bar-row"}, recordedSwitch(), fileTools());
  header.insertBefore(lessonButton(), chips);
  element.replaceChildren(header, origin, row, spoken, ...lessonPanel());
  speak = (text) => put(spoken, text);
  const show = () => {
    page.card = JSON.parse(props.value);
    drawBar(chips, origin);
  };
  show();
  watch("value", show);
  follow((view) => {
    if (!view.recorded) speakNowAndThen(view);
  });
  followLive((view) => {
    if (view.card) page.card = view.card;
    drawBar(chips, origin);
  });
}

function drawBar(chips, origin) {
  const [card, view] = [page.card, origins.live];
  const busy = view && view.run;
  const state = busy ? view.phase : card.state;
  once(chips, [state, card.chips], () => [
    ...card.chips.map(([text, why]) => make("span", {class: "chip", title: why}, text)),
    make("span", {class: `chip status status-${state}`, id: "status"},
      make("span", {class: "dot", "aria-hidden": "true"}), make("span")),
  ]);
  put(chips.lastChild.lastChild, busy ? view.status : card.status);
  const from = {name: say("bar.origin"), text: card.origin};
  put(origin, card.origin ? say("list.labelled", from) : "");
  document.body.dataset.phase = state;
  followResident();
}

let spokenAt = 0;
let spokenPhase = "";

// At once when the phase changes, else every few seconds; never per token.
function speakNowAndThen(view) {
  if (!view.run) return;
  const now = Date.now();
  if (view.phase === spokenPhase && now - spokenAt < SPOKEN_EVERY) return;
  [spokenAt, spokenPhase] = [now, view.phase];
  speak(view.live);
}

function mountAlert(element) {
  const sentence = make("p", {class: "alert", role: "alert"});
  element.replaceChildren(sentence);
  follow((view) => {
    put(sentence, view.error);
    const box = document.querySelector("#prompt textarea, #prompt input");
    if (box) fill(box, {"aria-invalid": String(Boolean(view.error)), lang: UNKNOWN}, []);
  });
}

function titleOf(policy) {
  return {policy, title: TEXT[`policy.${policy}`] || policy};
}

// Run was pressed, with what was asked: say so before the server has answered.
function sent(asked) {
  rememberAsked(asked);
  if (!page.view) return;
  const view = {...page.view, run: "sent", phase: "sent", error: "", difference: null};
  delete view.recorded;
  delete view.card;
  view.status = say("status.sent");
  view.preview = view.comparison = null;
  view.lanes = Object.fromEntries(LANES.map((lane) => [lane, {
    ...page.view.lanes[lane], from: 0, tokens: "", different: "", ended: false, prompt: [],
    prompt_kv: [], updates: [0, []],
    caption: say(`caption.${lane}.waiting`), ...titleOf(asked[lane]),
  }]));
  view.legend = view.legend.map((entry) => ({...entry, count: 0}));
  showOrigin("live");
  arrive(view);
}
