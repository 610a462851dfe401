// Keys on every page, and the palette that lists them. `aria-keyshortcuts` says in the page itself what a key goes to:
// links are followed and folds opened, buttons and fields only get the focus, so that no key changes anything by itself.
// The row is chosen by the focus on its first link, so Enter opens it and readers of the screen hear it.
"use strict";
(() => {
  const ROWS = "main .list tbody tr, main .log li:is(.cited, .hit)";
  const KEPT = "logdoctor.list"; // the list that was read last: its address, its incidents, the chosen one
  const FIELDS = "input:not([type=checkbox], [type=radio]), select, textarea, dialog, [contenteditable]";
  const seen = (what) => [...document.querySelectorAll(what)].filter((one) => one.checkVisibility());
  const link = (row) => row.querySelector("th a, a");
  const rows = () => seen(ROWS).filter(link);
  const chosen = () => rows().find((row) => row.classList.contains("chosen"));
  const boxes = () => seen("tbody .tick input");
  let last = -1; // place of the row that was chosen last, also when it is gone
  let from = null; // the box that was ticked last

  document.addEventListener("focusin", ({ target }) => {
    const row = target.closest?.(ROWS);
    if (!row) return;
    for (const other of seen(".chosen")) other.classList.remove("chosen");
    row.classList.add("chosen");
    last = rows().indexOf(row);
  });

  const choose = (at) => {
    const found = rows();
    const row = found[Math.min(Math.max(at, 0), found.length - 1)];
    if (!row) return;
    link(row).focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };

  const step = (by) => {
    const at = rows().indexOf(chosen());
    choose(at >= 0 ? at + by : last < 0 && by < 0 ? Infinity : last);
  };

  // A box ticks what is between it and the one before when Shift is held.
  document.addEventListener("click", ({ target, shiftKey }) => {
    if (target.matches?.("thead .tick input")) for (const box of boxes()) box.checked = target.checked;
    if (!target.matches?.("tbody .tick input")) return;
    const places = [boxes().indexOf(from), boxes().indexOf(target)].sort((a, b) => a - b);
    if (shiftKey && places[0] >= 0) for (const box of boxes().slice(places[0], places[1])) box.checked = target.checked;
    from = target;
  });

  const tick = (shiftKey) => {
    const box = chosen()?.querySelector(".tick input");
    box?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, shiftKey }));
  };

  const go = (door) => {
    if (door.matches("a")) {
      door.click();
      return unfold();
    }
    if (door.closest(".bulk") && !boxes().some((box) => box.checked)) {
      if (!chosen()) return;
      tick(false);
    }
    const fold = door.matches("summary") && door.parentElement;
    if (fold) fold.open = true;
    (fold && fold.querySelector("input:not([type=hidden]), textarea, select, button") || door).focus();
    door.scrollIntoView({ block: "nearest" });
  };

  // the palette: what this page offers, other pages, an incident by its number, a search
  const palette = document.createElement("dialog");
  palette.id = "palette";
  palette.innerHTML = `<h2 class="hidden">Commands</h2>
<input type="search" role="combobox" aria-label="Commands" aria-expanded="true" aria-controls="offered" autocomplete="off" spellcheck="false" placeholder="An action, a page, an incident's number, or words to search for">
<ul id="offered" role="listbox" aria-label="Found"></ul>
<p class="note"><kbd>j</kbd> <kbd>k</kbd> next and previous row <kbd>Enter</kbd> open it <kbd>x</kbd> tick it <kbd>X</kbd> all up to it <kbd>?</kbd> <kbd>Ctrl K</kbd> this list <kbd>Esc</kbd> leave</p>`;
  const asked = palette.querySelector("input");
  const offered = palette.querySelector("ul");
  let offers = [];

  const called = (one) => (one.title || one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.textContent).replace(/\s+/g, " ").trim();
  const known = () => [
    ...seen("main [aria-keyshortcuts]").map((door) => [called(door), () => go(door), door.getAttribute("aria-keyshortcuts")]),
    ...[...document.querySelectorAll(".top nav[aria-label=Main] a")].map((one) => [`Go to ${called(one)}`, () => one.click(), ""]),
  ];

  const offer = () => {
    const words = asked.value.trim().toLowerCase();
    offers = known().filter(([name]) => words.split(" ").every((word) => name.toLowerCase().includes(word)));
    if (/^#?\d+$/.test(words)) offers.unshift([`Go to incident ${words.replace("#", "")}`, () => location.assign(`/incidents/${words.replace("#", "")}`), ""]);
    else if (words) offers.push([`Search incidents for "${asked.value.trim()}"`, () => location.assign(`/?q=${encodeURIComponent(asked.value.trim())}`), ""]);
    offered.replaceChildren(...offers.map(([name, , key], at) => {
      const one = document.createElement("li");
      one.id = `offer-${at}`;
      one.setAttribute("role", "option");
      one.append(name);
      if (key) one.append(Object.assign(document.createElement("kbd"), { textContent: key }));
      return one;
    }));
    mark(0);
  };

  const mark = (at) => {
    const place = (at + offers.length) % (offers.length || 1);
    [...offered.children].forEach((one, number) => one.setAttribute("aria-selected", String(number === place)));
    asked.setAttribute("aria-activedescendant", `offer-${place}`);
    offered.children[place]?.scrollIntoView({ block: "nearest" });
  };

  const marked = () => [...offered.children].findIndex((one) => one.ariaSelected === "true");
  const take = (at) => {
    const act = offers[at]?.[1];
    palette.close();
    act?.();
  };

  const show = () => {
    if (!palette.isConnected) document.body.append(palette);
    if (palette.open) return;
    asked.value = "";
    palette.showModal();
    offer();
  };
  asked.addEventListener("input", offer);
  offered.addEventListener("click", ({ target }) => take([...offered.children].indexOf(target.closest("li"))));
  palette.addEventListener("click", ({ target }) => { if (target === palette) palette.close(); });
  palette.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) mark(marked() + by);
    else if (event.key === "Enter") take(marked());
    else return;
    event.preventDefault();
  });

  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.altKey) return;
    const { key, target } = event;
    const held = event.ctrlKey || event.metaKey;
    if (held && key === "k") show();
    else if (held) return;
    else if (target.closest?.(FIELDS)) {
      if (key === "Escape" && !target.closest("dialog")) target.blur();
      return;
    } else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
    else if (key === "x" || key === "X") tick(key === "X");
    else if (key === "?") show();
    else if (key === "/") seen("main [type=search]")[0]?.focus();
    else if (key === "Enter" && target === document.body && chosen()) link(chosen()).click();
    else {
      const door = seen("[aria-keyshortcuts]").find((one) => one.getAttribute("aria-keyshortcuts") === key);
      if (!door) return;
      go(door);
    }
    event.preventDefault();
  });

  const every = document.getElementById("all");
  if (every) every.hidden = false;
  const help = Object.assign(document.createElement("button"), { type: "button", className: "quiet help", innerHTML: "Commands <kbd>?</kbd>" });
  help.addEventListener("click", show);
  document.querySelector(".top .menu")?.after(help);

  // back to the list as it was, to the row that was chosen; from one incident of it to the next
  const kept = (() => {
    try {
      return JSON.parse(sessionStorage.getItem(KEPT)) ?? {};
    } catch {
      return {}; // storage is off
    }
  })();
  const here = location.pathname + location.search;
  const back = document.querySelector(".crumbs a");
  if (back) Object.assign(back, { title: `Back to ${back.textContent}` }).setAttribute("aria-keyshortcuts", "u");
  if (document.querySelector("table.incidents")) {
    addEventListener("pagehide", () => {
      const ids = [...document.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id);
      try {
        sessionStorage.setItem(KEPT, JSON.stringify({ url: here, ids, id: chosen()?.dataset.id, at: last }));
      } catch {
        // it opens at its top
      }
    });
    if (kept.url === here && kept.at >= 0) {
      const at = rows().findIndex((row) => row.dataset.id === kept.id);
      choose(at < 0 ? kept.at : at);
    }
  } else if (back?.pathname === "/" && kept.url) {
    back.href = kept.url;
    const at = kept.ids.indexOf(location.pathname.split("/")[2]);
    for (const [way, id] of [["prev", kept.ids[at - 1]], ["next", kept.ids[at + 1]]]) {
      const door = document.querySelector(`.crumbs a[rel=${way}]`);
      if (!door || at < 0 || !id) continue;
      door.href = `/incidents/${id}`;
      door.hidden = false;
    }
  }

  // what an address points to is not left folded
  const unfold = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
  addEventListener("hashchange", unfold);
  unfold();
})();
