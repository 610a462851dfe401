// Keeps the number of new incidents in the title of the tab, while it is hidden, too; tells of each new one by a
// notification and a sound, where somebody asked for that in this browser. Of all tabs one listens, and tells the others.
"use strict";
(() => {
  const plain = document.title;
  const NOTIFY = "logdoctor.notify";
  const SOUND = "logdoctor.sound";
  const GATHER = 500; // milliseconds in which events come together
  const RETRY = 30_000;
  const tabs = "BroadcastChannel" in window ? new BroadcastChannel("logdoctor.attention") : null;
  let newest = null; // id of the newest incident that was there when the page came
  let timer = 0;
  let source = null;
  let audio = null;

  const show = (count) => {
    document.title = count ? `(${count > 99 ? "99+" : count}) ${plain}` : plain;
  };

  const wants = (what) => {
    try {
      return localStorage.getItem(what) === "on";
    } catch {
      return false; // storage is off
    }
  };

  const keep = (what, on) => {
    try {
      localStorage.setItem(what, on ? "on" : "off");
    } catch {
      // it holds for this page only
    }
  };

  const count = async () => {
    const answer = await fetch("/v1/incidents/counts", { cache: "no-store" }).catch(() => null);
    if (!answer?.ok) return;
    const told = await answer.json();
    newest ??= told.newest;
    show(told.new);
    tabs?.postMessage(told.new);
  };

  const soon = () => {
    timer ||= setTimeout(() => {
      timer = 0;
      count();
    }, GATHER);
  };

  const beep = () => {
    audio ??= new AudioContext();
    audio.resume();
    const tone = audio.createOscillator();
    const volume = audio.createGain();
    tone.frequency.value = 660;
    volume.gain.setValueAtTime(0.15, audio.currentTime);
    volume.gain.exponentialRampToValueAtTime(0.001, audio.currentTime + 0.6);
    tone.connect(volume).connect(audio.destination);
    tone.start();
    tone.stop(audio.currentTime + 0.6);
  };

  const alarm = ({ id, node, newest: stored }) => {
    if (wants(SOUND)) beep();
    if (!wants(NOTIFY) || !("Notification" in window) || Notification.permission !== "granted") return;
    const where = node || stored.job;
    try {
      const note = new Notification(`${stored.verdict.reason}: ${where}`, { body: `Incident ${id} is new`, tag: `logdoctor-${id}` });
      note.addEventListener("click", () => {
        window.focus();
        location.assign(`/incidents/${id}`);
      });
    } catch {
      // some browsers want a service worker for this
    }
  };

  const heard = (one) => {
    soon();
    if (newest === null || one.id <= newest || !one.newest) return;
    newest = one.id;
    if (one.state === "new" && !one.muted && !one.snoozed) alarm(one);
  };

  const listen = () => {
    source = new EventSource("/v1/incidents/stream");
    source.addEventListener("incident", (event) => heard(JSON.parse(event.data)));
    source.addEventListener("open", soon);
    source.addEventListener("error", () => {
      if (source?.readyState !== EventSource.CLOSED) return; // the browser tries again
      source = null;
      setTimeout(listen, RETRY);
    });
  };

  tabs?.addEventListener("message", (event) => show(Number(event.data)));
  count();
  // Whoever holds the lock listens until its tab is closed; browsers keep few connections to one server.
  if (navigator.locks) navigator.locks.request("logdoctor.attention", () => new Promise(() => listen()));
  else setInterval(count, RETRY);

  const button = (id, what, called, begin) => {
    const asked = document.getElementById(id);
    if (!asked) return;
    const say = () => {
      const on = wants(what);
      asked.setAttribute("aria-pressed", String(on));
      asked.textContent = `${called} ${on ? "on" : "off"}`;
    };
    asked.hidden = false;
    say();
    asked.addEventListener("click", async () => {
      const on = !wants(what);
      if (on && (await begin()) === false) {
        asked.textContent = `${called} blocked by the browser`;
        return;
      }
      keep(what, on);
      say();
    });
  };
  if ("Notification" in window && window.isSecureContext)
    button("notify", NOTIFY, "Notifications", async () => (await Notification.requestPermission()) === "granted");
  button("sound", SOUND, "Sound", beep);
})();
