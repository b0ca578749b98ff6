// A form of the admin is sent once: a double click on "Add stock" would add the units twice.
"use strict";
document.addEventListener("submit", (event) => {
  if ("sent" in event.target.dataset) event.preventDefault();
  event.target.dataset.sent = "";
});
// After "back", the browser shows the old page, whose form may be sent again.
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});
