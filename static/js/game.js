// Marks the levels that were won in this browser, and replays recorded moves where a page has them.
"use strict";
(() => {
  const KEY = "levels-won";

  function wonLevels() {
    try {
      const found = JSON.parse(localStorage.getItem(KEY));
      return new Set(Array.isArray(found) ? found : []);
    } catch {
      return new Set(); // no storage: the game works without marks
    }
  }

  function mark() {
    const won = wonLevels();
    const level = document.querySelector("[data-won]")?.dataset.won;
    if (level && !won.has(level)) {
      won.add(level);
      try { localStorage.setItem(KEY, JSON.stringify([...won])); } catch { /* as above */ }
    }
    for (const one of document.querySelectorAll("[data-level]"))
      one.querySelector(".mark").hidden = !won.has(one.dataset.level);
  }

  /** Keep the focus on the button that was pressed; if it is disabled now, on what can follow. */
  function refocus({ id }) {
    const pressed = document.getElementById(id);
    if (pressed.disabled) document.querySelector("#game .won a, #game button:enabled").focus();
    else pressed.focus({ preventScroll: true });
  }

  /** Replay a recording: `past` has the states so far, each with the sentences that led to it. */
  function replay({ lines, sentences, variants }) {
    const first = { state: 0, told: [], latest: [] };
    let variant = variants[0];
    let past = [first];

    function show() {
      const { state, told, latest } = past.at(-1);
      document.getElementById("game").innerHTML = variant.states[state].map((one) => lines[one]).join("\n");
      if (told.length) {
        const items = told.map((one) => {
          const item = document.createElement("li");
          item.textContent = sentences[one];
          return item;
        });
        document.querySelector(".events").replaceChildren(...items);
      }
      document.getElementById("latest").textContent = latest.map((one) => sentences[one]).join(" ").replaceAll("。 ", "。");
      mark();
    }

    document.addEventListener("submit", (event) => {
      if (!event.target.closest("#game")) return;
      event.preventDefault();
      const { name, value } = event.submitter;
      const { state, told } = past.at(-1);
      if (name === "guarded") {
        variant = variants[Number(value)];
        past = [first];
      } else if (name === "undo") {
        past.pop();
      } else {
        const [next, ...more] = variant.moves[state][value];
        past.push({ state: next, told: [...told, ...more], latest: more });
      }
      show();
      refocus(event.submitter);
    });
  }

  mark();
  document.addEventListener("htmx:afterSwap", ({ detail }) => {
    history.replaceState(null, "", detail.pathInfo.responsePath); // for a reload, and to share it
    mark();
    refocus(detail.requestConfig.triggeringEvent.submitter);
  });
  if (globalThis.recordedGame) replay(globalThis.recordedGame);
})();
