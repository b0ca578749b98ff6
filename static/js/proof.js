// Solves the proof of work of a form: a number with which SHA-256 of "<seed>.<number>" begins with zero
// bits. The message fits into one block, so this is the hash of FIPS 180-4 without its loop over blocks.
// crypto.subtle, which exists only with TLS, takes some twenty times as long for one such message.
"use strict";
(() => {
  const SLICE = 40; // ms of work before the page may react
  const fraction = (root) => (root - Math.floor(root)) * 2 ** 32 | 0;
  const primes = [];
  for (let one = 2; primes.length < 64; one++) if (primes.every((prime) => one % prime)) primes.push(one);
  const K = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));
  const START = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
  const words = new Int32Array(64);
  const turn = (word, by) => word >>> by | word << 32 - by;

  // Returns the first 32 bits of the digest; `text` is ASCII of at most 55 characters.
  const digest = (text) => {
    words.fill(0, 0, 16);
    for (let at = 0; at < text.length; at++) words[at >> 2] |= text.charCodeAt(at) << 24 - 8 * (at & 3);
    words[text.length >> 2] |= 0x80 << 24 - 8 * (text.length & 3);
    words[15] = 8 * text.length;
    for (let at = 16; at < 64; at++) {
      const old = words[at - 15], last = words[at - 2];
      words[at] = words[at - 16] + words[at - 7] + (turn(old, 7) ^ turn(old, 18) ^ old >>> 3) + (turn(last, 17) ^ turn(last, 19) ^ last >>> 10);
    }
    let [a, b, c, d, e, f, g, h] = START;
    for (let at = 0; at < 64; at++) {
      const first = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + (e & f ^ ~e & g) + K[at] + words[at] | 0;
      const second = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + (a & b ^ a & c ^ b & c) | 0;
      h = g; g = f; f = e; e = d + first | 0; d = c; c = b; b = a; a = first + second | 0;
    }
    return a + START[0] >>> 0;
  };

  for (const answer of document.querySelectorAll("[data-proof]")) {
    const { form, dataset: { bits, text } } = answer;
    const seed = form.elements.proof_challenge.value.split(":")[0];
    const button = form.querySelector("button");
    const label = button.textContent;
    let number = 0;
    const search = () => {
      for (const until = performance.now() + SLICE; performance.now() < until;) {
        for (const next = number + 500; number < next; number++) {
          if (digest(`${seed}.${number}`) >>> 32 - bits) continue;
          answer.value = number;
          button.disabled = false;
          button.textContent = label;
          if ("auto" in form.dataset) form.requestSubmit();
          return;
        }
      }
      setTimeout(search);
    };
    // After "back", the form has the answer to its challenge; shop.js loads the page again.
    button.disabled = true;
    button.textContent = text;
    search();
  }
})();
