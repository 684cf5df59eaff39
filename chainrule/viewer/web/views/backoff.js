// @ts-check
/** A text coloured by the longest n-gram that was found, and under it the orders of one token, each with its formula in numbers. */
import { html } from "chainrule/draw";
import { digits, number, over, result } from "chainrule/formula";

/** @typedef {"discounted" | "counted" | "added" | "uniform" | "below" | "table" | "weighted"} Formula */
/** @typedef {{ order: number, by: Formula, found: boolean, whole: boolean, weight: number, p: number, share: number,
 *   count: number, total: number, kinds: [number, number, number], discounts: [number, number, number, number] }} Order */
/** @typedef {{ p: number, bits: number | null, answered: number, floor: number, orders: Order[] }} Token */
/** @typedef {{ name: string, estimator: string, k: number, order: number, vocab: number, unit: string, shown: string[], tokens: Token[] }} Data */
/** @typedef {import("chainrule/draw").Child} Child */

/** The estimators, as in the lectures. */
const FORMULAS = {
  "kneser-ney": ["p(w | h) = ", over("c(hw) − D", "c(h·)"), " + γ(h) · p(w | h′)", "  where  ",
    "γ(h) = ", over("D₁N₁ + D₂N₂ + D₃N₃", "c(h·)")],
  mle: ["p(w | h) = ", over("c(hw)", "c(h·)")],
  "add-k": ["p(w | h) = ", over("c(hw) + k", "c(h·) + kV")],
};
const SYMBOLS = {
  "kneser-ney": (/** @type {string} */ unit) => `h is the context and h′ the same without its first ${one(unit)}. N₁, N₂, N₃: how many ${unit} followed h once, twice, more often. `
    + `Below the highest order c counts how many different ${unit} came before, unless h starts at the beginning of the text.`,
  mle: () => "h is the context. For a context that was never seen, the order below gives the probability.",
  "add-k": () => "h is the context, V the size of the vocabulary. Only a context that was never seen uses a shorter one, and those are uniform.",
};

/** One of them: characters -> character. @param {string} unit */
const one = (unit) => unit.replace(/s$/, "");

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  if (data.tokens.length === 0) return void element.append(html("p", {}, "There is no token yet: type a text to see its orders."));
  const place = html("div", { class: "backoff-ladder", role: "group", "aria-live": "polite", "aria-label": "the orders of the chosen token" });
  const spans = data.tokens.map((token, at) => span(token, data, at));
  const text = html("p", { class: "text backoff-text picture", tabindex: 0, role: "group", "aria-label": "the text: the arrow keys choose a token" }, ...spans);
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

/** Bluer for longer n-grams that were seen; orange where none was. @param {number} answered @param {number} order @param {boolean} [impossible] */
function colour(answered, order, impossible = false) {
  if (answered === 0 || impossible) return "--tint:var(--hot);--heat:0.75";
  return `--tint:var(--cold);--heat:${Math.max(0.06, (answered - 1) / Math.max(1, order - 1)).toFixed(3)}`;
}

/** @param {Token} token @param {Data} data @param {number} at */
const span = (token, data, at) => html("span", { class: "token", "data-order": token.answered, "data-p": token.p,
  title: `${data.shown[at + 1]}: ${name(token)}, p = ${digits(token.p)}`,
  style: colour(token.answered, data.order, token.p === 0) }, data.shown[at + 1]);

/** @param {Token} token */
const name = (token) => (token.p === 0 ? "impossible" : token.answered === 0 ? "never seen" : `order ${token.answered}`);

/** How many tokens each order has found. @param {Data} data */
function legend({ tokens, order }) {
  const names = [...new Set(tokens.map(name))];
  const entries = [...Array.from({ length: order }, (_, below) => `order ${order - below}`), "never seen", "impossible"]
    .filter((one) => one.startsWith("order") || names.includes(one));
  return html("ul", { class: "backoff-legend", "aria-label": "tokens by the longest order that was found" }, ...entries.map((one) =>
    html("li", {}, html("span", { class: "token backoff-swatch", style: colour(one.startsWith("order") ? Number(one.slice(6)) : 0, order) }),
      `${one}: `, html("b", { "data-name": one }, tokens.filter((token) => name(token) === one).length))));
}

/** @param {Data} data @param {number} at */
function ladder(data, at) {
  const { estimator, shown, tokens, vocab, unit } = data;
  const token = tokens[at];
  const plain = token.orders.some((entry) => entry.by === "table" || entry.by === "weighted");
  const formula = FORMULAS[/** @type {keyof typeof FORMULAS} */ (estimator)];
  return [
    html("h3", {}, "p(", word(shown[at + 1]), " | ", context(shown, at + 1, token.orders[0].order), ") = ",
      html("output", { class: "backoff-answer", "data-p": token.p, title: token.p }, digits(token.p)),
      html("small", {}, token.bits == null ? " – impossible" : ` = 1 in ${digits(1 / token.p, 3)}, ${token.bits.toFixed(2)} bits`)),
    html("div", { class: "scroll formula backoff-formula", tabindex: 0, role: "group", "aria-label": "the formula" }, ...formula),
    html("p", { class: "note" }, plain ? "This model was pruned, or imported without counts: its orders show its tables, "
      + "p(w | h) if hw is in them, and else the back-off weight of h times p(w | h′)." : SYMBOLS[/** @type {keyof typeof SYMBOLS} */ (estimator)](unit)),
    ...(token.p === 0 ? [] : [shares(token)]),
    html("ol", { class: "backoff-orders" }, ...token.orders.map((entry, place) => orderElement(entry, token, data, at, place)),
      html("li", { class: "backoff-row backoff-floor" }, html("b", { class: "backoff-order" }, "0"),
        html("div", {}, html("p", {}, `all ${vocab.toLocaleString("en")} ${unit} equally probable`), html("p", { class: "backoff-sum" }, "1 / V = 1 / ", vocab, " = ", result(1 / vocab))))),
  ];
}

/** The share of each order in the probability. @param {Token} token */
function shares(token) {
  const parts = [...token.orders.map((entry) => ({ order: entry.order, share: entry.share })), { order: 0, share: token.floor }];
  return html("div", { class: "backoff-shares", role: "img",
    "aria-label": parts.map(({ order, share }) => `order ${order}: ${percent(share / token.p)}`).join(", ") },
    ...parts.filter(({ share }) => share > 0).map(({ order, share }) => html("span", { "data-order": order, "data-share": share,
      title: `order ${order} gives ${digits(share)} of ${digits(token.p)}`,
      style: `flex-grow:${(share / token.p).toFixed(6)};${colour(order, token.orders[0].order)}` },
      share / token.p > 0.12 ? `${order === 0 ? "uniform" : `order ${order}`}: ${percent(share / token.p)}` : "")));
}

/** @param {Order} entry @param {Token} token @param {Data} data @param {number} at @param {number} place from the top */
function orderElement(entry, token, data, at, place) {
  const below = token.orders[place + 1]?.p ?? 1 / data.vocab;
  return html("li", { class: `backoff-row${entry.order === token.answered ? " answered" : ""}`, "data-order": entry.order },
    html("b", { class: "backoff-order", style: colour(entry.order, data.order) }, entry.order),
    html("div", {},
      html("p", {}, ...(entry.order === 1 ? ["in any context"] : ["after ", context(data.shown, at + 1, entry.order)]), " ", html("small", {}, counted(entry, data))),
      ...sums(entry, below, data)));
}

/** The counts, in words. @param {Order} entry @param {Data} data */
function counted(entry, { estimator, order }) {
  if (entry.by === "table" || entry.by === "weighted") return entry.found ? "in the tables" : "not in the tables";
  if (entry.total === 0) return "this context was never seen";
  const kinds = estimator === "kneser-ney" && !(entry.whole || entry.order === order);
  const [some, all] = [entry.count.toLocaleString("en"), entry.total.toLocaleString("en")];
  return kinds ? `followed ${some} different ${entry.count === 1 ? "context" : "contexts"}; ${all} in all` : `seen ${some} of ${all} times`;
}

/** The formula of an order with its numbers, and the line of γ if it has one. @param {Order} entry @param {number} below @param {Data} data @returns {Node[]} */
function sums(entry, below, { k, vocab }) {
  const { by, count, total, weight, p, discounts, kinds } = entry;
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

/** The context of a token at an order. @param {string[]} shown @param {number} at @param {number} order */
const context = (shown, at, order) => html("span", { class: "backoff-context" }, ...shown.slice(at - order + 1, at).map(word));
