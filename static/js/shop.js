// Progressive enhancement: every page works without it.
"use strict";
document.documentElement.classList.add("script");
(() => {
  // The server's clock: its time when it made the page, plus what has passed since the page arrived,
  // on a monotonic clock. The delay of the response makes it late, never early.
  const made = document.querySelector("[data-clock], [data-server-now]");
  const madeAt = made ? Number(made.dataset.clock ?? made.dataset.serverNow) : Date.now() / 1000;
  const arrived = performance.getEntriesByType("navigation")[0]?.responseStart ?? performance.now();
  const now = () => madeAt + (performance.now() - arrived) / 1000;
  const two = (number) => String(number).padStart(2, "0");

  const left = (seconds) => {
    const days = Math.floor(seconds / 86400);
    const clock = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60].map(Math.floor).map(two).join(":");
    return days ? `${days} ${document.body.dataset.day} ${clock}` : clock;
  };

  // Enable what waits for the opening without a request, so that browsers do not all reload at once.
  const open = () => {
    for (const one of document.querySelectorAll("[data-open-label]")) {
      one.textContent = one.dataset.openLabel;
      one.disabled = false;
    }
  };
  // A computer that was asleep is late; the stock bar has the phase from the server.
  const isOpen = () => document.querySelector("#stock")?.dataset.phase === "open";

  const tick = () => {
    for (const clock of document.querySelectorAll("[data-until]:not([data-over])")) {
      const seconds = Number(clock.dataset.until) - now();
      clock.textContent = left(Math.max(0, Math.ceil(seconds)));
      // Screen readers announce every 30 seconds in the last minute and each of the last ten seconds.
      const whole = Math.ceil(seconds);
      if (clock.getAttribute("role") === "timer") {
        clock.setAttribute("aria-live", whole <= 10 || (whole <= 60 && whole % 30 === 0) ? "polite" : "off");
      }
      const opens = clock.dataset.then === "open";
      if (seconds > 0 && !(opens && isOpen())) continue;
      if (opens) {
        open();
        clock.dataset.until = clock.dataset.next;
        clock.dataset.then = "reload";
        continue;
      }
      clock.dataset.over = "";
      // Reload at a random time, and only a page that was rendered before the end.
      if (madeAt < Number(clock.dataset.until)) setTimeout(() => location.reload(), 500 + Math.random() * 1500);
    }
    for (const clock of document.querySelectorAll("[data-clock]")) {
      const date = new Date(now() * 1000);
      clock.textContent = date.toLocaleTimeString("en-GB", { timeZone: clock.dataset.zone });
    }
    for (const time of document.querySelectorAll("[data-as-of]")) {
      const age = Math.max(0, Math.round(now() - Date.parse(time.dateTime) / 1000));
      time.textContent = time.dataset.ago.replace("%s", age);
    }
  };
  if (document.querySelector("[data-until], [data-clock], [data-as-of]")) {
    tick();
    setInterval(tick, 500);
  }

  // Times in the reader's own zone; the server's stays as the title. Without the date when it is today.
  const language = document.documentElement.lang;
  const day = (date) => date.toLocaleDateString(language);
  const localize = (part) => {
    for (const time of part.querySelectorAll("[data-moment]:not([title])")) {
      const date = new Date(time.dateTime);
      const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
      if (day(date) !== day(new Date())) Object.assign(parts, { month: "short", day: "numeric" });
      if (date.getFullYear() !== new Date().getFullYear()) parts.year = "numeric";
      time.title = time.textContent;
      time.textContent = date.toLocaleString(language, parts);
    }
  };
  localize(document);
  document.addEventListener("htmx:afterSwap", () => { localize(document); tick(); });

  for (const form of document.querySelectorAll("[data-autosubmit]")) {
    form.addEventListener("change", () => form.submit());
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-send-once]")) return;
    if ("sent" in form.dataset) return event.preventDefault();
    form.dataset.sent = "";
    const button = form.querySelector("button");
    button.dataset.label = button.textContent;
    button.textContent = form.dataset.sendOnce;
    button.setAttribute("aria-busy", "true");
  });

  // After "back" from the order, the browser shows the old page with its used button.
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });
})();
