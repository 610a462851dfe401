// Puts the local time beside times in UTC: behind those that stand as whole dates, and on all when they are pointed at.
"use strict";
(() => {
  const long = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const short = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
  const here = (time) => new Date(time.dateTime);
  const differs = (at) => at.getTimezoneOffset() !== 0 && !Number.isNaN(at.getTime());

  for (const time of document.querySelectorAll("time[datetime]")) {
    if (!time.textContent.trim().endsWith(" UTC") || !differs(here(time))) continue;
    const beside = document.createElement("span");
    beside.className = "note";
    beside.textContent = ` (${short.format(here(time))})`;
    time.append(beside);
  }

  // Rows of lists are renewed, so that times get their titles only when somebody looks.
  const title = (event) => {
    const time = event.target.closest?.("time[datetime]");
    if (time && !time.title && !Number.isNaN(here(time).getTime())) time.title = long.format(here(time));
  };
  document.addEventListener("pointerover", title);
  document.addEventListener("focusin", title);
})();
