// @ts-check
/** The tag of a word alone, level by level: its shape, its last letters, the word. A table for the chosen word. */
import { fixed, html, scrolling } from "chainrule/draw";
import { unpack } from "chainrule/arrays";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ name: string, levels: string[], tags: string[], words: string[], truth: number[] | null, contexts: string[][], counts: Packed, weights: number[], probabilities: Packed }} Data */

const SHOWN = 6;    // tags of a word, the most probable at any level

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const words = html("p", { class: "text features-words", role: "group", "aria-label": "words" }), table = scrolling("p(tag), level by level");
  const now = () => Math.min(data.words.length - 1, Math.max(0, Math.floor(Number(state.get("word", "0"))) || 0));
  const draw = () => {
    words.replaceChildren(...data.words.map((word, place) => html("button", { type: "button", "aria-pressed": String(place === now()), "data-word": place,
      click: () => { state.set("word", String(place)); draw(); /** @type {HTMLElement} */ (words.children[place]).focus(); } }, word)));
    table.replaceChildren(data.words.length ? levels(data, now()) : html("p", {}, "There is no word yet: type a sentence."));
  };
  element.append(html("p", { class: "note" }, "p", html("sub", {}, "l"), "(tag) = (n(c", html("sub", {}, "l"), ", tag) + α", html("sub", {}, "l"), " p", html("sub", {}, "l−1"), "(tag)) / (n(c", html("sub", {}, "l"), ") + α",
    html("sub", {}, "l"), "): each level mixes its counts with the level above it. Grey: never seen in training, so nothing changes."),
    html("div", { class: "picture" }, words, table));
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}

/** @param {Data} data @param {number} word */
function levels(data, word) {
  const { shape: [, rows, tags], values } = unpack(data.probabilities), counts = unpack(data.counts).values;
  const p = (/** @type {number} */ row, /** @type {number} */ tag) => values[(word * rows + row) * tags + tag];
  const most = (/** @type {number} */ tag) => Math.max(...Array.from({ length: rows }, (_, row) => p(row, tag)));
  const truth = data.truth?.[word] ?? -1;
  const chosen = data.tags.map((_, tag) => tag).sort((one, other) => p(rows - 1, other) - p(rows - 1, one) || most(other) - most(one)).slice(0, SHOWN);
  if (truth >= 0 && !chosen.includes(truth)) chosen[chosen.length - 1] = truth;
  const cells = (/** @type {number} */ row) => chosen.map((tag) => html("td", { "data-p": p(row, tag), class: "features-p", style: `--heat:${p(row, tag).toFixed(3)}` }, fixed(p(row, tag), 4)));
  const line = (/** @type {string} */ level, /** @type {number} */ place) => {
    const context = data.contexts[word][place], count = counts[word * (rows - 1) + place];
    return html("tr", { class: count ? "" : "features-unseen", "data-level": place }, html("th", { scope: "row" }, level), html("td", { class: "features-context" }, context || "–"),
      html("td", {}, count.toLocaleString("en")), html("td", {}, Number(data.weights[place].toPrecision(3))), ...cells(place + 1));
  };
  return html("table", { class: "features-table" }, html("thead", {}, html("tr", {}, ...["level", "of this word", "seen", "α"].map((title) => html("th", { scope: "col" }, title)),
    ...chosen.map((tag) => html("th", { scope: "col", class: tag === truth ? "features-true" : "" }, data.tags[tag], tag === truth ? " (true)" : "")))),
    html("tbody", {}, html("tr", {}, html("th", { scope: "row" }, "nothing"), html("td", {}), html("td", {}), html("td", {}), ...cells(0)), ...data.levels.map(line)));
}
