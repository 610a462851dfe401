// Keeps a log that is followed fresh, and goes on with a search that has found nothing yet. All of it works by hand, too.
"use strict";
(() => {
  const AGAIN = 3000; // milliseconds
  const main = document.getElementById("main");

  const load = async (url) => {
    const answer = await fetch(url, { headers: { Accept: "text/html" } });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    main.replaceChildren(...document.adoptNode(fresh.getElementById("main")).childNodes);
  };

  const atEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 160;

  const follow = async () => {
    if (!document.querySelector("[data-follow]")) return;
    if (!document.hidden && !main.contains(document.activeElement)) {
      const stay = !atEnd();
      try {
        await load(location.pathname + location.search);
        if (!stay) window.scrollTo(0, document.documentElement.scrollHeight);
      } catch {
        // the next look may work
      }
    }
    setTimeout(follow, AGAIN);
  };

  const search = async () => {
    let box = document.getElementById("sifted");
    while (box && box.dataset.url && box.dataset.hits === "0") {
      const url = box.dataset.url;
      if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
      try {
        await load(url);
      } catch {
        return;
      }
      history.replaceState(null, "", url);
      box = document.getElementById("sifted");
    }
  };

  // lines above it may fill a small screen
  const asked = document.querySelector(".viewer .asked");
  if (asked && !location.hash && asked.getBoundingClientRect().bottom > window.innerHeight) asked.scrollIntoView();

  setTimeout(follow, AGAIN);
  search();
})();
