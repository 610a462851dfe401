// Shows a test of nodes as it goes on: each world that ends is heard of, and the page's own words are fetched anew.
"use strict";
(() => {
  const kept = "details[open] > summary";
  let source = null;
  let later = 0;

  // What a reader has opened stays open, and the focus stays where it is.
  const patch = (fresh) => {
    const old = document.getElementById("test");
    const open = new Set([...old.querySelectorAll(kept)].map((one) => one.textContent));
    const focused = document.activeElement?.closest?.("#test") ? document.activeElement.getAttribute("href") : null;
    for (const one of fresh.querySelectorAll("details > summary")) one.parentElement.open = open.has(one.textContent);
    old.replaceWith(document.adoptNode(fresh));
    if (focused) document.querySelector(`#test a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  };

  // The time that it runs goes on between two looks.
  const tick = () => {
    const elapsed = document.getElementById("elapsed");
    if (!elapsed) return clearInterval(ticking);
    const { seconds } = elapsed.dataset;
    elapsed.dataset.from ??= String(performance.now());
    const whole = Math.floor(Number(seconds) + (performance.now() - Number(elapsed.dataset.from)) / 1000);
    elapsed.textContent = whole < 90 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
  };
  const ticking = setInterval(tick, 1000);

  const load = async () => {
    later = 0;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok || answer.redirected) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("test");
      if (!fresh) return;
      document.title = page.title;
      patch(fresh);
      if (fresh.dataset.state !== "running") leave();
    } catch {
      later ||= setTimeout(load, 5000); // the service may be starting again
    }
  };

  const soon = () => {
    later ||= setTimeout(load, 300);
  };

  const leave = () => {
    source?.close();
    source = null;
  };

  const listen = () => {
    const { events, ended } = document.getElementById("test").dataset;
    source = new EventSource(`${events}?after=${ended}`);
    source.addEventListener("world", soon);
    source.addEventListener("test", () => {
      leave();
      soon();
    });
  };

  // A hidden page lets go: browsers keep few connections to one server, and all tabs share them.
  const settle = () => {
    const running = document.getElementById("test").dataset.state === "running";
    if (document.hidden || !running) {
      leave();
    } else if (!source) {
      listen();
      soon();
    }
  };
  document.addEventListener("visibilitychange", settle);
  settle();
})();
