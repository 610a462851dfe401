// Suggests terms for the word of a query where the caret is. A browser offers what continues the whole field, so each
// suggestion is put behind what stands before it.
"use strict";
(() => {
  const field = document.getElementById("search");
  const list = field?.list;
  if (!list) return;
  const all = [...list.options].map((option) => option.value);
  const names = [...new Set(all.map((term) => /^[a-z]+:/.exec(term)?.[0]).filter(Boolean))];

  const suggest = () => {
    const [, before, minus, begun] = /^(.*?)(-?)((?:[a-z]+:)?(?:"[^"]*|\S*))$/s.exec(field.value);
    const word = begun.toLowerCase();
    const among = word.includes(":") ? all : [...names, ...all];
    const found = among.filter((term) => term.toLowerCase().startsWith(word) && !before.includes(term));
    list.replaceChildren(...found.slice(0, 12).map((term) => new Option("", before + minus + term)));
  };
  field.addEventListener("input", suggest);
  field.addEventListener("focus", suggest);
})();
