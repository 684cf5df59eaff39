// @ts-check
/** A text whose words can be hidden one at a time, and what the model predicts in the place of the hidden one. */
import { fixed, html } from "chainrule/draw";
import { unpack } from "chainrule/arrays";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ name: string, tokens: string[], vocabulary: number, log_p: Packed, ranks: number[], guesses: string[][], guess_log_p: Packed }} Data */

const HOT = 12;     // bits at which the colour is full

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const text = html("p", { class: "text hidden-text", role: "group", "aria-label": "the text: each word can be hidden" });
  const guesses = html("section", { class: "hidden-guesses", "aria-live": "polite" });
  const now = () => Math.min(data.tokens.length - 1, Math.max(0, Math.floor(Number(state.get("word", String(data.tokens.length - 1)))) || 0));
  const choose = (/** @type {number} */ place) => {
    state.set("word", String(Math.min(data.tokens.length - 1, Math.max(0, place))));
    draw();
    /** @type {HTMLElement} */ (text.children[now()])?.focus();
  };
  const draw = () => {
    if (!data.tokens.length) {
      text.replaceChildren("The text is empty.");
      return void guesses.replaceChildren();
    }
    const bits = Array.from(unpack(data.log_p).values, (log) => Math.max(0, -log / Math.LN2)), at = now();
    text.replaceChildren(...data.tokens.map((token, place) => html("button", { type: "button", class: "hidden-word token", "aria-pressed": String(place === at), "data-word": place, "data-bits": bits[place],
      title: `${fixed(bits[place], 2)} bits`, style: `--heat:${Math.min(1, bits[place] / HOT).toFixed(3)}`, click: () => choose(place) }, place === at ? "▢".repeat(Math.min(8, [...token].length)) : token)));
    guesses.replaceChildren(...described(data, at, bits));
  };
  text.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(now() + step);
  });
  element.append(html("span", { class: "scale" }, "0 bits", html("i", { class: "rise" }), `${HOT} or more`), html("div", { class: "picture" }, text, guesses));
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}

/** @param {Data} data @param {number} at @param {number[]} bits */
function described(data, at, bits) {
  const { shape: [, count], values } = unpack(data.guess_log_p), best = Math.exp(values[at * count]);
  const total = bits.reduce((sum, one) => sum + one, 0);
  const bar = (/** @type {string} */ word, /** @type {number} */ place) => {
    const p = Math.exp(values[at * count + place]), right = place === data.ranks[at] - 1 && word === data.tokens[at];
    return html("li", { class: right ? "hidden-right" : "", "data-p": p }, html("span", {}, word), html("i", { style: `--p:${(p / best).toFixed(5)}` }), html("small", {}, fixed(p, 4)));
  };
  return [
    html("h3", {}, `In the place of word ${at + 1}`), html("ol", { class: "hidden-best" }, ...data.guesses[at].map(bar)),
    html("p", {}, "The word was ", html("b", {}, `“${data.tokens[at]}”`), html("span", { "data-rank": data.ranks[at] }, `: rank ${data.ranks[at].toLocaleString("en")} of ${data.vocabulary.toLocaleString("en")}, p = ${(2 ** -bits[at]).toPrecision(3)}, ${fixed(bits[at], 2)} bits.`)),
    html("p", { class: "note" }, `All ${data.tokens.length} words, each hidden in turn: ${fixed(total, 2)} bits, ${fixed(total / data.tokens.length, 2)} a word (pseudo-log-likelihood).`),
  ];
}
