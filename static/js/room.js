// The waiting room: polls one number for everyone, and derives from it what this visitor sees.
"use strict";
(() => {
  const room = document.querySelector("#room");
  const live = document.querySelector("#announcement");
  const { statusUrl, placeUrl, positionsUrl, saleUrl } = room.dataset;
  const POSITIONS_PER_SECOND = 5000; // of all visitors together, after the draw; nginx serves them
  const PLACES_PER_SECOND = 300; // of all visitors together, after a failure of the store
  const SALE_AFTER_MS = 1500; // the announcement of the turn is read before the page changes
  let status = JSON.parse(room.dataset.status);
  let place = JSON.parse(room.dataset.place);
  let isStale = false; // the store was away: it may have lost the place
  let isWaiting = false;
  let timer;
  let asking;

  // Of this tab and place, so that a reload announces nothing twice and raises no estimate.
  const key = [statusUrl, status.generation, place?.ticket].join();
  let memory = JSON.parse(sessionStorage.getItem(key) ?? "{}");
  const remember = (values) => sessionStorage.setItem(key, JSON.stringify(Object.assign(memory, values)));

  const title = document.title;
  const language = document.documentElement.lang;
  const fill = (text, ...values) => values.reduce((done, value) => done.replace("%s", value), text);
  const number = (value) => value.toLocaleString(language);
  const announce = (name, ...values) => { live.textContent = fill(live.dataset[name], ...values); };

  const isOver = () => place.is_over || (place.position && place.position <= status.lapsed);
  const isAdmitted = () => place.admitted || (place.position && place.position <= status.serving);
  const viewOf = () => {
    if (status.state === "ended" || status.state === "unavailable") return status.state;
    if (!place) return "join";
    if (isOver()) return "over";
    if (isAdmitted()) return room.dataset.bought ? "bought" : "turn";
    if (status.state === "before") return "before";
    return place.position ? "waiting" : "shuffling";
  };

  // The same as estimate() in waiting_room/views.py. A higher estimate is shown only with a new reason.
  const estimate = () => {
    const tenths = 10 * status.inlet;
    const ahead = Math.max(0, place.position - status.serving);
    let range = [Math.floor(8 * ahead / tenths), Math.ceil(12 * ahead / tenths)];
    if (memory.range && memory.changed === status.changed) range = range.map((minutes, at) => Math.min(minutes, memory.range[at]));
    remember({ range, changed: status.changed });
    return range;
  };
  const inWords = ([low, high], { one, under, range }) => {
    if (low) return fill(range, number(low), number(high));
    return high > 1 ? fill(under, number(high)) : one;
  };

  const show = () => {
    const view = viewOf();
    for (const one of document.querySelectorAll("[data-view]")) one.hidden = !one.dataset.view.split(" ").includes(view);
    for (const one of document.querySelectorAll("[data-when]")) one.hidden = !one.dataset.when.split(" ").includes(status.state);
    for (const one of room.querySelectorAll("[data-reason]")) one.hidden = one.dataset.reason !== status.reason;
    const message = (language.startsWith("zh") && status.message_zh) || status.message;
    room.querySelector("[data-message]").hidden = !message;
    room.querySelector("[data-message] span").textContent = message;
    const ahead = place?.position ? Math.max(0, place.position - status.serving - 1) : 0;
    const values = { joined: status.joined, waiting: Math.max(0, status.joined - status.serving), left: status.left, position: place?.position ?? 0, ahead };
    for (const one of document.querySelectorAll("[data-n]")) one.textContent = number(values[one.dataset.n]);
    document.title = view === "waiting" ? `${number(ahead)} · ${title}` : title;
    isWaiting ||= place && !isAdmitted();
    if (view === "over") {
      if (memory.joined) announce("over");
      forget();
    }
    if (view === "waiting") wait(ahead);
    if (view === "turn") turn();
  };

  const wait = (ahead) => {
    const text = room.querySelector("[data-estimate]");
    const few = room.querySelector("[data-few]");
    const words = inWords(estimate(), text.dataset);
    text.textContent = words;
    few.hidden = status.state !== "open" || ahead < status.left;
    Object.assign(room.querySelector("progress"), { max: place.position, value: status.serving });
    if (status.state !== "open") return; // no one knows when it goes on
    // Tenths of the way since this tab first knew the position; several at once are one announcement.
    if (memory.start === undefined) remember({ start: status.serving, tenth: 0 });
    const tenth = Math.floor(10 * (status.serving - memory.start) / (place.position - memory.start));
    const isMinute = place.position - status.serving <= status.inlet;
    if (isMinute && !memory.minute) announce("minute");
    else if (tenth > memory.tenth) announce("tenth", number(ahead), words);
    remember({ tenth, minute: memory.minute || isMinute });
  };

  const turn = () => {
    document.title = `${live.dataset.turn} · ${title}`;
    if (memory.turn || status.state === "sold_out") return;
    remember({ turn: true });
    announce("turn");
    if (isWaiting) setTimeout(() => location.assign(saleUrl), SALE_AFTER_MS);
  };

  const json = async (url, options) => {
    const response = await fetch(url, { ...options, headers: { Accept: "application/json" }, signal: AbortSignal.timeout(10000) });
    if (!response.ok && response.status !== 404) throw new Error(response.status);
    return response.ok ? response.json() : null;
  };
  const forget = () => {
    memory = {};
    sessionStorage.removeItem(key);
  };
  const dropPlace = () => {
    place = null;
    forget();
  };
  const askPlace = async () => {
    try {
      const drawn = isStale ? {} : await json(positionsUrl.replace("-00.", `-${place.ticket.slice(0, 2)}.`));
      const position = place && drawn[place.ticket]; // a TypeError if the file does not exist yet
      place = position ? { ...place, position } : await json(placeUrl);
      isStale = false;
      if (!place) dropPlace();
      show();
    } catch { /* the next poll asks again */ }
    asking = undefined;
  };

  const poll = async () => {
    if (document.hidden) return; // "visibilitychange" calls again
    const before = status;
    const closed = { state: "unavailable" };
    const found = await json(statusUrl, { credentials: "omit", cache: "no-store" }).catch(() => closed);
    if (!found) return location.assign(saleUrl); // staff have ended the room: everyone may buy
    status = { ...before, ...found };
    const isReset = status.generation !== before.generation; // the account may have joined again on another device
    if (isReset) dropPlace();
    isStale ||= isReset || before.state === "unavailable";
    show();
    const isDrawn = ["open", "paused", "offered", "sold_out"].includes(status.state);
    const isUnknown = isStale ? status.state !== "unavailable" : place && isDrawn && !place.position;
    if (placeUrl && isUnknown && !asking) {
      asking = setTimeout(askPlace, 1000 * Math.random() * status.joined / (isStale ? PLACES_PER_SECOND : POSITIONS_PER_SECOND));
    }
    // Pages that were loaded in the same second poll at different times.
    clearTimeout(timer);
    if (status.state !== "ended") timer = setTimeout(poll, 1000 * status.poll * (0.8 + 0.2 * Math.random()));
  };

  // The server has rendered the page; a screen reader has to know the region before it gets a text.
  setTimeout(() => {
    show();
    if (place && !isOver()) {
      if (!memory.joined && !memory.turn) announce("joined");
      remember({ joined: true });
    }
    document.addEventListener("visibilitychange", poll);
    poll();
  }, 500);
})();
