// Keys for a list: j and k go to the next and the previous row, a to the button on the page of an incident that
// acknowledges it, / to the search field, ? shows the keys.
// The row is chosen by the focus on its first link, so Enter opens it and readers of the screen hear it.
"use strict";
(() => {
  const search = document.getElementById("search");
  const keys = document.getElementById("keys");
  const help = document.getElementById("help");
  let last = null; // id of the row that was chosen last

  const rows = () => [...document.querySelectorAll("tbody tr[data-id]")];
  const link = (row) => row.querySelector("th a");

  const choose = (row) => {
    for (const other of document.querySelectorAll("tr.chosen")) other.classList.remove("chosen");
    row.classList.add("chosen");
    last = row.dataset.id;
  };

  const step = (by) => {
    const all = rows();
    const at = all.findIndex((row) => row.dataset.id === last);
    const row = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
    if (!row) return;
    link(row).focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };

  const chosen = () => rows().find((row) => row.dataset.id === last);

  // The page puts the focus on the button, when there is something to acknowledge; nothing is done until it is pressed.
  const acknowledge = () => {
    const row = chosen();
    if (!row) return;
    const page = new URL(link(row).href);
    page.hash = "acknowledge";
    location.assign(page);
  };

  document.addEventListener("focusin", (event) => {
    const row = event.target.closest?.("tbody tr[data-id]");
    if (row) choose(row);
  });

  const typing = (where) => where.closest?.("input, select, textarea, dialog, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (typing(event.target)) {
      if (event.key === "Escape" && !event.target.closest("dialog")) event.target.blur();
      return;
    }
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "a") acknowledge();
    else if (event.key === "/" && search) search.focus();
    else if (event.key === "?" && keys) keys.showModal();
    else if (event.key === "Enter" && event.target === document.body) {
      const row = chosen();
      if (!row) return;
      link(row).click();
    } else return;
    event.preventDefault();
  });

  if (help && keys) {
    help.hidden = false;
    help.addEventListener("click", () => keys.showModal());
  }
})();
