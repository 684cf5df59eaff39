// @ts-check
/** The n-grams with the largest weights for a class and against it, of all orders or of one. */
import { choices, fixed, html, scrolling } from "chainrule/draw";

/** @typedef {{ name: string, order: number, counts: number[], weights: number[], ratios: number[] }} Ngram */
/** @typedef {{ name: string, classes: string[], shown: number, rows: Ngram[], bias: number[], count: number, l2: number, alpha: number, lists: Record<string, number[][][]> }} Data */

const SIDES = ["for", "against"];

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const controls = html("div", { class: "choices" }), lead = html("p", { class: "note" }), tables = html("div", { class: "picture ngrams-sides" });
  const order = () => (state.get("order", "0") in data.lists ? state.get("order", "0") : "0");
  const number = () => Math.max(0, data.classes.slice(0, data.shown).indexOf(state.get("class", "")));
  const draw = () => {
    const orders = Object.fromEntries(Object.keys(data.lists).map((size) => [size, size === "0" ? "all" : size]));
    const classes = Object.fromEntries(data.classes.slice(0, data.shown).map((name) => [name, name]));
    controls.replaceChildren(choices("class", classes, data.classes[number()], (value) => { state.set("class", value); draw(); }),
      choices("tokens", orders, order(), (value) => { state.set("order", value); draw(); }));
    lead.replaceChildren(data.count ? `${data.count.toLocaleString("en")} n-grams, penalty λ = ${data.l2}, α = ${data.alpha}. The bias of ${data.classes[number()]} is ${fixed(data.bias[number()])}.`
      : "The model has no n-gram yet: it was not trained, or no n-gram is in enough texts.");
    tables.replaceChildren(...(data.lists[order()]?.[number()] ?? []).map((places, side) => table(data, places, number(), SIDES[side])));
  };
  element.append(controls, lead, tables);
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}

/** @param {Data} data @param {number[]} places @param {number} number of the class @param {string} side */
function table(data, places, number, side) {
  const most = Math.max(1e-9, ...places.map((place) => Math.abs(data.rows[place].weights[number])));
  const others = (/** @type {number[]} */ counts) => counts.reduce((sum, count) => sum + count, 0) - counts[number];
  return scrolling(`n-grams ${side} ${data.classes[number]}`, html("table", { class: `ngrams ngrams-${side}` },
    html("caption", {}, `${side} `, html("b", {}, data.classes[number])),
    html("thead", {}, html("tr", {}, ...["n-gram", "weight", "texts", "others", "ratio r"].map((title) => html("th", { scope: "col" }, title)))),
    html("tbody", {}, ...places.map((place) => {
      const { name, counts, weights, ratios } = data.rows[place], weight = weights[number];
      return html("tr", { "data-weight": weight }, html("th", { scope: "row", class: "ngrams-name" }, name),
        html("td", { class: "ngrams-weight", style: `--share:${(Math.abs(weight) / most).toFixed(4)}` }, fixed(weight)),
        html("td", {}, counts[number].toLocaleString("en")), html("td", {}, others(counts).toLocaleString("en")), html("td", {}, fixed(ratios[number], 2)));
    }))));
}
