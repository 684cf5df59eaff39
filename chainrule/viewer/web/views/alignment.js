// @ts-check
/** The attention of a text to its source as a map, and beside it the tree of the beam search, with the same token in each row. */
import { fixed, html, scrolling } from "chainrule/draw";
import { makeHeat } from "chainrule/heat";
import { unpack } from "chainrule/arrays";
import { renew } from "chainrule/renew";
import { ROW, TOP, tree } from "chainrule/tree";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {import("chainrule/tree").Node} Node */
/** @typedef {{ step: number, place: number, shown: string[], text: string, log_prob: number, score: number, means: Packed, heads: Packed | null }} Text */
/** @typedef {{ name: string, cut: number, lines: number, source: string[], beam: { width: number, alpha: number }, tree: Node[][], texts: Text[],
 *   layers: number, heads: number }} Data */
/** @typedef {{ ask(options: Record<string, string>): Promise<Data | null> }} Live */
/** @typedef {{ text: number, layer: number, head: number }} Chosen text from 0, layer from 1; head from 1, or 0: their mean */

const ROWS = 16;    // of the tree, that are seen at once

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  const controls = html("div", { class: "choices" });
  const formula = html("p", { class: "note" });
  const readout = html("output", { class: "readout alignment-said", "aria-live": "polite" });
  const texts = html("ol", { class: "alignment-texts" });
  const branches = scrolling("the tree of the beam search");
  const many = html("p", { class: "note alignment-many" });
  const heat = makeHeat({ title: "which source tokens each token attended to; arrow keys go from cell to cell", height: ROW, top: TOP, most: 44,
    pick: (cell) => { heat.mark(cell ?? { row: -1, column: -1 }); report(cell); } });

  const both = html("div", { class: "alignment tall picture", tabindex: 0, role: "group", "aria-label": "the tree and the map; a long one scrolls" }, branches, heat.element);
  const now = () => chosen(data, state);
  const report = (/** @type {import("chainrule/heat").Cell | null} */ cell) => readout.replaceChildren(...summary(data, now(), cell));
  const choose = (/** @type {Partial<Chosen>} */ change) => {
    for (const [name, value] of Object.entries(change)) state.set(name, String(value));
    draw();
  };
  const ask = async (/** @type {string} */ name, /** @type {string} */ value) => {
    state.set(name, value);
    const more = await live?.ask({ width: state.get("width", String(data.beam.width)), alpha: state.get("alpha", String(data.beam.alpha)) });
    if (more) { data = more; choose({ text: 0 }); }
  };
  const draw = () => {
    const { text } = now();
    renew(controls, ...pickers(data, live, now(), choose, ask));
    formula.replaceChildren(...explained(data, now()));
    renew(texts, ...data.texts.map((one, place) => listed(one, place === text, () => choose({ text: place }))));
    renew(branches, tree(data.tree, data.texts, text, (place) => choose({ text: place })));
    heat.show({ rows: data.texts[text].shown.map((shown) => ({ text: shown, own: true })), columns: data.source.map((shown) => ({ text: shown })), weight: weight(data, now()) });
    many.textContent = data.tree.length > ROWS ? `The tree has ${data.tree.length} rows: scroll in it to see them all.` : "";
    report(null);
  };
  element.append(controls, formula, readout, many, both, html("h3", {}, "Finished texts of the beam search, the best first"), texts);
  draw();
  return (/** @type {Data} */ other) => { data = other; state.set("text", "0"); draw(); };
}

/** By the address; else the best text, and the mean of the last layer. @param {Data} data @param {import("chainrule/state").State} state @returns {Chosen} */
function chosen(data, state) {
  const number = (/** @type {string} */ name, /** @type {number} */ otherwise, /** @type {number} */ least, /** @type {number} */ most) => {
    const value = Number(state.get(name, String(otherwise)));
    return Number.isInteger(value) && value >= least && value <= most ? value : otherwise;
  };
  const text = number("text", 0, 0, data.texts.length - 1);
  return { text, layer: number("layer", data.layers, 1, data.layers), head: data.texts[text].heads ? number("head", 0, 0, data.heads) : 0 };
}

/** @param {Data} data @param {Live | null} live @param {Chosen} now @param {(change: Partial<Chosen>) => void} choose @param {(name: string, value: string) => void} ask */
function pickers(data, live, now, choose, ask) {
  const select = (/** @type {"layer" | "head"} */ name, /** @type {[number, string][]} */ options) => html("label", {}, `${name} `, html("select", { "data-which": name,
    change: (event) => choose({ [name]: Number(/** @type {HTMLSelectElement} */ (event.target).value) }) },
    ...options.map(([value, shown]) => html("option", { value, selected: value === now[name] }, shown))));
  const numbers = (/** @type {number} */ most) => Array.from({ length: most }, (_, place) => /** @type {[number, string]} */ ([place + 1, String(place + 1)]));
  const input = (/** @type {"width" | "alpha"} */ name, /** @type {string} */ label, /** @type {Record<string, number>} */ bounds) => html("label", {}, `${label} `,
    html("input", { class: "alignment-number", type: "number", ...bounds, value: data.beam[name], "data-which": name, change: (event) => ask(name, /** @type {HTMLInputElement} */ (event.target).value) }));
  return [
    ...(live ? [input("width", "beam", { min: 1, max: 12, step: 1 }), input("alpha", "alpha", { min: 0, step: 0.1 })] : []),
    ...(data.layers > 1 ? [select("layer", numbers(data.layers))] : []),
    ...(data.heads > 1 && data.texts[now.text].heads ? [select("head", [[0, "mean"], ...numbers(data.heads)])] : []),
  ];
}

/** @param {Data} data @param {Chosen} now */
function explained(data, now) {
  const i = (/** @type {string} */ letter, /** @type {string} */ below = "") => [html("i", {}, letter), below ? html("sub", {}, below) : ""];
  const formula = data.heads === 1 && data.layers === 1
    ? [...i("α", "t"), " = softmax(", ...i("e", "t"), "),  ", ...i("c", "t"), " = Σ", html("sub", {}, "i"), " ", ...i("α", "ti"), " ", ...i("h", "i"), ". Row ", ...i("t"), " of the map is ", ...i("α", "t")]
    : ["softmax(", ...i("QK"), html("sup", {}, "T"), " / √", ...i("d", "k"), ") ", ...i("V"), ", queries of the text and keys of the source. Row ", ...i("t"),
      ` of the map is the softmax of layer ${now.layer}, ${now.head ? `head ${now.head}` : "the mean of its heads"}`];
  const beam = [": the attention before token ", ...i("t"), ` was generated. Colour: square root of the weight. The beam kept ${data.beam.width} hypotheses, side by side, the most probable at the left; `,
    "numbers are log ", ...i("p"), "; finished texts are ranked by log ", ...i("p"), " / ((5 + ", ...i("n"), ") / 6)", html("sup", {}, data.beam.alpha), "."];
  return [...formula, ...beam, data.lines > 0 ? " A source is one line: the first is read." : "", data.cut ? ` Its last ${data.cut.toLocaleString("en")} tokens are left out.` : ""];
}

/** α of a cell. @param {Data} data @param {Chosen} chosen @returns {(row: number, column: number) => number} */
function weight(data, { text, layer, head }) {
  const { means, heads } = data.texts[text];
  const { shape, values } = unpack(head && heads ? heads : means);
  const [rows, columns] = shape.slice(-2);
  const first = (head ? (layer - 1) * data.heads + head - 1 : layer - 1) * rows * columns;
  return (row, column) => values[first + row * columns + column];
}

/** @param {Data} data @param {Chosen} now @param {import("chainrule/heat").Cell | null} cell */
function summary(data, now, cell) {
  const one = data.texts[now.text];
  if (!cell || cell.row < 0) return [html("b", {}, one.text), `log p ${fixed(one.log_prob)}, score ${fixed(one.score)}`];
  const value = weight(data, now)(cell.row, cell.column);
  return [html("b", {}, `“${one.shown[cell.row]}” attended to “${data.source[cell.column]}”`), html("span", { "data-weight": value }, html("i", {}, "α"), ` = ${fixed(value, 6)}`)];
}

/** @param {Text} one @param {boolean} chosen @param {() => void} choose */
function listed(one, chosen, choose) {
  return html("li", {}, html("button", { type: "button", "aria-pressed": String(chosen), click: choose }, one.text || "(empty)"),
    html("small", { "data-score": one.score, "data-log-prob": one.log_prob, title: `log p ${one.log_prob}, score ${one.score}` }, ` score ${fixed(one.score)}`));
}
