// Shows the value of a chart under the pointer, or of the second that the arrow keys choose.
"use strict";
(() => {
  const chosen = new Map(); // by chart, the number of the second; the charts are replaced all the time

  const valuesOf = (chart) => chart.dataset.values.split(" ");
  const show = (chart) => {
    const at = chosen.get(chart.id);
    const values = valuesOf(chart);
    const cursor = chart.querySelector(".cursor");
    const output = document.querySelector(`[data-of=${chart.id}]`);
    cursor.setAttribute("visibility", at === undefined ? "hidden" : "visible");
    if (at === undefined) return;
    const x = at * 238 / (values.length - 1);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const value = values[at] === "None" ? "–" : `${Number(values[at]).toFixed(1)} ${chart.dataset.unit}`;
    const texts = { ago: values.length - 1 - at, value };
    output.textContent = chart.dataset.words.replace(/{(\w+)}/g, (_all, name) => texts[name]);
  };
  const choose = (chart, at) => {
    const last = valuesOf(chart).length - 1;
    chosen.set(chart.id, Math.max(0, Math.min(last, at)));
    show(chart);
  };
  const leave = (chart) => {
    chosen.delete(chart.id);
    show(chart);
    document.querySelector(`[data-of=${chart.id}]`).textContent = "";
  };
  const chartOf = (event) => event.target.closest?.("svg[data-values]");

  document.addEventListener("pointermove", (event) => {
    const chart = chartOf(event);
    for (const id of chosen.keys()) {
      const other = document.getElementById(id);
      if (other && other !== chart && other !== document.activeElement) leave(other);
    }
    if (!chart) return;
    const { left, width } = chart.getBoundingClientRect();
    choose(chart, Math.round((event.clientX - left) / width * 59));
  });
  document.addEventListener("focusin", (event) => {
    const chart = chartOf(event);
    if (chart) choose(chart, chosen.get(chart.id) ?? Infinity);
  });
  document.addEventListener("focusout", (event) => {
    const id = chartOf(event)?.id;
    if (id) setTimeout(() => { // a refresh replaces the chart and gives the new one the focus
      const chart = document.getElementById(id);
      if (chart && chart !== document.activeElement) leave(chart);
    });
  });
  document.addEventListener("keydown", (event) => {
    const chart = chartOf(event);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!chart || !by) return;
    event.preventDefault();
    choose(chart, chosen.get(chart.id) + by);
    document.querySelector(`[data-of=${chart.id}]`).setAttribute("aria-live", "polite");
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const id of chosen.keys()) {
      const chart = document.getElementById(id);
      if (chart) show(chart);
    }
  });
})();
