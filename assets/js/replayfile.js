// Opening a run record from a file: chosen or dropped. The server checks it and returns its view;
// the file itself stays in this page. A page without a server opens none.

const LARGEST_FILE = 8; // MiB, as app/recorded.py reads

// The part with the server's functions; it also tells what a link asks for.
function mountFiles(element, props, watch, server) {
  known.server = server;
  const list = make("div", {class: "recipe", role: "status"});
  const show = () => {
    const {sentences} = JSON.parse(props.value);
    list.replaceChildren(...sentences.map((sentence) => make("p", {}, sentence)));
  };
  element.querySelector("[data-part=files]").replaceChildren(list);
  show();
  watch("value", show);
  if (tools.open) tools.open.hidden = false;
  if (page.view) nameCommands(page.view);
}

function replayButton() {
  const input = make("input", {
    type: "file", accept: ".jsonl,.json,application/jsonl,application/json,text/plain", hidden: "",
    "aria-label": say("replay.label"),
  });
  const button = make("button", {type: "button", class: "file-button", title: say("replay.label")},
    say("replay.open"));
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    if (input.files.length) openReplay(input.files[0]);
    input.value = "";
  });
  tools.open = make("span", {class: "replay-box"}, input, button);
  tools.open.hidden = !known.server;
  return tools.open;
}

function listenForFiles(box) {
  const note = make("p", {class: "drop-note", "aria-hidden": "true", hidden: ""},
    say("replay.drop"));
  box.append(note);
  const brings = (event) => known.server && [...event.dataTransfer.types].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    note.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) note.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    note.hidden = true;
    if (event.dataTransfer.files.length) openReplay(event.dataTransfer.files[0]);
  });
}

async function openReplay(file) {
  tellFiles(say("replay.reading", {file: file.name}));
  tellFiles(await attempt(() => readReplay(file)));
}

async function readReplay(file) {
  if (file.size > LARGEST_FILE * 2 ** 20) {
    throw new Refused(say("replay.too_large", {file: file.name, most: LARGEST_FILE}));
  }
  const lines = await textOf(file);
  const {view} = await ask("replay", {name: file.name, text: lines}, "replay.no_server");
  view.run = `${view.run} ${RECORDED.length}`; // another file of the same name is another run
  known.records.set(view, {lines, view});
  addRecorded(view);
  return say("replay.opened", {file: file.name});
}

async function textOf(file) {
  try {
    return new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
  } catch {
    throw new Refused(say("replay.unreadable", {file: file.name}));
  }
}
