// Keeps the list of incidents fresh. Rows change in place; they move only while the reader is at the top of the first
// page and the pointer rests: whoever reads further down is told how many are new, and asks for them.
"use strict";
(() => {
  const status = document.getElementById("live");
  const first = status.dataset.first;
  const firstPage = !new URLSearchParams(location.search).has("cursor");
  const EVERY = 60_000; // milliseconds after which ages are renewed
  const GATHER = 300; // in which events come together
  const APART = 2000; // between two looks at the list
  const REST = 1500; // after which a pointer rests
  const TOP = 160; // pixels that count as the top
  const PATIENCE = 5000; // milliseconds before a lost connection is told
  const LOST = "Connection lost: this list may be out of date. Retrying.";
  const RETRY = [2000, 5000, 15_000, 30_000];
  let after = status.dataset.after; // the last event
  let seen = Number(after); // the last event when rows were last in order
  let source = null;
  let timer = 0; // of the next look, until it has come to its end
  let looking = false; // the list is being fetched
  let again = false; // something happened meanwhile
  let lost = 0; // of telling that the connection is lost
  let looked = 0;
  let moved = 0;
  let failures = 0;
  let pending = false; // rows are not in the order of the last look
  let out = false;

  const rowsOf = (page) => new Map([...page.querySelectorAll("#found tr[data-id]")].map((row) => [row.dataset.id, row]));

  // Says words and perhaps a link; what is said already is not said again.
  const tell = (words, target, called, act) => {
    const all = [words, target, called].join(" ");
    if (status.dataset.said === all) return;
    status.dataset.said = all;
    status.replaceChildren(words);
    if (!target) return;
    const link = document.createElement("a");
    link.href = target;
    link.textContent = called;
    if (act) link.addEventListener("click", act);
    status.append(" ", link);
  };

  const reading = () => window.scrollY > TOP || Date.now() - moved < REST || marked(document.getElementById("found")) || choosing();
  // Rows stay where they are while some of them are chosen.
  const choosing = () => document.querySelector("#found tbody input:checked") !== null;
  const marked = (part) => {
    const marking = getSelection();
    return !marking.isCollapsed && marking.containsNode(part, true);
  };

  // Puts what is new of a row into it; the row itself stays, and so does the focus on one of its links.
  const renew = (row, fresh) => {
    if (row.innerHTML === fresh.innerHTML || marked(row)) return;
    const held = [...row.querySelectorAll("a")].indexOf(document.activeElement);
    const chosen = row.querySelector("input[name=id]")?.checked;
    row.replaceChildren(...fresh.cloneNode(true).childNodes);
    if (chosen && row.querySelector("input[name=id]")) row.querySelector("input[name=id]").checked = true;
    if (held >= 0) (row.querySelectorAll("a")[held] ?? row.querySelector("a")).focus({ preventScroll: true });
  };

  const swap = (selector, page) => {
    const [mine, fresh] = [document.querySelector(selector), page.querySelector(selector)];
    if (mine && fresh && mine.innerHTML !== fresh.innerHTML && !mine.contains(document.activeElement))
      mine.replaceChildren(...fresh.cloneNode(true).childNodes);
  };

  // Puts the rows into the order of the fresh page. The chosen row stays even when it no longer belongs there.
  const arrange = (page) => {
    if (!document.getElementById("states") && page.getElementById("states")) return location.reload();
    const [mine, fresh] = [rowsOf(document), rowsOf(page)];
    if (!mine.size || !fresh.size) {
      swap("#found", page);
    } else {
      const focus = document.activeElement;
      const chosen = document.querySelector("tr.chosen");
      const body = document.querySelector("#found tbody");
      const wanted = [...fresh].map(([id, row]) => mine.get(id) ?? document.importNode(row, true));
      for (const [id, row] of mine) {
        const gone = !fresh.has(id);
        row.classList.toggle("left", gone);
        if (gone && row === chosen) wanted.splice([...mine.keys()].indexOf(id), 0, row);
        else if (gone) row.remove();
      }
      wanted.forEach((row, at) => {
        if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
      });
      if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
      swap(".paging", page);
    }
    pending = false;
    seen = Math.max(seen, ...[...fresh.values()].map((row) => Number(row.dataset.event)));
    tell("");
  };

  const take = (own, page) => {
    const [mine, fresh] = [rowsOf(document), rowsOf(page)];
    for (const known of [rowsOf(own), fresh])
      for (const [id, row] of known) if (mine.has(id)) renew(mine.get(id), row);
    swap("#states", page);
    const news = [...fresh].filter(([id, row]) => !mine.has(id) && Number(row.dataset.event) > seen).length;
    if (firstPage && !reading()) return arrange(page);
    pending = firstPage;
    if (pending && window.scrollY <= TOP) look(REST); // until the pointer rests
    else if (!news) tell("");
    else tell(`${news} new:`, first, "show", firstPage && ((event) => {
      event.preventDefault();
      window.scrollTo({ top: 0 });
      arrange(page);
      document.querySelector("#found th a")?.focus({ preventScroll: true });
    }));
  };

  const fetched = async (url) => {
    const answer = await fetch(url, { redirect: "manual", cache: "no-store" });
    if (answer.type === "opaqueredirect" || answer.status === 401) leave();
    else if (!answer.ok) throw new Error(answer.statusText);
    else return new DOMParser().parseFromString(await answer.text(), "text/html");
  };

  const leave = () => {
    out = true;
    rest();
    tell("You are signed out; this list is no longer updated.", `/login?next=${encodeURIComponent(location.pathname + location.search)}`, "Sign in");
  };

  const look = (wait = GATHER) => {
    if (out || document.hidden) return;
    if (timer > 0) {
      again ||= looking; // what is being fetched may be older than this event
      return;
    }
    timer = setTimeout(async () => {
      looked = Date.now();
      looking = true;
      let page, own;
      try {
        page = await fetched(first);
        own = firstPage || out ? page : await fetched(location.href);
      } catch {
        own = null; // the stream tells of a lost connection, and the next look comes anyway
      }
      timer = 0;
      looking = false;
      if (own && !out) take(own, page);
      if (again) look();
      again = false;
    }, Math.max(wait, looked + APART - Date.now()));
  };

  const listen = () => {
    source = new EventSource(`/v1/incidents/stream?after=${after}`);
    source.addEventListener("incident", (event) => {
      after = event.lastEventId;
      look();
    });
    source.addEventListener("open", () => {
      clearTimeout(lost);
      if (status.textContent === LOST) tell("");
      look();
      lost = failures = 0;
    });
    source.addEventListener("error", () => {
      lost ||= setTimeout(() => tell(LOST), PATIENCE);
      if (source?.readyState !== EventSource.CLOSED) return; // the browser tries again, from the last event on
      source = null;
      look(); // says so when the token no longer counts
      setTimeout(settle, RETRY[Math.min(failures++, RETRY.length - 1)]);
    });
  };

  const rest = () => {
    source?.close();
    source = null;
    clearTimeout(lost);
    lost = 0;
  };

  // A hidden page lets go: browsers keep few connections to one server, and all tabs share them.
  const settle = () => {
    if (document.hidden || out) {
      rest();
    } else if (!source) {
      listen();
      look();
    }
  };

  document.getElementById("found").addEventListener("pointermove", () => { moved = Date.now(); });
  document.addEventListener("scroll", () => { if (pending && window.scrollY <= TOP) look(); }, { passive: true });
  document.addEventListener("visibilitychange", settle);
  setInterval(() => look(), EVERY);
  listen();
})();
