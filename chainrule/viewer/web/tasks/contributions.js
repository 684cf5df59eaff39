// @ts-check
/** The decision about a text: what its n-grams add for a class, token by token and in a list, and p(class) as the order grows. */
import { choices, fixed, html, pointAtTokens, scrolling, spaced } from "chainrule/draw";
import { unpack } from "chainrule/arrays";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ name: string, order: number, counts: number[], weights: number[], ratios: number[], places: [number, number][] }} Ngram */
/** @typedef {{ name: string, classes: string[], truth: string | null, tokens: string[], text: number[], apart: boolean, bias: number[], shares: Packed, orders: Packed, count: number, sum: number[],
 *   ngrams: Ngram[] }} Data */

const LISTED = 16;     // n-grams of the list
const LEAST = 0.1;     // the colour is full at the largest share, and at no less than this
const CLASSES = 8;     // columns of the table of orders

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const controls = html("div", { class: "choices" }), sum = html("p", { class: "contributions-sum" }), scale = html("span", { class: "scale" });
  const readout = html("output", { class: "readout", "aria-live": "polite" });
  const text = html("p", { class: `text${data.apart ? " contributions-text" : ""}`, tabindex: 0, role: "group", "aria-label": "the text, token by token; arrow keys choose a token" });
  const lists = html("div", { class: "contributions-lists" });
  let at = -1;
  const orders = () => unpack(data.orders).values, best = () => { const last = Array.from(orders().slice(-data.classes.length)); return last.indexOf(Math.max(...last)); };
  const number = () => { const place = data.classes.indexOf(state.get("class", "")); return place < 0 ? best() : place; };
  const share = (/** @type {number} */ place) => unpack(data.shares).values[place * data.classes.length + number()];

  const mark = (/** @type {(place: number) => boolean} */ within) => { [...text.children].forEach((token, place) => token.classList.toggle("chosen", within(place))); };
  const show = (/** @type {number} */ place) => {
    at = Math.min(data.tokens.length - 1, Math.max(0, place));
    mark((other) => other === at);
    const heaviest = data.ngrams.filter(({ places }) => places.some(([begin, end]) => begin <= at && at <= end)).sort((one, other) => Math.abs(other.weights[number()]) - Math.abs(one.weights[number()])).slice(0, 3);
    readout.replaceChildren(html("b", {}, `“${data.tokens[at]}”`), ` ${signed(share(at))} for ${data.classes[number()]}`,
      heaviest.length ? `, most by ${heaviest.map(({ name, weights }) => `“${name}” ${signed(weights[number()])}`).join(", ")}` : "");
  };
  const draw = () => {
    const now = number(), name = data.classes[now], full = Math.max(LEAST, ...data.tokens.map((_, place) => Math.abs(share(place)))), p = Math.exp(orders().slice(-data.classes.length)[now]);
    controls.replaceChildren(data.classes.length <= 12 ? choices("class", Object.fromEntries(data.classes.map((each) => [each, each])), name, (value) => { state.set("class", value); draw(); }) : name, scale);
    scale.replaceChildren(`−${full.toPrecision(2)} against ${name}`, html("i", { class: "both" }), `for ${name} +${full.toPrecision(2)}`);
    sum.replaceChildren(`bias ${signed(data.bias[now])}, ${data.count.toLocaleString("en")} n-grams ${signed(data.sum[now])}: together `, html("b", { "data-sum": data.bias[now] + data.sum[now] }, signed(data.bias[now] + data.sum[now])),
      data.classes.length === 2 ? ` = log-odds of ${name}` : ` against the mean of the other classes`, `, p(${name}) = ${fixed(p, 4)}`, data.truth ? `; the true class is ${data.truth}` : "");
    text.replaceChildren(...data.tokens.map((token, place) => html("span", { class: `token${data.text.includes(place) ? "" : " contributions-edge"}`, "data-share": share(place),
      style: `--heat:${Math.min(1, Math.abs(share(place)) / full).toFixed(3)}${share(place) < 0 ? ";--tint:var(--cold)" : ""}` }, data.text.includes(place) ? spaced(token) : token)));
    lists.replaceChildren(table(data, now, (ngram) => mark((place) => ngram?.places.some(([begin, end]) => begin <= place && place <= end) ?? false)), growth(data, orders(), now));
    readout.replaceChildren(data.text.length ? "Point at a token or an n-gram, or focus the text and use the arrow keys." : "The text is empty.");
    at = -1;
  };
  pointAtTokens(text, () => at, show);
  element.append(controls, sum, readout, html("div", { class: "picture" }, text), lists);
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}

/** With a sign. @param {number} value */
const signed = (value) => `${value < 0 ? "−" : "+"}${fixed(Math.abs(value))}`;

/** The n-grams that add most, for and against. @param {Data} data @param {number} number @param {(ngram: Ngram | null) => void} point */
function table(data, number, point) {
  const order = [...data.ngrams].sort((one, other) => Math.abs(other.weights[number]) - Math.abs(one.weights[number])).slice(0, LISTED), name = data.classes[number];
  if (!order.length) return html("p", {}, "None of the n-grams of the model is in the text; the bias alone decides.");
  return scrolling("the n-grams that add most", html("table", { class: "ngrams contributions-table" }, html("caption", {}, "The n-grams that add most"),
    html("thead", {}, html("tr", {}, ...["n-gram", `for ${name}`, "ratio r", `texts of ${name}`, "others"].map((title) => html("th", { scope: "col" }, title)))),
    html("tbody", {}, ...order.map((ngram) => html("tr", { "data-ngram": ngram.name, pointerover: () => point(ngram), pointerleave: () => point(null) }, html("th", { scope: "row", class: "ngrams-name" }, ngram.name), html("td", { "data-weight": ngram.weights[number] }, signed(ngram.weights[number])),
      html("td", {}, fixed(ngram.ratios[number], 2)), html("td", {}, ngram.counts[number].toLocaleString("en")), html("td", {}, (ngram.counts.reduce((all, count) => all + count, 0) - ngram.counts[number]).toLocaleString("en")))))));
}

/** p(class) with n-grams up to each order. @param {Data} data @param {ArrayLike<number>} logs @param {number} number */
function growth({ classes, truth }, logs, number) {
  const rows = logs.length / classes.length, p = (/** @type {number} */ row, /** @type {number} */ place) => Math.exp(logs[row * classes.length + place]);
  const shown = classes.map((_, place) => place).sort((one, other) => p(rows - 1, other) - p(rows - 1, one)).slice(0, CLASSES);
  if (!shown.includes(number)) shown[shown.length - 1] = number;
  const said = (/** @type {number} */ row) => (row === 0 ? "bias alone" : row === 1 ? "and single tokens" : `and ${row} tokens in a row`);
  return scrolling("p(class) as the order grows", html("table", { class: "contributions-orders" }, html("caption", {}, "p(class) as the order grows"),
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "n-grams"), ...shown.map((place) => html("th", { scope: "col" }, classes[place], truth === classes[place] ? " (true)" : "")))),
    html("tbody", {}, ...Array.from({ length: rows }, (_, row) => html("tr", {}, html("th", { scope: "row" }, said(row)),
      ...shown.map((place) => html("td", { class: "contributions-p", "data-p": p(row, place), style: `--heat:${p(row, place).toFixed(3)}` }, fixed(p(row, place), 4))))))));
}
