// @ts-check
/** The occurrences of one word: the cosine of every two of them after a layer, and a map of their vectors. */
import { choices, fixed, html, unique } from "chainrule/draw";
import { unpack } from "chainrule/arrays";
import { makeHeat } from "chainrule/heat";
import { makeMap } from "chainrule/scatter";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ before: string, word: string, after: string }} Occurrence */
/** @typedef {{ name: string, mean: number | null, cosines: Packed, map: Packed, shares: number[] }} Layer */
/** @typedef {{ model: string, word: string, words: string[], occurrences: Occurrence[], more: number, layers: Layer[] }} Data */
/** @typedef {{ ask(options: Record<string, string>): Promise<Data | null> }} Live */

const AROUND = 18;    // characters of a sentence beside the word, in a label

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  const controls = html("div", { class: "choices" });
  const about = html("p", { class: "note" });
  const readout = html("output", { class: "readout", "aria-live": "polite" });
  const list = html("ol", { class: "contextual-list" });
  const map = makeMap();
  const heat = makeHeat({ title: "cosines of every two occurrences; arrow keys go from cell to cell", pick: (cell) => point(cell), most: 44 });
  const words = html("datalist", { id: unique("contextual-words") });
  const now = () => Math.min(data.layers.length - 1, Math.max(0, Number(state.get("layer", String(data.layers.length - 1))) || 0));
  const cosine = (/** @type {number} */ row, /** @type {number} */ column) => {
    const { shape: [, count], values } = unpack(data.layers[now()].cosines);
    return values[row * count + column];
  };
  const point = (/** @type {import("chainrule/heat").Cell | null} */ cell) => {
    heat.mark(cell ?? { row: -1, column: -1 });
    for (const [place, item] of [...list.children].entries()) item.classList.toggle("chosen", cell !== null && (place === cell.row || place === cell.column));
    if (!cell) return void readout.replaceChildren("Point at a cell, or focus the matrix and use the arrow keys.");
    const value = cosine(cell.row, cell.column);
    readout.replaceChildren(html("b", {}, `occurrences ${cell.row + 1} and ${cell.column + 1}`), html("span", { "data-cosine": value }, `cosine ${fixed(value, 4)}`));
  };
  const choose = async (/** @type {string} */ word) => {
    state.set("word", word);
    const more = live ? await live.ask({ word }) : null;
    if (more) { data = more; draw(); }
  };
  const draw = () => {
    words.replaceChildren(...data.words.map((value) => html("option", { value })));
    const names = Object.fromEntries(data.layers.map(({ name, mean }, place) => [String(place), `${name}${mean == null ? "" : ` (${fixed(mean, 3)})`}`]));
    controls.replaceChildren(...(live ? [field(data.word, words.id, choose)] : [html("b", {}, `“${data.word}”`)]),
      ...(data.layers.length ? [choices("vectors of", names, String(now()), (layer) => { state.set("layer", layer); drawLayer(); })] : []));
    list.replaceChildren(...data.occurrences.map(({ before, word, after }) => html("li", {}, before, html("b", {}, word), after)));
    drawLayer();
  };
  const drawLayer = () => {
    about.textContent = described(data, now());
    const labels = data.occurrences.map((_, place) => ({ text: String(place + 1) }));
    const least = data.layers.length ? smallest(data.layers[now()]) : 1;
    heat.show({ rows: labels, columns: labels, weight: (row, column) => (least < 1 ? ((cosine(row, column) - least) / (1 - least)) ** 2 : 1) });
    point(null);
    if (data.layers.length) drawMap(map, data, data.layers[now()]);
    map.element.hidden = !data.layers.length;
  };
  element.append(controls, words, about, readout, html("div", { class: "contextual-both picture" }, heat.element, map.element), list);
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}

/** Of all cosines of a layer, where the colours begin; 1: they are all 1, but for rounding. @param {Layer} layer */
function smallest({ cosines }) {
  const least = Math.min(...unpack(cosines).values);
  return least > 0.9999 ? 1 : least;
}

/** @param {string} word @param {string} list the id of its words @param {(word: string) => void} choose */
function field(word, list, choose) {
  return html("label", {}, "word ", html("input", { class: "contextual-word", "data-which": "word", "aria-label": "word", list, value: word,
    autocomplete: "off", autocapitalize: "off", spellcheck: "false", change: (event) => choose(/** @type {HTMLInputElement} */ (event.target).value.trim()) }));
}

/** @param {Occurrence} one */
const excerpt = ({ before, word, after }) => `${before.length > AROUND ? "…" : ""}${before.slice(-AROUND)}${word}${after.slice(0, AROUND)}${after.length > AROUND ? "…" : ""}`;

/** @param {Data} data @param {number} layer */
function described(data, layer) {
  if (!data.occurrences.length) return data.word ? `The text has no word “${data.word}”. Write sentences that have it, one on each line.` : "Write sentences with one word in common, one on each line.";
  const { name, mean } = data.layers[layer];
  const count = `${data.model}: ${data.occurrences.length} occurrences of “${data.word}”${data.more ? `, and ${data.more} more that are not shown` : ""}. `;
  if (layer === 0) return `${count}The embedding is one vector for a word, whatever the sentence: all cosines are 1.`;
  return `${count}After ${name} the mean cosine of two of them is ${fixed(mean, 3)}; of their embeddings it is ${fixed(data.layers[0].mean, 3)}. `
    + `Colours go from the smallest, ${fixed(smallest(data.layers[layer]), 3)}, to 1.`;
}

/** @param {import("chainrule/scatter").Scatter} map @param {Data} data @param {Layer} layer */
function drawMap(map, data, layer) {
  const { values } = unpack(layer.map);
  const title = (/** @type {number} */ axis) => `${axis ? "second" : "first"} direction (${fixed(100 * layer.shares[axis], 1)} %)`;
  map.show({
    title: `Map of the occurrences of “${data.word}”, ${layer.name}`, x: title(0), y: title(1), count: data.occurrences.length,
    spot: (place) => [values[2 * place], values[2 * place + 1]], name: (place) => String(place + 1), about: (place) => `${place + 1}: ${excerpt(data.occurrences[place])}`,
    marks: data.occurrences.map((_, place) => ({ place, style: /** @type {const} */ ("found") })),
  });
}
