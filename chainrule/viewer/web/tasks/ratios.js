// @ts-check
/** Naive Bayes and the fit: each n-gram a point, its log-count ratio across and its fitted weight up. */
import { choices, fixed, html } from "chainrule/draw";
import { unpack } from "chainrule/arrays";
import { makeMap } from "chainrule/scatter";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ name: string, order: number, counts: number[] }} Ngram */
/** @typedef {{ name: string, classes: string[], ngrams: Ngram[], weights: Packed, ratios: Packed, trusted: number[], count: number }} Data */

const MARKED = 6;      // n-grams that stand out: those with the largest weights of one sign

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const controls = html("div", { class: "choices" }), lead = html("p", { class: "note" }), map = makeMap(), place = html("div", { class: "picture" });
  const number = () => Math.max(0, data.classes.indexOf(state.get("class", "")));
  const draw = () => {
    const now = number(), name = data.classes[now];
    controls.replaceChildren(choices("class", Object.fromEntries(data.classes.map((each) => [each, each])), name, (value) => { state.set("class", value); draw(); }));
    if (!data.ngrams.length) {
      lead.replaceChildren("The model has no n-gram yet: it was not trained, or no n-gram is in enough texts.");
      place.replaceChildren();
      return;
    }
    lead.replaceChildren(`${data.ngrams.length.toLocaleString("en")} of ${data.count.toLocaleString("en")} n-grams. Naive Bayes would put each on the diagonal, θ = r; the best line through all n-grams is θ = ${fixed(data.trusted[now])} r.`);
    const { shape: [, width], values: weights } = unpack(data.weights), ratios = unpack(data.ratios).values;
    const spot = (/** @type {number} */ at) => /** @type {[number, number]} */ ([ratios[at * width + now], weights[at * width + now]]);
    const order = data.ngrams.map((_, at) => at).sort((one, other) => spot(other)[1] - spot(one)[1]);
    place.replaceChildren(map.element);
    map.show({
      title: `n-grams and their weights for ${name}`, x: "log-count ratio r", y: "fitted weight θ", count: data.ngrams.length, spot,
      name: (at) => data.ngrams[at].name,
      about: (at) => `“${data.ngrams[at].name}”: r ${fixed(spot(at)[0])}, θ ${fixed(spot(at)[1])}, in ${data.ngrams[at].counts[now].toLocaleString("en")} texts of ${name} and ${(data.ngrams[at].counts.reduce((all, count) => all + count, 0) - data.ngrams[at].counts[now]).toLocaleString("en")} others`,
      marks: [...order.slice(0, MARKED).map((at) => ({ place: at, style: /** @type {const} */ ("asked") })), ...order.slice(MARKED).slice(-MARKED).map((at) => ({ place: at, style: /** @type {const} */ ("found") }))],
    });
  };
  element.append(controls, lead, place);
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}
