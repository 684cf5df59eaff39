// @ts-check
/** A text coloured by the order that answered, and under it the ladder of one token, each rung with its formula in numbers. */
import { html } from "chainrule/draw";
import { digits, number, over, result } from "chainrule/formula";

/** @typedef {"discounted" | "counted" | "added" | "uniform" | "below" | "table" | "weighted"} Formula */
/** @typedef {{ order: number, by: Formula, found: boolean, whole: boolean, weight: number, p: number, share: number,
 *   count: number, total: number, kinds: [number, number, number], discounts: [number, number, number, number] }} Rung */
/** @typedef {{ p: number, bits: number | null, answered: number, floor: number, rungs: Rung[] }} Token */
/** @typedef {{ name: string, estimator: string, k: number, order: number, vocab: number, shown: string[], tokens: Token[] }} Data */
/** @typedef {import("chainrule/draw").Child} Child */

/** The estimators, as they are lectured. */
const FORMULAS = {
  "kneser-ney": ["p(w | h) = ", over("c(hw) − D", "c(h·)"), " + γ(h) · p(w | h′)", "  where  ",
    "γ(h) = ", over("D₁N₁ + D₂N₂ + D₃N₃", "c(h·)")],
  mle: ["p(w | h) = ", over("c(hw)", "c(h·)")],
  "add-k": ["p(w | h) = ", over("c(hw) + k", "c(h·) + kV")],
};
const SYMBOLS = {
  "kneser-ney": "h is the context and h′ the same without its first word. N₁, N₂, N₃: how many words followed h once, twice, more often. "
    + "Below the highest order c counts how many different words came before, unless h goes back to the beginning of the text.",
  mle: "h is the context. One that was never seen passes on what the order below says.",
  "add-k": "h is the context, V the size of the vocabulary. Only a context that was never seen asks a shorter one, and those are uniform.",
};

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  if (data.tokens.length === 0) return void element.append(html("p", {}, "There is no token yet: write a text to see its ladders."));
  const place = html("div", { class: "backoff-ladder", role: "region", "aria-live": "polite", "aria-label": "the ladder of the chosen token" });
  const spans = data.tokens.map((token, at) => span(token, data, at));
  const text = html("p", { class: "text backoff-text", tabindex: 0, role: "group", "aria-label": "the text: the arrow keys choose a token" }, ...spans);
  let at = -1;
  const choose = (/** @type {number} */ next) => {
    spans[at]?.classList.remove("chosen");
    at = Math.min(spans.length - 1, Math.max(0, next));
    spans[at].classList.add("chosen");
    place.replaceChildren(...ladder(data, at));
  };
  const pick = (/** @type {number} */ next) => { choose(next); state.set("at", String(at)); };
  text.addEventListener("click", (event) => {
    const next = spans.indexOf(/** @type {HTMLElement} */ (event.target));
    if (next >= 0) pick(next);
  });
  text.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -spans.length, End: spans.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    pick(at + step);
  });
  element.append(legend(data), text, place);
  const asked = Number.parseInt(state.get("at", ""), 10);
  choose(Number.isNaN(asked) ? spans.length - 1 : asked);
}

/** The longer what was seen, the bluer; orange where nothing was. @param {number} answered @param {number} order @param {boolean} [impossible] */
function colour(answered, order, impossible = false) {
  if (answered === 0 || impossible) return "--tint:var(--hot);--heat:0.75";
  return `--tint:var(--cold);--heat:${(0.06 + (0.74 * (answered - 1)) / Math.max(1, order - 1)).toFixed(3)}`;
}

/** @param {Token} token @param {Data} data @param {number} at */
const span = (token, data, at) => html("span", { class: "token", "data-order": token.answered, "data-p": token.p,
  title: `${data.shown[at + 1]}: ${name(token)}, p = ${digits(token.p)}`,
  style: colour(token.answered, data.order, token.p === 0) }, data.shown[at + 1]);

/** @param {Token} token */
const name = (token) => (token.p === 0 ? "impossible" : token.answered === 0 ? "never seen" : `order ${token.answered}`);

/** How many tokens each order has answered. @param {Data} data */
function legend({ tokens, order }) {
  const names = [...new Set(tokens.map(name))];
  const entries = [...Array.from({ length: order }, (_, below) => `order ${order - below}`), "never seen", "impossible"]
    .filter((one) => one.startsWith("order") || names.includes(one));
  return html("ul", { class: "backoff-legend", "aria-label": "tokens by the order that answered" }, ...entries.map((one) =>
    html("li", {}, html("span", { class: "token backoff-swatch", style: colour(one.startsWith("order") ? Number(one.slice(6)) : 0, order) }),
      `${one}: `, html("b", { "data-name": one }, tokens.filter((token) => name(token) === one).length))));
}

/** @param {Data} data @param {number} at */
function ladder(data, at) {
  const { estimator, shown, tokens, vocab } = data;
  const token = tokens[at];
  const plain = token.rungs.some((rung) => rung.by === "table" || rung.by === "weighted");
  const formula = FORMULAS[/** @type {keyof typeof FORMULAS} */ (estimator)];
  return [
    html("h3", {}, "p(", word(shown[at + 1]), " | ", context(shown, at + 1, token.rungs[0].order), ") = ",
      html("output", { class: "backoff-answer", "data-p": token.p, title: token.p }, digits(token.p)),
      html("small", {}, token.bits == null ? " – impossible" : ` = 1 in ${digits(1 / token.p, 3)}, ${token.bits.toFixed(2)} bits`)),
    html("div", { class: "scroll formula backoff-formula" }, ...formula),
    html("p", { class: "note" }, plain ? "Grams were left out of this model, or it came without counts: its rungs are what its tables say, "
      + "p(w | h) where hw is in them, and else the back-off weight of h times p(w | h′)." : SYMBOLS[/** @type {keyof typeof SYMBOLS} */ (estimator)]),
    ...(token.p === 0 ? [] : [shares(token)]),
    html("ol", { class: "backoff-rungs" }, ...token.rungs.map((rung, place) => rungElement(rung, token, data, at, place)),
      html("li", { class: "backoff-rung backoff-floor" }, html("b", { class: "backoff-order" }, "0"),
        html("div", {}, html("p", {}, `all ${vocab.toLocaleString("en")} words alike`), html("p", { class: "backoff-sum" }, "1 / V = 1 / ", vocab, " = ", result(1 / vocab))))),
  ];
}

/** What of the answer each order has given. @param {Token} token */
function shares(token) {
  const parts = [...token.rungs.map((rung) => ({ order: rung.order, share: rung.share })), { order: 0, share: token.floor }];
  return html("div", { class: "backoff-shares", role: "img",
    "aria-label": parts.map(({ order, share }) => `order ${order}: ${percent(share / token.p)}`).join(", ") },
    ...parts.filter(({ share }) => share > 0).map(({ order, share }) => html("span", { "data-order": order, "data-share": share,
      title: `order ${order} gives ${digits(share)} of ${digits(token.p)}`,
      style: `flex-grow:${(share / token.p).toFixed(6)};${colour(order, token.rungs[0].order)}` },
      share / token.p > 0.12 ? `${order === 0 ? "uniform" : `order ${order}`}: ${percent(share / token.p)}` : "")));
}

/** @param {Rung} rung @param {Token} token @param {Data} data @param {number} at @param {number} place from the top */
function rungElement(rung, token, data, at, place) {
  const below = token.rungs[place + 1]?.p ?? 1 / data.vocab;
  return html("li", { class: `backoff-rung${rung.order === token.answered ? " answered" : ""}`, "data-order": rung.order },
    html("b", { class: "backoff-order", style: colour(rung.order, data.order) }, rung.order),
    html("div", {},
      html("p", {}, ...(rung.order === 1 ? ["whatever came before"] : ["after ", context(data.shown, at + 1, rung.order)]), " ", html("small", {}, counted(rung, data))),
      ...sums(rung, below, data)));
}

/** What was counted, in words. @param {Rung} rung @param {Data} data */
function counted(rung, { estimator, order }) {
  if (rung.by === "table" || rung.by === "weighted") return rung.found ? "in the tables" : "not in the tables";
  if (rung.total === 0) return "nothing was ever seen after it";
  const kinds = estimator === "kneser-ney" && !(rung.whole || rung.order === order);
  const [some, all] = [rung.count.toLocaleString("en"), rung.total.toLocaleString("en")];
  return kinds ? `seen after ${some} different ${rung.count === 1 ? "word" : "words"}; all that follow: ${all}` : `seen ${some} of ${all} times`;
}

/** The formula of a rung with its numbers, and the line of γ where it has one. @param {Rung} rung @param {number} below @param {Data} data @returns {Node[]} */
function sums(rung, below, { k, vocab }) {
  const { by, count, total, weight, p, discounts, kinds } = rung;
  const line = (/** @type {Child[]} */ ...parts) => html("p", { class: "backoff-sum scroll" }, ...parts);
  const times = (/** @type {number} */ factor) => [number(factor), " · ", number(below)];
  if (by === "discounted") {
    const discount = discounts[Math.min(count, 3)];
    return [
      line("p = ", over(count ? `${count} − ${digits(discount)}` : "0", String(total)), " + ", ...times(weight), " = ", result(p)),
      line("γ = ", over([1, 2, 3].map((j) => `${digits(discounts[j])}·${kinds[j - 1]}`).join(" + "), String(total)), " = ", number(weight, "backoff-weight")),
    ];
  }
  if (by === "counted") return [line("p = ", over(String(count), String(total)), " = ", result(p))];
  if (by === "added") return [line("p = ", over(`${count} + ${digits(k)}`, `${total} + ${digits(k)}·${vocab}`), " = ", result(p))];
  if (by === "uniform") return [line("p = 1 / V = 1 / ", vocab, " = ", result(p))];
  if (by === "table") return [line("p = ", result(p))];
  if (by === "weighted") return [line("p = ", ...times(weight), " = ", result(p))];
  return [line("p = p(w | h′) = ", result(p))];
}

/** @param {number} share */
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

/** @param {string} text */
const word = (text) => html("span", { class: "backoff-word" }, text);

/** The tokens before one, as far as an order looks. @param {string[]} shown @param {number} at @param {number} order */
const context = (shown, at, order) => html("span", { class: "backoff-context" }, ...shown.slice(at - order + 1, at).map(word));
