// @ts-check
/** A map between words: how much the tag of the row's word changes when the column's word is left out. */
import { fixed, html } from "chainrule/draw";
import { unpack } from "chainrule/arrays";
import { makeHeat } from "chainrule/heat";

/** @typedef {{ name: string, words: string[], tags: string[], probability: number[], changes: import("chainrule/arrays").Packed, without: string[][] }} Data */

/** @param {Element} element @param {Data} data */
export function render(element, data) {
  const readout = html("output", { class: "readout", "aria-live": "polite" });
  const list = html("ol", { class: "influence-list" });
  let values = unpack(data.changes).values;
  const change = (/** @type {number} */ row, /** @type {number} */ column) => values[row * data.words.length + column];
  const heat = makeHeat({ title: "rows: words and their tags; columns: the word that is left out; arrow keys go from cell to cell", pick: (cell) => point(cell), most: 44 });
  const point = (/** @type {import("chainrule/heat").Cell | null} */ cell) => {
    heat.mark(cell ?? { row: -1, column: -1 });
    if (!cell) return void readout.replaceChildren("Point at a cell, or focus the map and use the arrow keys.");
    const { row, column } = cell, tag = data.tags[row], then = data.without[row][column];
    readout.replaceChildren(html("b", {}, `${data.words[row]} / ${tag}`), row === column ? "the word itself" : html("span", { "data-change": change(row, column) },
      `without “${data.words[column]}” its tag’s probabilities change by ${fixed(change(row, column), 4)}${then === tag ? "" : `, and the tag becomes ${then}`}`));
  };
  const draw = () => {
    values = unpack(data.changes).values;
    heat.show({ rows: data.words.map((word, place) => ({ text: `${word}/${data.tags[place]}` })), columns: data.words.map((text) => ({ text })), weight: (row, column) => change(row, column) });
    list.replaceChildren(...data.words.flatMap((word, row) => {
      const strongest = data.words.map((_, column) => column).filter((column) => column !== row && change(row, column) >= 0.01).sort((one, other) => change(row, other) - change(row, one)).slice(0, 3);
      return strongest.length ? [html("li", { "data-word": row }, html("b", {}, word), ` is ${data.tags[row]} (${fixed(data.probability[row], 3)}) because of `,
        strongest.map((column) => `“${data.words[column]}” (${fixed(change(row, column), 3)})`).join(", "))] : [];
    }));
    point(null);
  };
  element.append(html("p", { class: "note" }, "d = ½ Σ |p(tag | all words) − p(tag | all but one)|, from 0 to 1. Colour: square root of d. Rows: a word and its tag. Columns: the word that is left out."),
    readout, html("div", { class: "picture" }, heat.element), list);
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}
