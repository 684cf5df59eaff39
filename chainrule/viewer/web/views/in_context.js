// @ts-check
/** p(the right answer) against the examples before it, bits of a repeated random sequence by position, and the heads that copy. */
import { choices, fixed, html, svg } from "chainrule/draw";
import { niceStep } from "chainrule/axes";

/** @typedef {{ lines: { question: string, answer: string }[], typed: number[], mean: number[], low: number[], high: number[], orders: number }} Examples */
/** @typedef {{ first: (number | null)[], second: (number | null)[], sequences: number, vocabulary: number, layers: (number | null)[] | null, heads: number[][] | null }} Induction */
/** @typedef {{ name: string, kind: string, examples: Examples | null, induction: Induction | null }} Model */
/** @typedef {{ models: Model[], left_out: number }} Data */
/** @typedef {{ name: string, model: string, values: (number | null)[], low?: number[], high?: number[], dashed?: boolean, dots?: number[], start?: number }} Line `start`: x of the first value */
/** @typedef {{ title: string, x: string, y: string, top?: number, lines: Line[], say(at: number): (Node | string)[], names?(at: number): string }} Chart */

const WIDTH = 640, HEIGHT = 330, MARGIN = { left: 56, right: 16, top: 36, bottom: 64 };
const UNITS = { probability: "probability", bits: "bits" };
const GRID = "display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.2rem 2rem";
const CELL = "text-align: center; padding: 0.25em 0.5em; min-width: 3em; cursor: default; border: 2px solid var(--paper)";

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const body = html("div", { class: "picture" });
  const unit = () => (state.get("unit", "probability") === "bits" ? "bits" : "probability");
  const draw = () => body.replaceChildren(
    html("div", { style: GRID }, shotsPart(data.models, unit()), inductionPart(data.models)), ...data.models.flatMap(inside));
  element.append(choices("answers as", UNITS, unit(), (value) => { state.set("unit", value); draw(); }), body);
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}

/** @param {number} p */
const bitsOf = (p) => (p > 0 ? -Math.log2(p) : null);

/** @param {Model[]} models @param {"probability" | "bits"} unit */
function shotsPart(models, unit) {
  const known = models.flatMap((model) => (model.examples ? [{ name: model.name, examples: model.examples }] : []));
  if (!known.length) return html("section", {}, html("h3", {}, "The right answer, by the examples before it"),
    html("p", { class: "note" }, "No line of the text has a question and an answer. Write examples, one on each line, as “2 plus 3 is 5” or “sea: mer”."));
  const value = unit === "bits" ? bitsOf : (/** @type {number} */ p) => p;
  const lines = known.map(({ name, examples }) => ({ name, model: name, values: examples.mean.map(value), dots: examples.typed.map((p) => value(p) ?? NaN),
    ...(unit === "probability" ? { low: examples.low, high: examples.high } : {}) }));
  return html("section", { class: "in-context-shots" }, html("h3", {}, "The right answer, by the examples before it"),
    chart({ title: "probability of the right answer against the examples before it", x: "examples before it", y: unit === "bits" ? "bits of the answer" : "p(answer)", top: unit === "bits" ? undefined : 1, lines,
      say: (at) => [html("b", {}, `${at} example${at === 1 ? "" : "s"} before it: `), ...known.flatMap(({ name, examples }) => (at < examples.mean.length ? [
        html("span", { style: "color: var(--model); margin-right: 1em", "data-model": name, "data-mean": examples.mean[at], "data-typed": examples.typed[at] },
          `${name} ${fixed(examples.mean[at])} (${fixed(examples.low[at])} to ${fixed(examples.high[at])}); as typed, “${examples.lines[at].answer}” after “${examples.lines[at].question.trim()}” ${fixed(examples.typed[at])}`)] : []))] }),
    html("p", { class: "note" }, `The curve is the mean over ${known[0].examples.orders} orders of the lines, with its 95 % interval; a dot is a line of the text in the order in which it was typed.`));
}

/** @param {Model[]} models */
function inductionPart(models) {
  const known = models.flatMap((model) => (model.induction ? [{ name: model.name, induction: model.induction }] : []));
  const title = html("h3", {}, "A random sequence, and the same again");
  if (!known.length) return html("section", {}, title, html("p", { class: "note" }, "The context of the model has no room for a sequence and its copy."));
  const lines = known.flatMap(({ name, induction }) => [
    { name: `${name}, first`, model: name, values: induction.first, dashed: true, start: 1 }, { name: `${name}, again`, model: name, values: induction.second, start: 1 }]);
  return html("section", { class: "in-context-induction" }, title,
    chart({ title: "bits of each token of a random sequence and of its copy, by position", x: "position in the sequence", y: "bits", lines,
      say: (at) => [html("b", {}, `position ${at}: `), ...known.flatMap(({ name, induction }) => (at <= induction.first.length ? [
        html("span", { style: "color: var(--model); margin-right: 1em", "data-model": name, "data-first": induction.first[at - 1], "data-second": induction.second[at - 1] },
          `${name} first ${fixed(induction.first[at - 1], 2)}, again ${fixed(induction.second[at - 1], 2)}`)] : []))] }),
    html("p", { class: "note" }, `Mean over ${known[0].induction.sequences} sequences of random tokens. Dashed: the first time, when nothing can be known. Solid: the second time, when a model that copies knows every token but the first.`));
}

/** The layers and heads of a model that has some. @param {Model} model */
function inside({ name, kind, induction }) {
  if (!induction) return [];
  if (!induction.heads && !induction.layers) return [html("p", { class: "note" }, `${name} (${kind}) has no attention heads: its loss alone says whether it copies.`)];
  return [html("h3", {}, `${name}: which layers and heads copy`), headsTable(name, induction),
    html("p", { class: "note" }, "A head: the attention from a token of the second copy to the token that followed it in the first, from 0 to 1 (1: an induction head). Bits: the second copy, if the layer were the last one (the logit lens).")];
}

/** Arrow keys go from cell to cell. @param {string} name @param {Induction} induction */
function headsTable(name, { heads, layers }) {
  const count = Math.max(heads?.length ?? 0, layers?.length ?? 0), most = Math.max(0, ...(heads ?? []).map((row) => row.length));
  const head = html("tr", {}, html("th", { scope: "col" }, "layer"), ...Array.from({ length: most }, (_, at) => html("th", { scope: "col", style: "text-align: center" }, `head ${at + 1}`)),
    layers ? html("th", { scope: "col" }, "bits after it") : null);
  const rows = Array.from({ length: count }, (_, layer) => html("tr", {}, html("th", { scope: "row" }, layer + 1),
    ...Array.from({ length: most }, (_, at) => cell(heads?.[layer]?.[at], layer, at)), layers ? html("td", { "data-bits": layers[layer] }, fixed(layers[layer], 2)) : null));
  const table = html("table", { class: "in-context-heads", "aria-label": `induction by layer and head: ${name}` }, html("thead", {}, head), html("tbody", {}, ...rows));
  table.addEventListener("keydown", (event) => {
    const now = /** @type {HTMLElement} */ (event.target), [layer, at] = [Number(now.dataset.layer), Number(now.dataset.head)];
    const to = /** @type {Record<string, number[]>} */ ({ ArrowUp: [layer - 1, at], ArrowDown: [layer + 1, at], ArrowLeft: [layer, at - 1], ArrowRight: [layer, at + 1] })[event.key];
    const next = to && /** @type {HTMLElement | null} */ (table.querySelector(`[data-layer="${to[0]}"][data-head="${to[1]}"]`));
    if (!next) return;
    event.preventDefault();
    now.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return html("div", { class: "scroll" }, table);
}

/** @param {number | undefined} score @param {number} layer @param {number} at */
function cell(score, layer, at) {
  if (score == null) return html("td");
  return html("td", { style: `${CELL}; background: rgb(var(--hot) / ${(0.85 * score).toFixed(3)})`, tabindex: layer || at ? -1 : 0, "data-layer": layer, "data-head": at, "data-score": score,
    title: `layer ${layer + 1}, head ${at + 1}: ${fixed(score, 4)}` }, score >= 0.995 ? "1" : fixed(score, 2).slice(1));
}

/** Lines with their intervals; pointer, touch and arrow keys go from place to place. @param {Chart} made */
function chart({ title, x, y, top, lines, say }) {
  const readout = html("output", { class: "readout", "aria-live": "polite" }, "Point at the chart, or focus it and use the arrow keys.");
  const first = Math.min(...lines.map((line) => line.start ?? 0)), last = Math.max(...lines.map((line) => (line.start ?? 0) + line.values.length - 1));
  const numbers = lines.flatMap((line) => [...line.values, ...(line.high ?? []), ...(line.dots ?? [])]).filter((value) => value != null && Number.isFinite(value));
  const step = top ? 0.2 : niceStep(Math.max(...numbers.map(Number), 0.5) / 5), high = top ?? step * Math.ceil(Math.max(...numbers.map(Number), 0.5) / step);
  const right = WIDTH - MARGIN.right, floor = HEIGHT - MARGIN.bottom;
  const across = (/** @type {number} */ at) => MARGIN.left + 10 + ((right - MARGIN.left - 20) * (at - first)) / Math.max(1, last - first);
  const up = (/** @type {number} */ value) => floor - ((floor - MARGIN.top) * value) / high;
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img", "aria-label": `${title}; arrow keys go from place to place`, style: "touch-action: pan-y" });
  const every = Math.ceil((last - first + 1) / 12);
  for (let value = 0; value <= high + 1e-9; value += step)
    drawn.append(svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: up(value), y2: up(value) }), svg("text", { class: "tick", x: MARGIN.left - 8, y: up(value) + 5, "text-anchor": "end" }, fixed(value, step < 1 ? 1 : 0)));
  for (let at = first; at <= last; at += every) drawn.append(svg("text", { class: "tick", x: across(at), y: floor + 26, "text-anchor": "middle" }, at));
  drawn.append(svg("text", { x: (MARGIN.left + right) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, x), svg("text", { x: 4, y: 18 }, y));
  for (const line of lines) drawn.append(...parts(line, across, up));
  const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: floor, visibility: "hidden" });
  drawn.append(cursor);
  let now = first - 1;
  const show = (/** @type {number} */ at) => {
    now = Math.min(last, Math.max(first, at));
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(across(now)));
    cursor.setAttribute("visibility", "visible");
    readout.replaceChildren(...say(now));
  };
  const point = (/** @type {Event} */ event) => {
    const box = drawn.getBoundingClientRect(), place = ((/** @type {PointerEvent} */ (event).clientX - box.left) / box.width) * WIDTH;
    show(Math.round(first + ((place - MARGIN.left - 10) / (right - MARGIN.left - 20)) * Math.max(1, last - first)));
  };
  drawn.addEventListener("pointermove", point);
  drawn.addEventListener("pointerdown", point);
  drawn.addEventListener("keydown", (event) => {
    const to = /** @type {Record<string, number>} */ ({ ArrowLeft: now - 1, ArrowRight: now + 1, Home: first, End: last })[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
  return html("figure", { style: "margin: 0" }, drawn, readout);
}

/** @param {Line} line @param {(at: number) => number} across @param {(value: number) => number} up @returns {SVGElement[]} */
function parts({ name, model, values, low, high, dashed, dots, start = 0 }, across, up) {
  const spot = (/** @type {number} */ value, /** @type {number} */ at) => `${across(start + at).toFixed(1)} ${up(value).toFixed(1)}`;
  const found = [];
  if (low && high) found.push(svg("polygon", { points: [...high.map(spot), ...low.map(spot).reverse()].join(" "), "data-model": model, style: "fill: var(--model)", opacity: 0.18 }));
  const path = values.map((value, at) => (value == null ? "" : `${at && values[at - 1] != null ? "L" : "M"}${spot(value, at)}`)).join("");
  found.push(svg("path", { class: "curve", d: path, fill: "none", "data-model": model, style: "stroke: var(--model)", "stroke-width": 2.5, "stroke-dasharray": dashed ? "6 4" : null }, svg("title", {}, name)));
  for (const [at, value] of (dots ?? []).entries())
    if (Number.isFinite(value)) found.push(svg("circle", { cx: across(start + at), cy: up(value), r: 3.5, fill: "var(--paper)", "data-model": model, style: "stroke: var(--model)", "stroke-width": 1.5 }));
  return found;
}
