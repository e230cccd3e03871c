// Gradio gives the page the browser's language; its words are in the dictionary's.

function keepLanguage() {
  if (document.documentElement.lang !== LANGUAGE) document.documentElement.lang = LANGUAGE;
}

keepLanguage();
new MutationObserver(keepLanguage).observe(document.documentElement, {attributeFilter: ["lang"]});
