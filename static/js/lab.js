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
