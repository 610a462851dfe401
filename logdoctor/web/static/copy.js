// A button that copies what stands in a <pre data-copy>. Without scripts the text is selected by hand.
"use strict";
for (const text of document.querySelectorAll("pre[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet copy";
  button.textContent = "Copy";
  const said = document.createElement("span");
  said.className = "hidden";
  said.setAttribute("role", "status");
  const select = () => {
    const range = document.createRange();
    range.selectNodeContents(text);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  button.addEventListener("click", async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(text.textContent);
      done = true;
    } catch {
      select(); // without HTTPS there is no clipboard for scripts
      done = document.execCommand("copy");
    }
    said.textContent = done ? "Copied" : "Selected: copy it by hand";
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 2000);
  });
  text.before(button, said);
}
