// What leaves by the clipboard: a link that fills the page's controls, and the command line.

const LONGEST_PROMPT = 4000; // characters, as app/recipe.py reads
const share = {asked: {}};

// What the run on its way was asked: the page's values by the names of its settings.
function rememberAsked(asked) {
  share.asked = asked;
}

function linkTo(query) {
  const {origin, pathname} = window.location;
  return `${origin}${pathname}?${new URLSearchParams(query)}`;
}

function recipeOnShow() {
  if (page.view.recorded) return page.view.files.recipe;
  const set = Object.entries(share.asked).filter(([, value]) => value !== null && value !== "");
  return {...Object.fromEntries(set), model: page.card.chips[0][0]};
}

function linkOnShow() {
  const recipe = recipeOnShow();
  if (!recipe) throw new Refused(say("share.not_here"));
  if (recipe.prompt.length > LONGEST_PROMPT) throw new Refused(say("share.too_long"));
  return linkTo(recipe);
}

async function commandOnShow(lane) {
  const {view} = await recordOnShow();
  const found = view.files.commands[lane];
  if (!found) throw new Refused(say("export.command.none"));
  if (!found.line) throw new Refused(found.reason);
  return found.line;
}

// Where the browser does not let a page copy, the text is shown, selected, to be copied by hand.
async function copyText(text) {
  const box = tools.copied;
  try {
    await navigator.clipboard.writeText(text);
    box.hidden = true;
    return say("export.copied");
  } catch {
    box.hidden = false;
    box.value = text;
    box.focus();
    box.select();
    return say("export.copy_by_hand");
  }
}
