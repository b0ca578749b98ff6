// Repeats the draw of the lottery from its public record, as waiting_room/tickets.py does, and compares
// the position that the shop states. Without script, the record and a program in Python remain.
"use strict";
(() => {
  const part = document.querySelector("[data-check]");
  if (!globalThis.crypto?.subtle) return; // browsers offer it on https and on this machine only
  const { placeUrl } = document.querySelector("#room").dataset;
  const [button, status] = part.children;

  const json = async (url) => {
    const response = await fetch(url, { headers: { Accept: "application/json" } });
    if (!response.ok && response.status !== 404) throw new Error(response.status);
    return response.ok ? response.json() : null;
  };
  const hash = async (text) => {
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
    return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  };

  /** Return the name of the result, and the values of its text. */
  const check = async () => {
    const { seed, root, list } = await json(part.dataset.record);
    if (!seed) return ["early", {}];
    if (await hash(seed) !== part.dataset.commitment) return ["number", {}];
    if (await hash([...list].sort().join("\n")) !== root) return ["list", {}];
    const ranks = await Promise.all(list.map(async (ticket) => [await hash(seed + root + ticket), ticket]));
    const order = ranks.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, ticket]) => ticket);
    const place = placeUrl ? await json(placeUrl) : null;
    const values = { said: place?.position, position: order.indexOf(place?.ticket) + 1, count: list.length };
    if (!place) return ["drawn", values];
    if (!values.position || values.said > values.count) return ["late", values]; // or joined again after the turn
    return [values.position === values.said ? "correct" : "position", values];
  };

  button.addEventListener("click", async () => {
    status.textContent = part.dataset.working;
    const [result, values] = await check().catch(() => ["failed", {}]);
    const isComputed = values.count !== undefined;
    const text = part.dataset[result] + (isComputed ? ` ${part.dataset.how}` : "");
    status.textContent = text.replace(/{(\w+)}/g, (_all, name) => values[name].toLocaleString(document.documentElement.lang));
  });
  part.hidden = false;
})();
