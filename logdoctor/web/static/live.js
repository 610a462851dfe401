// Tells of new verdicts that belong on this list. The list itself moves only when the reader asks for it.
"use strict";
(() => {
  const box = document.getElementById("live");
  const wanted = box.dataset;
  const outcomes = wanted.outcomes.split(" ");
  const fresh = new Set();
  let last = wanted.after;
  let source = null;

  const belongs = ({ current, job, user, verdict }) =>
    current &&
    outcomes.includes(verdict.outcome) &&
    (!wanted.reason || wanted.reason === verdict.reason) &&
    (!wanted.category || wanted.category === verdict.category) &&
    (!wanted.job || wanted.job === job) &&
    (!wanted.user || wanted.user === user) &&
    (!wanted.node || verdict.suspects.some((one) => one.node === wanted.node));

  const show = () => {
    const link = document.createElement("a");
    link.href = wanted.url;
    link.textContent = `${fresh.size} new ${fresh.size === 1 ? "verdict" : "verdicts"} - load ${fresh.size === 1 ? "it" : "them"}`;
    box.replaceChildren(...(fresh.size ? [link] : []));
    box.hidden = !fresh.size;
  };

  const listen = () => {
    source = new EventSource(`/v1/events?after=${last}`);
    source.addEventListener("verdict", (event) => {
      const stored = JSON.parse(event.data);
      last = event.lastEventId;
      const attempt = `${stored.attempt} ${stored.job}`;
      if (belongs(stored)) fresh.add(attempt);
      else if (stored.current) fresh.delete(attempt);
      show();
    });
  };

  // A hidden page lets go: browsers keep few connections to one server, and all tabs share them.
  const settle = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) {
      listen();
    }
  };
  document.addEventListener("visibilitychange", settle);
  settle();
})();
