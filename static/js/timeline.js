// Steps through the events of a timeline: a cursor moves over the pictures of all variants, the
// sentence of the moment is highlighted, and each process shows its line of code. Without script,
// the same sentences are a list below each picture.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DWELL = 1500; // milliseconds between two events while playing

  /** A line over one panel of a picture; the panel says which nanoseconds it shows, and where. */
  function cursorOf(panel) {
    const { first, length, left, right, top, bottom } = panel.dataset;
    const line = document.createElementNS(SVG, "line");
    line.setAttribute("class", "cursor");
    line.setAttribute("y1", top);
    line.setAttribute("y2", bottom);
    panel.lastElementChild.before(line); // the labels are above it
    return (time) => {
      const part = (time - first) / length;
      line.style.transform = `translateX(${Number(left) + (right - left) * part}px)`;
      line.setAttribute("visibility", part < 0 || part > 1 ? "hidden" : "visible");
    };
  }

  /** The moments of sentences, in order. */
  function timesOf(sentences) {
    return [...new Set(sentences.map((one) => Number(one.dataset.t)))].sort((a, b) => a - b);
  }

  /** One variant: its picture, its sentences, and what they say about the row and the code. */
  class Variant {
    constructor(figure) {
      this.figure = figure;
      this.label = figure.dataset.label;
      this.sentences = [...figure.querySelectorAll("li[data-t]")];
      this.times = timesOf(this.sentences);
      const panels = [...figure.querySelectorAll("svg g[data-length]")];
      this.length = Number(panels[0]?.dataset.length ?? 0);
      this.cursors = panels.map(cursorOf);
      const state = figure.querySelector(".state");
      this.row = state.querySelector("output");
      this.row.parentElement.hidden = !this.sentences.some((one) => one.dataset.stock);
      const [first] = this.sentences.filter((one) => one.dataset.stock);
      this.initial = first?.dataset.stock.split(" → ")[0];
      this.lines = new Map();
      const working = this.sentences.filter((one) => one.dataset.code).map((one) => one.dataset.who);
      for (const who of [...new Set(working)].sort()) {
        const item = state.querySelector("template").content.cloneNode(true).firstElementChild;
        item.querySelector("strong").textContent = who;
        state.querySelector("ul").append(item);
        this.lines.set(who, item);
      }
      state.hidden = false;
    }

    /** Show the state after every event up to a time. */
    show(time) {
      let current = null;
      let row = this.initial;
      const code = new Map();
      const lines = this.sentences.filter((one) => one.dataset.code !== undefined);
      for (const one of lines.toReversed()) code.set(one.dataset.who, one.dataset); // where each begins
      for (const one of this.sentences) {
        if (Number(one.dataset.t) > time) break;
        current = one;
        row = one.dataset.stock || row;
        if (one.dataset.code !== undefined) code.set(one.dataset.who, one.dataset);
      }
      for (const one of this.sentences) {
        if (one === current) one.setAttribute("aria-current", "step");
        else one.removeAttribute("aria-current");
      }
      this.row.textContent = row;
      for (const [who, item] of this.lines) {
        item.querySelector("code").textContent = code.get(who)?.code || "";
        item.querySelector("small").textContent = code.get(who)?.place || "";
      }
    }
  }

  class Player {
    constructor(root) {
      this.variants = [...root.querySelectorAll("figure")].map((figure) => new Variant(figure));
      this.times = timesOf(this.variants.flatMap((variant) => variant.sentences));
      this.panel = root.querySelector(".playback");
      this.button = this.panel.querySelector("[data-do=play]");
      this.playText = this.button.textContent;
      this.slider = this.panel.querySelector("input");
      this.now = this.panel.querySelector(".now");
      this.slider.max = Math.max(...this.variants.map((variant) => variant.length));
      this.go(this.times[0]);
      this.draw(-1); // at rest, the cursor says nothing
      this.panel.hidden = false;
      this.panel.addEventListener("click", (event) => {
        const action = event.target.closest("[data-do]")?.dataset.do;
        if (action === "play") this.toggle();
        else if (action) this.step(action === "next" ? 1 : -1);
      });
      this.slider.addEventListener("input", () => this.jump(Number(this.slider.value)));
      root.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const isPicture = event.target.matches(".scroll");
      if (!isPicture && !event.target.closest(".playback")) return;
      // In a picture, its own events; in the controls, those of all pictures.
      const { times } = this.variants.find(({ figure }) => figure.contains(event.target)) ?? this;
      const action = {
        ArrowRight: () => this.step(1, times),
        ArrowLeft: () => this.step(-1, times),
        Home: () => this.jump(times[0]),
        End: () => this.jump(times.at(-1)),
        " ": isPicture ? () => this.toggle() : null, // a button has its own use for Space
      }[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }

    step(by, times) {
      this.pause();
      this.advance(by, times);
    }

    jump(time) {
      this.pause();
      this.go(time);
    }

    /** Go to the next or the previous event; return false if there is none. */
    advance(by, times = this.times) {
      const { time } = this;
      const next = by > 0 ? times.find((one) => one > time) : times.findLast((one) => one < time);
      if (next !== undefined) this.go(next);
      return next !== undefined;
    }

    /** Show a moment. */
    go(time) {
      this.time = time;
      this.slider.value = time;
      this.variants.forEach((variant) => variant.show(time));
      const latest = Math.max(...this.times.filter((one) => one <= time));
      const texts = this.variants.flatMap(({ label, sentences }) =>
        sentences
          .filter((one) => Number(one.dataset.t) === latest)
          .map((one) => (label ? `${label} · ` : "") + one.textContent.trim()),
      );
      this.now.textContent = texts.join(" ").replaceAll("。 ", "。"); // no space in Chinese
      this.slider.setAttribute("aria-valuetext", this.now.textContent);
      this.draw(time);
    }

    draw(time) {
      this.variants.forEach((variant) => variant.cursors.forEach((move) => move(time)));
    }

    toggle() {
      if (this.timer) {
        this.pause();
        return;
      }
      if (this.time === this.times.at(-1)) this.go(this.times[0]);
      this.button.textContent = this.button.dataset.pause;
      this.timer = setInterval(() => this.advance(1) || this.pause(), DWELL);
      this.advance(1);
    }

    pause() {
      clearInterval(this.timer);
      this.timer = undefined;
      this.button.textContent = this.playText;
    }
  }

  const start = () => {
    for (const root of document.querySelectorAll("[data-player]:not([data-started])")) {
      root.dataset.started = "";
      if (root.querySelector("li[data-t]")) new Player(root);
    }
  };
  start();
  document.addEventListener("htmx:afterSwap", start);
})();
