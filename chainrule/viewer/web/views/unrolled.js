// @ts-check
/** A tiny network, step by step: a drawing of all its vectors, and the formula of the current step with its numbers. */
import { html } from "chainrule/draw";
import { drawing } from "chainrule/unrolled_drawing";
import { explain } from "chainrule/unrolled_rules";

/** @typedef {{ id: string, when: "now" | "before" | "all" }} Input */
/** @typedef {{ id: string, symbol: string, name: string, formula: string, rule: string, band: number, of: Input[],
 *   values: (number | null)[][], labels?: "vocab" | "tokens", first?: number[], matrix?: number[][], matrices?: number[][][], letters?: string[],
 *   bias?: number[], squash?: string, sums?: number[][], how?: string, factor?: number, epsilon?: number, gain?: number[],
 *   cos?: number[][], sin?: number[][], size?: number, sees?: number[][], added?: number[][] }} Node */
/** @typedef {{ name: string, parameters: number, order: "time" | "depth", tokens: string[], ids: number[], vocab: string[], nodes: Node[] }} Data */
/** The chosen number: number `index` of token `time` in node number `node`.
 * @typedef {{ node: number, time: number, index: number }} Place */

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const steps = data.order === "time" ? data.nodes.length * data.tokens.length : data.nodes.length;
  const place = begin(data, state);
  const box = html("div", { class: "scroll unrolled-drawing", tabindex: 0, role: "application",
    "aria-label": "the network: left and right go a step back and forward, up and down choose a number" });
  const formula = html("div", { class: "unrolled-step", role: "group", "aria-live": "polite", "aria-label": "what this step calculates" });
  const count = html("output", { class: "unrolled-count" });
  const show = () => {
    count.textContent = `step ${stepOf(data, place) + 1} of ${steps}`;
    box.replaceChildren(drawing(data, place, (chosen) => go(chosen)));
    formula.replaceChildren(...explain(data, place));
    reveal(box);
  };
  const go = (/** @type {Place} */ next) => {
    Object.assign(place, fitted(data, next));
    state.set("step", String(stepOf(data, place)));
    state.set("at", `${place.time}.${place.index}`);
    show();
  };
  const move = (/** @type {number} */ by) => {
    const next = Math.min(steps - 1, Math.max(0, stepOf(data, place) + by));
    go({ ...placeOf(data, next, place.time), index: place.index });
  };
  box.addEventListener("keydown", (event) => {
    const act = keys(place, move, go, steps)[event.key];
    if (!act) return;
    event.preventDefault();
    act(event.shiftKey);
  });
  element.append(
    html("p", { class: "unrolled-facts" }, `${data.parameters} parameters, a vocabulary of ${data.vocab.length}: `, data.vocab.join("  ")),
    html("div", { class: "choices" },
      html("button", { type: "button", "data-by": "-1", click: () => move(-1) }, "← Step back"),
      html("button", { type: "button", "data-by": "1", click: () => move(1) }, "Step forward →"),
      html("button", { type: "button", "data-by": "all", click: () => move(steps) }, "To the end"), count),
    html("div", { class: "unrolled picture" }, box, formula));
  show();
}

/** Scrolls the drawing, never the page, so that the current step is visible. @param {HTMLElement} box */
function reveal(box) {
  const parts = [...box.querySelectorAll(".now")].map((part) => /** @type {SVGGElement} */ (part).getBBox());
  const [left, top] = [Math.min(...parts.map((part) => part.x)), Math.min(...parts.map((part) => part.y))];
  const [right, bottom] = [Math.max(...parts.map((part) => part.x + part.width)), Math.max(...parts.map((part) => part.y + part.height))];
  if (left < box.scrollLeft || right > box.scrollLeft + box.clientWidth - 20) box.scrollLeft = (left + right - box.clientWidth) / 2;
  if (top < box.scrollTop + 40 || bottom > box.scrollTop + box.clientHeight - 20) box.scrollTop = (top + bottom - box.clientHeight) / 2;
}

/** @param {Place} place @param {(by: number) => void} move @param {(next: Place) => void} go @param {number} steps
 * @returns {Record<string, (shift: boolean) => void>} */
function keys(place, move, go, steps) {
  const across = (/** @type {number} */ by) => (/** @type {boolean} */ shift) => (shift ? go({ ...place, time: place.time + by }) : move(by));
  return {
    ArrowLeft: across(-1), ArrowRight: across(1), Home: () => move(-steps), End: () => move(steps),
    ArrowUp: () => go({ ...place, index: place.index - 1 }), ArrowDown: () => go({ ...place, index: place.index + 1 }),
  };
}

/** In time all vectors of a token come before the next token; in depth each vector is computed for all tokens at once.
 * @param {Data} data @param {Place} place */
const stepOf = (data, { node, time }) => (data.order === "time" ? time * data.nodes.length + node : node);

/** @param {Data} data @param {number} step @param {number} time @returns {Place} */
function placeOf(data, step, time) {
  if (data.order === "depth") return { node: step, time, index: 0 };
  return { node: step % data.nodes.length, time: Math.floor(step / data.nodes.length), index: 0 };
}

/** From the address; else the first step, and in a Transformer the last token. @param {Data} data @param {import("chainrule/state").State} state */
function begin(data, state) {
  const [step, time, index] = [state.get("step", "0"), ...state.get("at", `${data.order === "time" ? 0 : data.tokens.length - 1}.0`).split(".")]
    .map((part) => Number.parseInt(part, 10) || 0);
  const last = data.nodes.length * (data.order === "time" ? data.tokens.length : 1) - 1;
  return fitted(data, { ...placeOf(data, Math.min(last, Math.max(0, step)), time), index });
}

/** @param {Data} data @param {Place} place @returns {Place} */
function fitted(data, { node, time, index }) {
  const held = (/** @type {number} */ value, /** @type {number} */ size) => Math.min(size - 1, Math.max(0, value));
  return { node, time: held(time, data.tokens.length), index: held(index, data.nodes[node].values[0].length) };
}
