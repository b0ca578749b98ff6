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

  const [DAY, HOUR, MINUTE, SECOND] = document.body.dataset.units?.split(" ") ?? [];
  const left = (seconds) => {
    const days = Math.floor(seconds / 86400);
    const clock = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60].map(Math.floor).map(two).join(":");
    return days ? `${days} ${DAY} ${clock}` : clock;
  };
  // The two largest units, for a card: 2 h 57 min.
  const about = (seconds) => {
    const parts = [[seconds / 86400, DAY], [seconds / 3600 % 24, HOUR], [seconds / 60 % 60, MINUTE], [seconds % 60, SECOND]];
    const first = parts.findIndex(([amount]) => amount >= 1);
    return parts.slice(first, first + 2).map(([amount, unit]) => `${Math.floor(amount)} ${unit}`).join(" ");
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

  let isBuying = false; // a form is on its way: the page must not be replaced
  const reload = () => isBuying || location.reload();

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
        clock.textContent = left(Math.max(0, Math.ceil(clock.dataset.until - now())));
        continue;
      }
      clock.dataset.over = "";
      // Reload at a random time, and only a page that was rendered before the end.
      if (madeAt < Number(clock.dataset.until)) setTimeout(reload, 500 + Math.random() * 1500);
    }
    for (const clock of document.querySelectorAll("[data-clock]")) {
      clock.textContent = new Date(now() * 1000).toLocaleTimeString("en-GB");
    }
    for (const time of document.querySelectorAll("[data-in]")) {
      const seconds = Math.ceil(Number(time.dataset.at) - now());
      time.textContent = seconds > 0 ? time.dataset.in.replace("%s", about(seconds)) : time.dataset.now;
    }
    for (const time of document.querySelectorAll("[data-as-of]")) {
      const age = Math.max(0, Math.round(now() - Date.parse(time.dateTime) / 1000));
      time.textContent = age < 120 ? time.dataset.ago.replace("%s", age)
      : new Intl.RelativeTimeFormat(document.documentElement.lang, {style: "narrow"})
        .format(-Math.round(age / 60), "minute");
    }
  };
  if (document.querySelector("[data-until], [data-clock], [data-as-of], [data-in]")) {
    tick();
    setInterval(tick, 500);
  }

  // The minutes left to pay, in the header.
  const badges = document.querySelectorAll("[data-seconds-left]");
  const countMinutes = () => badges.forEach((badge) => {
    const minutes = Math.ceil((badge.dataset.secondsLeft - (performance.now() - arrived) / 1000) / 60);
    badge.querySelector("b").textContent = minutes;
    badge.hidden = minutes < 1;
  });
  if (badges.length) setInterval(countMinutes, 1000);

  // Times in the reader's own zone, which the page names, also in its title; the server's time stays as that of the element. Without
  // the date when it is today.
  const offset = -new Date().getTimezoneOffset();
  const [hours, minutes] = [Math.floor(Math.abs(offset) / 60), Math.abs(offset) % 60];
  for (const zone of document.querySelectorAll("[data-zone-name]")) {
    zone.textContent = `UTC${offset < 0 ? "-" : "+"}${hours}${minutes ? `:${two(minutes)}` : ""}`;
  }
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
      document.title = document.title.replace(time.title, time.textContent);
    }
    for (const time of part.querySelectorAll("[data-in]")) {
      time.title = new Date(time.dateTime).toLocaleString(language, { dateStyle: "medium", timeStyle: "short" });
    }
  };
  localize(document);
  document.addEventListener("htmx:afterSwap", () => { localize(document); tick(); });

  // The server says when the next poll is due. Pages that were loaded in the same second poll at
  // different times, and a poll that failed is repeated later.
  const polls = {};
  const pollLater = (id, ms) => {
    clearTimeout(polls[id]);
    polls[id] = setTimeout(() => {
      pollLater(id, 10000);
      const one = document.getElementById(id);
      if (one?.dataset.poll) htmx.trigger(one, "poll");
    }, ms * (0.8 + 0.2 * Math.random()));
  };
  for (const one of document.querySelectorAll("[id][data-poll]")) if (one.dataset.poll) pollLater(one.id, one.dataset.poll);
  document.addEventListener("htmx:afterRequest", ({ detail: { target, xhr } }) => {
    if (target.dataset.poll) pollLater(target.id, xhr.getResponseHeader("X-Poll") ?? 10000);
  });

  // A poll pauses while the tab is hidden. While a purchase is on its way, no poll may replace the page,
  // not even one whose request was sent before.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.target.matches("[data-poll]")) event.preventDefault();
  });
  for (const step of ["htmx:beforeRequest", "htmx:beforeOnLoad"]) {
    document.addEventListener(step, (event) => {
      if (isBuying && event.target.id === "stock") event.preventDefault();
    });
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    for (const poll of document.querySelectorAll("[data-poll]")) htmx.trigger(poll, "visible");
  });

  // A menu closes like one of the system: by Escape, or by a click elsewhere.
  const closeMenus = (kept) => {
    for (const menu of document.querySelectorAll(".menu[open]")) {
      if (menu.contains(kept)) continue;
      if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
      menu.open = false;
    }
  };
  document.addEventListener("click", (event) => closeMenus(event.target));
  document.addEventListener("keydown", (event) => event.key === "Escape" && closeMenus());

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-send-once]")) return;
    if ("sent" in form.dataset) return event.preventDefault();
    const button = event.submitter ?? form.querySelector("button");
    form.dataset.sent = "";
    button.textContent = form.dataset.sendOnce;
    button.setAttribute("aria-busy", "true");
    if (!form.matches("[data-buy]")) return;
    event.preventDefault();
    buy(form, button);
  });

  // A purchase is sent until the shop has answered, always with the same key, so that it counts once:
  // also when the connection is lost before the form, or the answer, has arrived.
  const ANSWERED = [201, 202, 409, 429, 503];
  const IN_FLIGHT = 5000; // ms in which a request without an answer may still buy
  const post = (form, body) => fetch(form.action, {
    method: "POST",
    body,
    // Exactly this type: the shop reads purchase tokens from no other.
    headers: { Accept: "application/json", "Content-Type": "application/x-www-form-urlencoded" },
    signal: AbortSignal.timeout(15000),
  });
  const pause = (seconds) => new Promise((done) => {
    addEventListener("online", done, { once: true });
    setTimeout(done, seconds * 1000 * (0.75 + Math.random() / 2));
  });
  const buy = async (form, button) => {
    const body = new URLSearchParams(new FormData(form));
    const status = form.querySelector("[role=status]");
    const becomeUnsure = () => { form.dataset.unsureUntil = performance.now() + IN_FLIGHT; };
    isBuying = true;
    form.parentElement.querySelector(".note.error")?.remove();
    for (let wait = 1; ; wait = Math.min(2 * wait, 15)) {
      try {
        form.dataset.attempts = Number(form.dataset.attempts ?? 0) + 1;
        body.set("attempt", form.dataset.attempts);
        const response = await post(form, body.toString());
        if (response.status === 502 || response.status === 504) throw new Error("a proxy has answered");
        // Any other response needs its own page, such as signing in: send the form as without script.
        if (!ANSWERED.includes(response.status)) return form.submit();
        const answer = await response.json();
        if (answer.url) return location.assign(answer.url);
        // A refusal is not the last word while an earlier request of this form may still succeed.
        const mayBuy = performance.now() < Number(form.dataset.unsureUntil ?? 0);
        if (response.status === 503) becomeUnsure();
        const isOpen = answer.error === "in_flight" || (response.status === 409 && mayBuy);
        if (!isOpen) return refuse(form, button, answer);
      } catch {
        becomeUnsure();
        status.textContent = navigator.onLine ? form.dataset.unreachable : form.dataset.offline;
      }
      await pause(wait);
    }
  };
  const refuse = (form, button, answer) => {
    const note = document.createElement("div");
    const title = document.createElement("strong");
    note.className = "note error";
    note.setAttribute("role", "alert");
    title.textContent = answer.title;
    note.append(title, " ", answer.detail);
    form.before(note);
    const isFinal = ["sold_out", "limit", "unpaid_limit"].includes(answer.error) && !answer.fewer_left;
    button.disabled = isFinal;
    button.textContent = isFinal ? answer.title : form.dataset.again;
    button.removeAttribute("aria-busy");
    form.querySelector("[role=status]").textContent = "";
    delete form.dataset.sent;
    setTimeout(() => { isBuying = false; }, isFinal ? 15000 : 0); // the reason stays for a while
  };

  // After "back" from the order, the browser shows the old page with its used button.
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });
})();
