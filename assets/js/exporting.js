// The export menu. Files are written in the browser, from the run's record: a live run's is fetched
// from the server, a recorded run's stands in the page or is fetched, a visitor's file is at hand.

class Refused extends Error {}

const tools = {said: null, copied: null, menu: null, button: null, open: null};
const known = {server: null, records: new Map()}; // view or run's id -> {lines, view}
const ENDED = ["done", "stopped"];
const EXPORTS = [
  ["jsonl", async () => save("jsonl", "application/jsonl", (await recordOnShow()).lines)],
  ["csv", async () => save("csv", "text/csv", `\ufeff${csvOf((await recordOnShow()).lines)}`)],
  ["svg", async () => save("svg", "image/svg+xml", somethingOnShow() && riverSvg().text)],
  ["png", async () => save("png", "image/png", somethingOnShow() && await pixels())],
  ["html", async () => save("html", "text/html", await replayPage())],
  ["link", async () => copyText(linkOnShow())],
  ["command.upper", async () => copyText(await commandOnShow("upper"))],
  ["command.lower", async () => copyText(await commandOnShow("lower"))],
];

function fileTools() {
  tools.said = make("p", {class: "quiet file-said", role: "status"});
  tools.copied = make("textarea", {
    class: "copied", readonly: "", rows: 3, hidden: "", "aria-label": say("export.copy_text"),
  });
  const box = make("div", {class: "file-tools"},
    make("div", {class: "file-buttons"}, exportMenu(), replayButton()), tools.said, tools.copied);
  listenForFiles(box);
  followCalmly((view, fresh) => {
    if (fresh) tellFiles("");
    nameCommands(view);
  });
  return box;
}

function tellFiles(sentence) {
  put(tools.said, sentence);
  if (!sentence) tools.copied.hidden = true;
}

function exportMenu() {
  const id = "export-menu";
  tools.button = make("button", {
    type: "button", class: "file-button", "aria-haspopup": "menu", "aria-expanded": "false",
    "aria-controls": id,
  }, say("export.menu"), make("span", {"aria-hidden": "true"}, " ▾"));
  tools.menu = make("div", {
    role: "menu", class: "file-menu", id, hidden: "", "aria-label": say("export.list"),
  }, ...EXPORTS.map(exportItem));
  const box = make("div", {class: "menu-box"}, tools.button, tools.menu);
  tools.button.addEventListener("click", () => openMenu(tools.menu.hidden));
  box.addEventListener("keydown", menuKey);
  box.addEventListener("focusout", ({relatedTarget}) => {
    if (!box.contains(relatedTarget)) openMenu(false, false);
  });
  return box;
}

function exportItem([name, write]) {
  const about = name.startsWith("command") ? "export.command.about" : `export.${name}.about`;
  const item = make("button", {
    type: "button", role: "menuitem", class: "menu-item", tabindex: "-1", "data-export": name,
  }, make("span", {class: "menu-name"}, name.startsWith("command") ? "" : say(`export.${name}`)),
  make("span", {class: "menu-about"}, say(about)));
  item.addEventListener("click", async () => {
    openMenu(false);
    tellFiles(await attempt(write));
  });
  return item;
}

function nameCommands(view) {
  for (const lane of LANES) {
    const item = tools.menu.querySelector(`[data-export="command.${lane}"] .menu-name`);
    put(item, say(`export.command.${lane}`, {policy: view.lanes[lane].title}));
  }
  tools.menu.querySelector('[data-export="link"]').hidden = !known.server;
}

async function attempt(deed) {
  try {
    return await deed();
  } catch (error) {
    if (error instanceof Refused) return error.message;
    throw error;
  }
}

function openMenu(open, refocus = true) {
  if (tools.menu.hidden === !open) return;
  tools.menu.hidden = !open;
  tools.button.setAttribute("aria-expanded", String(open));
  if (open) menuItems()[0].focus();
  else if (refocus) tools.button.focus();
}

function menuItems() {
  return [...tools.menu.querySelectorAll("[role=menuitem]")].filter((item) => !item.hidden);
}

function menuKey(event) {
  const items = menuItems();
  const at = items.indexOf(document.activeElement);
  const steps = {
    ArrowDown: (at + 1) % items.length, ArrowUp: (at - 1 + items.length) % items.length,
    Home: 0, End: items.length - 1,
  };
  if (event.key === "Escape" && !tools.menu.hidden) {
    event.stopPropagation();
    openMenu(false);
  } else if (event.key === "ArrowDown" && tools.menu.hidden) openMenu(true);
  else if (at >= 0 && event.key in steps) items[steps[event.key]].focus();
  else return;
  event.preventDefault();
}

function somethingOnShow() {
  if (!page.view || !LANES.some((lane) => page.tokens[lane].length)) {
    throw new Refused(say("export.nothing"));
  }
  return true;
}

async function recordOnShow() {
  somethingOnShow();
  const {view} = page;
  const key = view.recorded ? view : view.run;
  if (!known.records.has(key)) {
    known.records.set(key, view.recorded ? await shippedRecord(view) : await liveRecord(view));
  }
  return known.records.get(key);
}

async function shippedRecord(view) {
  const number = RECORDED.indexOf(view);
  const inPage = document.getElementById("river-lines");
  if (inPage) return {lines: JSON.parse(inPage.textContent)[number], view};
  return {...await ask("shipped_run", number), view};
}

function liveRecord(view) {
  if (!ENDED.includes(view.phase)) throw new Refused(say("export.unfinished"));
  return ask("kept", {run: view.run, prompt: share.asked.prompt || ""});
}

// A function of the server; its refusal is one sentence, as is its silence.
async function ask(name, value, silent = "export.no_server") {
  let answer = null;
  try {
    answer = await known.server[name](value);
  } catch {
    throw new Refused(say(silent));
  }
  if (answer.error) throw new Refused(answer.error);
  return answer;
}

async function pixels() {
  try {
    return await riverPng();
  } catch {
    throw new Refused(say("export.failed"));
  }
}

// The one-file replay: a shell without a run, ours or the server's, and this run as its data.
async function replayPage() {
  const {lines, view} = await recordOnShow();
  const shell = await emptyShell();
  fillData(shell, "river-data", [view]);
  fillData(shell, "river-lines", [lines]);
  return `<!doctype html>\n${shell.documentElement.outerHTML}\n`;
}

async function emptyShell() {
  if (!document.getElementById("river-data")) {
    const {html} = await ask("shell", null);
    return new DOMParser().parseFromString(html, "text/html");
  }
  const shell = document.implementation.createHTMLDocument("");
  shell.replaceChild(document.documentElement.cloneNode(true), shell.documentElement);
  shell.documentElement.removeAttribute("class");
  shell.body.removeAttribute("data-phase");
  for (const part of shell.querySelectorAll("[data-part]")) part.replaceChildren();
  return shell;
}

function fillData(shell, id, value) {
  shell.getElementById(id).textContent = JSON.stringify(value).replaceAll("<", "\\u003c");
}

function fileName(ending) {
  const {recorded, files} = page.view;
  const words = (share.asked.prompt || "run").toLowerCase().match(/[a-z0-9]+/g) || ["run"];
  const name = recorded ? files.name : words.slice(0, 5).join("-").slice(0, 40);
  return `river-${name || "run"}.${ending}`;
}

function save(ending, type, content) {
  const name = fileName(ending);
  const address = URL.createObjectURL(new Blob([content], {type}));
  const anchor = make("a", {href: address, download: name});
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
  return say("export.saved", {file: name});
}
