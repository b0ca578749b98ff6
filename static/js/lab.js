// Copies the address of a result, and replays its decisive moment; without script, the field can be
// selected and the picture of the end stays.
"use strict";
(() => {
  const SLOWER = 10;
  const [BEFORE, AFTER] = [0.5, 1.5]; // seconds of the run around the write that the verdict explains, or the sale of the last unit
  const [TICK, CALM_TICK] = [50, 1000]; // milliseconds between two pictures
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)");
  const running = new Map(); // by replay, how to end it

  const number = (value) => value.toLocaleString(document.documentElement.lang);

  const copy = async (button) => {
    const field = document.getElementById(button.dataset.copy);
    field.select();
    try { await navigator.clipboard.writeText(field.value); } catch { document.execCommand("copy"); }
    button.textContent = button.dataset.done;
  };

  /** The units sold at a time, between the points of the curve. */
  const soldAt = (points, at) => {
    const next = points.findIndex(([time]) => time > at);
    if (next < 1) return next < 0 ? points.at(-1)[1] : 0;
    const [[begin, before], [end, after]] = [points[next - 1], points[next]];
    return Math.floor(before + (after - before) * (at - begin) / (end - begin));
  };

  const replay = (part) => {
    const { stock, buyers, sold_at: points, per_sign: perSign, decisive: told } = JSON.parse(part.dataset.replay);
    const [button, counter] = part.children;
    const figure = part.closest("figure");
    const marks = [...figure.querySelectorAll(".buyers span")];
    const numbers = [...figure.querySelectorAll(".buyers-legend li")].map((item) => item.lastChild);
    const kept = [button, ...marks, ...numbers].map((one) => [one, one.textContent]);
    const signs = [...figure.querySelectorAll(".buyers-legend span")].map((one) => one.textContent);
    const draw = (at) => {
      const sold = soldAt(points, at);
      const counts = [Math.min(sold, stock), Math.max(0, sold - stock), 0, buyers - sold];
      let end = 0;
      counts.forEach((count, state) => {
        const begin = end;
        end += count;
        const shown = Math.ceil(end / perSign) - Math.ceil(begin / perSign);
        marks[state].textContent = signs[state].repeat(Math.max(shown, state === 1 && count > 0)); // one too many is seen
        numbers[state].textContent = numbers[state].textContent.replace(/\d[\d,.]*$/, number(count));
      });
      const values = { at: at.toFixed(2), sold: number(sold), stock: number(stock) };
      counter.textContent = part.dataset.words.replace(/{(\w+)}/g, (_all, name) => values[name]);
    };
    const last = points.at(-1)[0];
    const decisive = told ?? (points.find(([, sold]) => sold >= stock) ?? points.at(-1))[0];
    const begin = Math.max(0, decisive - BEFORE);
    const end = Math.min(last, decisive + AFTER);
    const began = performance.now();
    const stop = () => {
      clearInterval(timer);
      running.delete(part);
      for (const [one, text] of kept) one.textContent = text;
    };
    const tick = () => {
      const at = begin + (performance.now() - began) / 1000 / SLOWER;
      draw(Math.min(at, end));
      if (at >= end) stop();
    };
    const timer = setInterval(tick, isCalm.matches ? CALM_TICK : TICK);
    running.set(part, stop);
    button.textContent = part.dataset.stop;
    tick();
  };

  document.addEventListener("click", ({ target }) => {
    const part = target.closest("[data-replay]");
    if (target.closest("[data-copy]")) copy(target.closest("[data-copy]"));
    if (part && target.closest("button")) (running.get(part) ?? (() => replay(part)))();
  });
  const show = () => document.querySelectorAll("[data-copy], [data-replay]").forEach((one) => { one.hidden = false; });
  show();
  document.addEventListener("htmx:afterSwap", show);
})();

// Remembers in this browser which steps of the course were opened; the course shows it.
try {
  const seen = new Set(JSON.parse(localStorage.getItem("course") ?? "[]"));
  const lesson = document.querySelector("[data-seen-step]");
  if (lesson) localStorage.setItem("course", JSON.stringify([...seen.add(lesson.dataset.seenStep)]));
  for (const progress of document.querySelectorAll("[data-seen]")) {
    const steps = [...progress.parentElement.querySelectorAll("[data-step]")].filter((one) => seen.has(one.dataset.step));
    steps.forEach((one) => one.classList.add("seen"));
    progress.querySelector("output").textContent = progress.querySelector("progress").value = steps.length;
    progress.hidden = false;
  }
} catch { /* the browser stores nothing */ }
