// @ts-check
/** p(the right answer) against the examples before it, bits of a repeated random sequence by position, and the heads that copy. */
import { choices, fixed, html } from "chainrule/draw";
import { niceStep, range } from "chainrule/axes";
import { makeChart } from "chainrule/chart";

/** @typedef {{ lines: { question: string, answer: string }[], typed: number[], mean: number[], low: number[], high: number[], orders: number }} Examples */
/** @typedef {{ first: (number | null)[], second: (number | null)[], sequences: number, vocabulary: number, layers: (number | null)[] | null, heads: number[][] | null }} Induction */
/** @typedef {{ name: string, kind: string, examples: Examples | null, induction: Induction | null }} Model */
/** @typedef {{ models: Model[], left_out: number }} Data */
/** @typedef {import("chainrule/chart").Chart} Chart */
/** @typedef {import("chainrule/chart").Line} Line */

const UNITS = { probability: "probability", bits: "bits" };
const GRID = "display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.2rem 2rem";
const SAID = "color: var(--model); white-space: normal";
const CELL = "text-align: center; padding: 0.25em 0.5em; min-width: 3em; cursor: default; border: 2px solid var(--paper); color: var(--on-heat)";

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const body = html("div", { class: "picture" }), charts = { shots: makeChart(), induction: makeChart() };
  const unit = () => (state.get("unit", "probability") === "bits" ? "bits" : "probability");
  const draw = () => body.replaceChildren(
    html("div", { style: GRID }, shotsPart(charts.shots, data.models, unit()), inductionPart(charts.induction, data.models)), ...data.models.flatMap(inside));
  element.append(choices("answers as", UNITS, unit(), (value) => { state.set("unit", value); draw(); }), body);
  draw();
  return (/** @type {Data} */ other) => { data = other; draw(); };
}

/** @param {number} p */
const bitsOf = (p) => (p > 0 ? -Math.log2(p) : null);

/** Values at `first`, `first` + 1, … @param {(number | null)[]} values @param {number} [first] @returns {[number, number | null][]} */
const along = (values, first = 0) => values.map((value, at) => [first + at, value]);

/** An axis of whole numbers, with room at both ends. @param {string} title @param {Line[]} lines */
function counts(title, lines) {
  const { low, high } = range(lines.flatMap(({ points }) => points.map(([x]) => x)));
  const step = Math.max(1, niceStep((high - low) / 10)), first = Math.ceil(low / step);
  return { title, low, high, ticks: Array.from({ length: Math.floor(high / step) - first + 1 }, (_, at) => (first + at) * step) };
}

/** From 0 to the largest value. @param {string} title @param {Line[]} lines */
const fromZero = (title, lines) => ({ title, ...range([0.5, ...lines.flatMap(({ points }) => points.map(([, value]) => value))]), low: 0 });

/** @param {Chart} chart @param {Model[]} models @param {"probability" | "bits"} unit */
function shotsPart(chart, models, unit) {
  const known = models.flatMap((model) => (model.examples ? [{ name: model.name, examples: model.examples }] : []));
  const title = "The right answer, by the examples before it";
  if (!known.length) return html("section", {}, html("h3", {}, title),
    html("p", { class: "note" }, "No line of the text has a question and an answer. Write examples, one on each line, as “2 plus 3 is 5” or “sea: mer”."));
  const value = unit === "bits" ? bitsOf : (/** @type {number} */ p) => p;
  const lines = known.flatMap(({ name, examples }) => shotLines(name, examples, value));
  chart.show({
    title, lines, x: counts("examples before it", lines), y: unit === "bits" ? fromZero("bits of the answer", lines) : { title: "p(answer)", low: 0, high: 1 },
    say: (at) => [html("b", {}, `${at} example${at === 1 ? "" : "s"} before it: `), ...known.flatMap(({ name, examples }) => (at < examples.mean.length ? [
      html("span", { style: SAID, "data-model": name, "data-mean": examples.mean[at], "data-typed": examples.typed[at] },
        `${name} ${fixed(examples.mean[at])} (${fixed(examples.low[at])} to ${fixed(examples.high[at])}); as typed, “${examples.lines[at].answer}” after “${examples.lines[at].question.trim()}” ${fixed(examples.typed[at])}`)] : []))],
  });
  return html("section", { class: "in-context-shots" }, chart.element,
    html("p", { class: "note" }, `The curve is the mean over ${known[0].examples.orders} orders of the lines, with its 95 % interval; a dot is a line of the text in the order in which it was typed.`));
}

/** The mean, its interval, and the lines as typed. @param {string} name @param {Examples} examples @param {(p: number) => number | null} value @returns {Line[]} */
function shotLines(name, examples, value) {
  const shared = { model: name, color: "var(--ink)" };
  return [
    { ...shared, name: `${name}, 95 %`, as: "band", guide: true, points: along(examples.high.map(value)), lower: along(examples.low.map(value)) },
    { ...shared, name, label: name, points: along(examples.mean.map(value)) },
    { ...shared, name: `${name}, as typed`, as: "dots", open: true, points: along(examples.typed.map(value)) },
  ];
}

/** @param {Chart} chart @param {Model[]} models */
function inductionPart(chart, models) {
  const known = models.flatMap((model) => (model.induction ? [{ name: model.name, induction: model.induction }] : []));
  const title = "A random sequence, and the same again: bits of each token";
  if (!known.length) return html("section", {}, html("h3", {}, title), html("p", { class: "note" }, "The context of the model has no room for a sequence and its copy."));
  const lines = known.flatMap(({ name, induction }) => /** @type {Line[]} */ ([
    { name: `${name}, first`, label: `${name}, first`, model: name, color: "var(--ink)", dash: "6 4", points: along(induction.first, 1) },
    { name: `${name}, again`, label: `${name}, again`, model: name, color: "var(--ink)", points: along(induction.second, 1) }]));
  chart.show({
    title, lines, x: counts("position in the sequence", lines), y: fromZero("bits", lines),
    say: (at) => [html("b", {}, `position ${at}: `), ...known.flatMap(({ name, induction }) => (at <= induction.first.length ? [
      html("span", { style: SAID, "data-model": name, "data-first": induction.first[at - 1], "data-second": induction.second[at - 1] },
        `${name} first ${fixed(induction.first[at - 1], 2)}, again ${fixed(induction.second[at - 1], 2)}`)] : []))],
  });
  return html("section", { class: "in-context-induction" }, chart.element,
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
  return html("td", { style: `${CELL}; background: rgb(var(--hot) / calc(${score.toFixed(3)} * var(--warmth)))`, tabindex: layer || at ? -1 : 0, "data-layer": layer, "data-head": at, "data-score": score,
    title: `layer ${layer + 1}, head ${at + 1}: ${fixed(score, 4)}` }, score >= 0.995 ? "1" : fixed(score, 2).slice(1));
}
