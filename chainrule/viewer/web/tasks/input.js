// @ts-check
/** What a model of a task reads, in boxes of its own above the view: a source and the text that is written from it, or the class whose model is shown. */
import { html } from "chainrule/draw";

/** @typedef {{ source?: string[], text?: string, own?: boolean, cut?: number, classes?: string[], class?: string, note?: string }} Given
 * `own`: the text is the model's own; `cut`: tokens of the source that are not read */

const PAUSE = 300;     // milliseconds without typing after which a request is sent
const NAMES = [["source"], ["question", "context"]];

/** Draws the boxes, and gives what shows other data in them. @param {HTMLElement} element @param {any} data @param {import("chainrule/state").State} state
 * @param {import("chainrule/panel").Live | null} live @returns {(data: any) => void} */
export function showInput(element, data, state, live) {
  let drawn = "", typing = 0;
  const draw = (/** @type {Given | undefined} */ given) => {
    const shape = JSON.stringify([given?.source?.length, given?.classes, given?.note]);
    if (shape !== drawn || !element.contains(document.activeElement)) {
      drawn = shape;
      element.replaceChildren(...(given ? parts(given) : []));
    }
  };
  const send = () => {
    clearTimeout(typing);
    typing = setTimeout(() => live?.write([...element.querySelectorAll("textarea")].map(({ value }) => value.replaceAll("\t", " ")).join("\t")), PAUSE);
  };
  const box = (/** @type {string} */ title, /** @type {string} */ text, /** @type {string} */ hint) => html("label", { class: "input-box" }, html("span", {}, title),
    live ? html("textarea", { rows: 1, spellcheck: false, "data-part": title, placeholder: hint, input: send }, text) : html("span", { class: "text", "data-part": title }, text || hint));
  const parts = (/** @type {Given} */ { source, text = "", own, cut, classes = [], class: chosen, note }) => [
    ...(source ?? []).map((part, place) => box(NAMES[(source?.length ?? 1) - 1][place], part, "what the text is written from")),
    source ? box(source.length ? "target" : "text", own ? "" : text, own && text ? text : "nothing yet") : null,
    source && !source.length ? html("p", { class: "note" }, "The source is blank: a picture, or vectors, of zeros.") : null,
    source && own ? html("p", { class: "note" }, "No target is given, so the model’s own is shown, as beam search finds it.") : null,
    cut ? html("p", { class: "note" }, `The last ${cut.toLocaleString("en")} tokens of the source are left out.`) : null,
    classes.length ? choose(classes, chosen ?? classes[0]) : null,
    note ? html("p", { class: "note" }, note) : null,
  ].filter((part) => part !== null);
  const choose = (/** @type {string[]} */ classes, /** @type {string} */ chosen) => html("label", { class: "choices" }, "model of class ",
    live ? html("select", { "data-which": "class", change: (event) => { state.set("class", /** @type {HTMLSelectElement} */ (event.target).value); live.write(live.text()); } },
      ...classes.map((name) => html("option", { value: name, selected: name === chosen }, name))) : html("b", {}, chosen));
  draw(data?.input);
  return (other) => draw(other?.input);
}
