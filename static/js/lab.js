// Copies the address of a result; without script, the field can be selected.
"use strict";
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const field = document.getElementById(button.dataset.copy);
  field.select();
  try { await navigator.clipboard.writeText(field.value); } catch { document.execCommand("copy"); }
  button.textContent = button.dataset.done;
});
const show = () => document.querySelectorAll("[data-copy]").forEach((one) => { one.hidden = false; });
show();
document.addEventListener("htmx:afterSwap", show);

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
