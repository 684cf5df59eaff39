// @ts-check
/** How a number was computed: the rule of its node as a formula with all its numbers. */
import { html, scrolling } from "chainrule/draw";
import { digits, low, number, over, result, symbols } from "chainrule/formula";
import { written } from "chainrule/unrolled_drawing";

/** @typedef {import("chainrule/unrolled").Data} Data */
/** @typedef {import("chainrule/unrolled").Node} Node */
/** @typedef {import("chainrule/unrolled").Place} Place */
/** @typedef {import("chainrule/draw").Child} Child */
/** The arguments of a rule: the node, which number of which token, and the vectors of its inputs, of this token or of all.
 * @typedef {{ data: Data, node: Node, time: number, index: number, value: number | null, inputs: (number | null)[][], every: (number | null)[][][], names: string[] }} Scene */

/** @param {Data} data @param {Place} place @returns {HTMLElement[]} */
export function explain(data, place) {
  const node = data.nodes[place.node], { time, index } = place;
  const of = node.of.map((input) => /** @type {Node} */ (data.nodes.find((one) => one.id === input.id)));
  const scene = { data, node, time, index, value: node.values[time][index],
    inputs: of.map((one, at) => (node.of[at].when !== "before" ? one.values[time] : time ? one.values[time - 1] : one.first ?? [])),
    every: of.map((one) => one.values),
    names: of.map((one, at) => `${one.symbol}_{${node.of[at].when === "before" ? time : time + 1}}`) };
  const which = node.labels === "vocab" ? data.vocab[index] : node.labels === "tokens" ? data.tokens[index] : String(index + 1);
  return [
    html("h3", {}, symbols(`${node.symbol}_{${time + 1}}`), html("small", {}, `  ${node.name}, token ${time + 1}: `, html("span", { class: "unrolled-chip" }, data.tokens[time]))),
    html("p", { class: "unrolled-formula" }, symbols(node.formula)),
    ...RULES[/** @type {keyof typeof RULES} */ (node.rule)](scene),
    html("p", { class: "unrolled-answer" }, low(node.symbol, `${time + 1},`, which), " = ", answer(scene.value)),
  ];
}

/** @param {number | null} value */
const answer = (value) => (value == null ? html("b", { class: "result", "data-value": "-Infinity" }, "−∞") : result(value));

/** @param {...Child} parts */
const line = (...parts) => html("p", { class: "unrolled-sum" }, ...parts);

/** Children with something between them. @param {Child[]} parts @param {string} sign */
const between = (parts, sign) => parts.flatMap((part, at) => (at ? [sign, part] : [part]));

/** A number in a sum; negative ones are in brackets. @param {number | null} value */
const factor = (value) => (value == null ? "−∞" : value < 0 ? html("span", {}, "(", number(value), ")") : number(value));

/** Σ of products. @param {[number | null, number | null][]} pairs */
const products = (pairs) => between(pairs.map(([one, other]) => html("span", { class: "unrolled-product" }, factor(one), "·", factor(other))), " + ");

/** Numbers in brackets: rows, one of which may be marked. @param {(number | null)[][]} rows @param {number} [marked] @param {string[]} [names] @param {string} [title] */
function matrix(rows, marked = -1, names, title = "") {
  return html("figure", { class: "unrolled-matrix" }, html("table", {}, html("tbody", {}, ...rows.map((row, at) => html("tr", { class: at === marked ? "marked" : "" },
    names ? html("th", { scope: "row" }, names[at]) : null,
    ...row.map((value) => html("td", { title: value, "data-value": value, class: (value ?? 0) < 0 ? "cold" : "hot",
      style: `--strength:${Math.min(1, Math.abs(value ?? 0) / 2).toFixed(3)}` }, written(value))))))),
    html("figcaption", {}, title ? symbols(title) : "\u00a0"));
}

/** @param {(number | null)[]} vector @param {number} [marked] @param {string} [title] */
const column = (vector, marked = -1, title = "") => matrix(vector.map((value) => [value]), marked, undefined, title);

/** Things in a row, as in an equation. @param {...Child} parts */
const equation = (...parts) => scrolling("the equation", html("div", { class: "unrolled-equation" }, ...parts));

/** The elementwise formulas of `each`. @type {Record<string, (scene: Scene, values: number[]) => Child[]>} */
const EACH = {
  add: ({ node }, [one, other]) => [...(node.factor === 1 ? [factor(one)] : [number(node.factor ?? 1), " · ", factor(one)]), " + ", factor(other)],
  candidate: (_, [u, r, w]) => ["tanh(", factor(u), " + ", factor(r), " · ", factor(w), ")"],
  blend: (_, [z, n, h]) => ["(1 − ", number(z), ") · ", factor(n), " + ", number(z), " · ", factor(h)],
  cell: (_, [f, C, i, candidate]) => [factor(f), " · ", factor(C), " + ", factor(i), " · ", factor(candidate)],
  shown: (_, [o, C]) => [factor(o), " · tanh(", number(C), ")"],
  swiglu: (_, [gate, value]) => [factor(gate), " · σ(", number(gate), ") · ", factor(value)],
  geglu: (_, [gate, value]) => ["gelu(", number(gate), ") · ", factor(value)],
  cap: ({ node }, [y]) => [number(node.factor ?? 1), " · tanh(", number(y), " / ", number(node.factor ?? 1), ")"],
};

/** How an activation function is written. @type {Record<string, string>} */
const SQUASH = { sigmoid: "σ", relu2: "relu²" };

/** By the name of the rule. @type {Record<string, (scene: Scene) => HTMLElement[]>} */
const RULES = {
  lookup: ({ data, node, time }) => [equation(matrix(node.matrix ?? [], data.ids[time], data.vocab, "E"), html("span", {}, `row “${data.tokens[time]}”`))],

  given: ({ node, time, index }) => [equation(column(node.values[time], index))],

  linear({ node, time, index, inputs, names, value }) {
    const { matrices = [], letters = [], bias, squash, sums } = node;
    const parts = between(matrices.map((weights, at) => html("span", { class: "unrolled-equation" }, matrix(weights, index, undefined, letters[at]), column(inputs[at], -1, names[at]))), "+");
    const before = sums ? sums[time] : node.values[time];
    const sum = [...between(matrices.flatMap((weights, at) => products(weights[index].map((weight, place) => [weight, inputs[at][place]]))
      .filter((part) => part !== " + ")), " + "), ...(bias ? [" + ", factor(bias[index])] : [])];
    const name = squash && (SQUASH[squash] ?? squash);
    return [
      equation(column(before, index, sums ? "Σ" : `${node.symbol}_{${time + 1}}`), "=", ...parts, ...(bias ? ["+", column(bias, index, "b")] : [])),
      line(...sum, " = ", number(before[index] ?? 0)),
      ...(squash && value != null ? [line(`${name}(`, number(before[index] ?? 0), ") = ", number(value))] : []),
    ];
  },

  each: (scene) => [line(...EACH[scene.node.how ?? ""](scene, scene.inputs.map((vector) => vector[scene.index] ?? 0)), " = ", number(scene.value ?? 0))],

  norm({ node, inputs, index, names, value }) {
    const x = inputs[0].map((one) => one ?? 0), mean = x.reduce((sum, one) => sum + one, 0) / x.length;
    const layer = node.how === "layer", about = layer ? mean : 0;
    const square = x.reduce((sum, one) => sum + (one - about) ** 2, 0) / x.length, root = Math.sqrt(square + (node.epsilon ?? 0));
    return [
      equation(column(x, index, names[0])),
      ...(layer ? [line("μ = ", number(mean))] : []),
      line(layer ? "σ = √(mean of (x − μ)²) = " : "√(mean of x²) = ", number(root)),
      line(over(layer ? html("span", {}, factor(x[index]), " − ", factor(mean)) : number(x[index]), number(root)),
        ...(node.gain ? [" · ", factor(node.gain[index])] : []), ...(node.bias ? [" + ", factor(node.bias[index])] : []), " = ", number(value ?? 0)),
    ];
  },

  rotate({ node, inputs, time, index, value }) {
    const half = inputs[0].length / 2, pair = index % half, first = index < half;
    const [a, b] = [inputs[0][pair], inputs[0][pair + half]], [cos, sin] = [node.cos?.[time][pair] ?? 1, node.sin?.[time][pair] ?? 0];
    return [line(symbols(`number ${pair + 1} and number ${pair + half + 1} are a point in a plane; it is rotated by an angle that grows with the position`)),
      line(...(first ? [factor(a), " · ", number(cos), " − ", factor(b)] : [factor(b), " · ", number(cos), " + ", factor(a)]), " · ", number(sin), " = ", number(value ?? 0))];
  },

  scores({ data, node, inputs, every, time, index, value }) {
    if (!node.sees?.[time][index]) return [line(`“${data.tokens[index]}” comes after “${data.tokens[time]}”, or is too far away: the mask sets −∞.`)];
    const key = every[1][index], query = inputs[0];
    const dot = key.reduce((/** @type {number} */ sum, one, at) => sum + (one ?? 0) * (query[at] ?? 0), 0);
    const added = node.added ? [" + ", factor(node.added[time][index])] : [];
    return [
      equation(matrix([key], 0, undefined, `k_{${index + 1}}ᵀ`), column(query, -1, `q_{${time + 1}}`), html("span", {}, `/ √${node.size}`)),
      line(...products(key.map((one, at) => [one, query[at]])), " = ", number(dot)),
      line(over(number(dot), `√${node.size}`), ...added, " = ", number(value ?? 0)),
    ];
  },

  softmax({ inputs, index, names, value }) {
    const powers = inputs[0].map((one) => (one == null ? 0 : Math.exp(one)));
    return [equation(column(inputs[0], index, names[0]), html("span", {}, "e to the power of each:"), column(powers, index)),
      line(over(html("span", {}, "e", html("sup", {}, inputs[0][index] == null ? "−∞" : digits(inputs[0][index]))), "Σ"), " = ",
        over(number(powers[index]), html("span", {}, ...between(powers.filter((power) => power > 0).map((power) => number(power)), " + "))), " = ", number(value ?? 0))];
  },

  mix({ data, inputs, every, index, value }) {
    const weights = inputs[0], seen = [...weights.keys()].filter((at) => weights[at]);
    return [
      equation(matrix([seen.map((at) => weights[at])], 0, undefined, "a"), matrix(seen.map((at) => every[1][at]), -1, seen.map((at) => data.tokens[at]), "v")),
      line(...products(seen.map((at) => [weights[at], every[1][at][index]])), " = ", number(value ?? 0)),
    ];
  },

  join: ({ inputs, names }) => [equation(...between(inputs.map((vector, at) => column(vector, -1, names[at])), ","))],
};
