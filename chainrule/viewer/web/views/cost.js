// @ts-check
/** FLOPs, seconds and bytes against the length of a text, on log axes: lines are counted, dots are measured. */
import { choices, fixed, html, hue, scrolling, short } from "chainrule/draw";
import { range } from "chainrule/axes";
import { colorOf, makeChart } from "chainrule/chart";

/** @typedef {{ tokens: number, seconds: number, bytes: number }} Cost */
/** @typedef {{ tokens: number[], flops: number[], bytes: number[], terms: number[] | null, power: number }} Counted */
/** @typedef {"flops" | "seconds" | "bytes"} What */
/** @typedef {{ name: string, kind: string, context: number | null, parallel: boolean, counted: Record<string, Counted>, ways: Record<string, Cost[]> }} Model */
/** @typedef {{ models: Model[], lengths: number[], waiting: number, pieces: number, device: string }} Data */
/** @typedef {{ ask(options: Record<string, string>): Promise<Data | null> }} Live */
/** @typedef {{ model: Model, way: string, costs: Cost[], counted: Counted | undefined, color: number }} Line */
/** @typedef {[number, number | null][]} Points */

const WORK = { learn: "training on T tokens", write: "generating T tokens, one by one" };
const WAYS = { write: ["write", "reread"], learn: ["learn"] };
const EXPLAINED = { write: "each token read once, with the state or KV cache kept", reread: "the whole text read again for each token", learn: "forward and backward" };
const WHATS = { flops: "FLOPs, counted", seconds: "time", bytes: "memory" };
const TITLES = { flops: "FLOPs", seconds: "seconds", bytes: "bytes" };
const POWERS = ["T", "T²", "T³"];
const HUES = 6;
const TICKS = Array.from({ length: 8 }, (_, power) => 4 ** power);

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  let now = data, turn = 0;
  const work = () => /** @type {keyof typeof WORK} */ (state.get("of", "learn") in WORK ? state.get("of", "learn") : "learn");
  const what = () => /** @type {What} */ (state.get("what", "flops") in WHATS ? state.get("what", "flops") : "flops");
  const at = () => (Number(state.get("at", "")) > 0 ? Number(state.get("at", "")) : longest(now, work(), what()));
  const chart = makeChart((tokens) => { state.set("at", String(tokens)); draw(); });
  const numbers = scrolling("the cost of each model");
  const draw = () => {
    const lines = linesOf(now.models, work(), what());
    numbers.replaceChildren(table(lines, what(), at()));
    chart.show({ ...picture(lines, what(), work()), at: at(), say: (tokens) => [html("b", {}, `T = ${tokens}`), ...lines.map((line) => readout(line, what(), tokens))] });
    const left = what() === "flops" || !live ? 0 : now.waiting;
    chart.wait(left ? `measuring: ${now.pieces - left} of ${now.pieces} done` : "", (now.pieces - left) / now.pieces);
  };
  /** Asks for one piece after the other, until all is measured or another answer has come. @param {Record<string, string>} more */
  const measure = async (more) => {
    const mine = ++turn;
    for (let first = true; live && mine === turn && element.isConnected && (first ? "again" in more || now.waiting : now.waiting); first = false) {
      const answer = await live.ask(first ? { measure: "yes", ...more } : { measure: "yes" });
      if (!answer || mine !== turn) return;
      now = answer;
      draw();
    }
  };
  const pick = (/** @type {string} */ name) => (/** @type {string} */ value) => { state.set(name, value); draw(); };
  const controls = html("div", { class: "choices" }, choices("cost of", WORK, work(), pick("of")), choices("as", WHATS, what(), pick("what")));
  if (live) controls.append(html("button", { type: "button", click: () => measure({ again: "yes" }) }, "measure again"));
  const note = html("p", { class: "note" }, "Lines are counted, as ", html("code", {}, "chainrule plan"), " counts: FLOPs by the weights and keys that a token is multiplied by, exact at any length, beyond a model's context too; bytes of the state when generating, ",
    `of activations and logits in mixed precision when training. Dots are measured on ${data.device}, at the same lengths for all models, each up to its context: the fastest of several repeats, one text at a time, `,
    "and the peak memory of tensors beyond the model itself. In the chart of time a line is the counted FLOPs at the speed of the longest text: dots above it are the fixed cost of a step. Serial steps wait for one another, whatever the machine. Dotted: T and T².");
  chart.element.classList.add("picture");
  element.append(controls, chart.element, numbers, note);
  draw();
  setTimeout(measure, 0, {});    // after the page knows that this view is drawn
  return (/** @type {Data} */ more) => { now = more; draw(); measure({}); };
}

/** The longest text that was measured by every line that is shown; if none was, the longest of all. @param {Data} data @param {keyof typeof WAYS} work @param {What} what */
function longest({ models, lengths }, work, what) {
  const lines = what === "flops" ? [] : linesOf(models, work, what);
  return lengths.findLast((length) => lines.every(({ costs }) => costs.some(({ tokens }) => tokens === length))) ?? lengths[lengths.length - 1];
}

/** @param {Model[]} models @param {keyof typeof WAYS} work @param {What} what @returns {Line[]} */
const linesOf = (models, work, what) => models.flatMap((model, place) => WAYS[work].filter((way) => (what === "flops" ? model.counted[way] : model.ways[way]))
  .map((way) => ({ model, way, costs: model.ways[way] ?? [], counted: model.counted[way], color: place % HUES })));

/** @param {Line[]} lines @param {What} what @param {keyof typeof WORK} work @returns {import("chainrule/chart").Picture} */
function picture(lines, what, work) {
  const counted = lines.map((line) => countedPoints(line, what)), measured = lines.map((line) => measuredPoints(line, what));
  const every = [...counted, ...measured].flat();
  const x = range(every.map(([tokens]) => tokens), true), y = range(every.map(([, value]) => value), true);
  const styled = (/** @type {Line} */ { model, way, color }) => ({ name: `${model.name}, ${way}`, model: model.name, color: hue(color), dash: way === "reread" ? "7 5" : undefined });
  return {
    title: `${what === "flops" ? "FLOPs" : what === "seconds" ? "Time" : "Memory"} of ${WORK[work]}`,
    x: { title: "T (tokens)", log: true, ticks: TICKS, write: String, ...x }, y: { title: TITLES[what], log: true, write: (value) => amount(value, what), ...y },
    lines: [...guides(every, x, y),
      ...lines.map((line, place) => ({ ...styled(line), points: counted[place], label: `${line.model.name}${line.way === "reread" ? ", reread" : ""}` })).filter(({ points }) => points.length),
      ...lines.map((line, place) => ({ ...styled(line), as: /** @type {const} */ ("dots"), points: measured[place], open: line.way === "reread" }))],
  };
}

/** FLOPs; or seconds at the speed of the longest text measured; or bytes. @param {Line} line @param {What} what @returns {Points} */
function countedPoints({ way, costs, counted }, what) {
  if (!counted || (what === "bytes" && way === "reread")) return [];
  if (what !== "seconds") return counted.tokens.map((tokens, place) => [tokens, counted[what][place]]);
  const last = costs.at(-1);
  if (!last) return [];
  const seconds = last.seconds / counted.flops[counted.tokens.indexOf(last.tokens)];
  return counted.tokens.map((tokens, place) => /** @type {[number, number]} */ ([tokens, seconds * counted.flops[place]])).filter(([tokens]) => tokens <= 4 * last.tokens);
}

/** @param {Line} line @param {What} what @returns {Points} */
const measuredPoints = ({ costs }, what) => (what === "flops" ? [] : costs.map((cost) => [cost.tokens, cost[what] || null]));

/** T and T², from the cheapest first point on, as far as the chart goes. @param {Points} every @param {{ low: number, high: number }} x @param {{ low: number, high: number }} y */
function guides(every, x, y) {
  const first = Math.min(...every.map(([tokens]) => tokens)), least = Math.min(...every.filter(([tokens, value]) => tokens === first && value).map(([, value]) => Number(value)));
  if (!Number.isFinite(least) || x.high <= 2 * first) return [];
  return [1, 2].map((power) => {
    const last = Math.min(x.high, first * (y.high / least) ** (1 / power));
    return { name: POWERS[power - 1], label: POWERS[power - 1], guide: true, color: "var(--soft)", width: 1.25, dash: "2 4", points: /** @type {Points} */ ([[first, least], [last, Math.min(y.high, least * (last / first) ** power)]]) };
  });
}

/** @param {number | null | undefined} value @param {What} what */
function amount(value, what) {
  if (value == null) return "–";
  if (what !== "seconds") return `${short(value)}${what === "bytes" ? "B" : ""}`;
  return value < 1e-3 ? `${Number((1e6 * value).toPrecision(3))} µs` : value < 1 ? `${Number((1e3 * value).toPrecision(3))} ms` : `${Number(value.toPrecision(3))} s`;
}

/** What was counted and measured for T tokens. @param {Line} line @param {What} what @param {number} tokens */
function amounts(line, what, tokens) {
  const counted = what === "seconds" ? null : countedPoints(line, what).find(([at]) => at === tokens)?.[1];
  return { counted: counted ?? null, measured: measuredPoints(line, what).find(([at]) => at === tokens)?.[1] ?? null };
}

/** @param {Line} line @param {What} what @param {number} tokens */
function readout(line, what, tokens) {
  const { counted, measured } = amounts(line, what, tokens);
  if (counted == null && measured == null) return "";
  const said = [counted == null ? "" : `${amount(counted, what)} counted`, measured == null ? "" : `${amount(measured, what)} measured`].filter(Boolean).join(", ");
  return html("span", { "data-model": line.model.name, style: `color:${colorOf({ model: line.model.name, color: hue(line.color) })}` }, `${line.model.name}${line.way === "reread" ? ", reread" : ""}: ${said}`);
}

/** @param {Line[]} lines @param {What} what @param {number} tokens */
function table(lines, what, tokens) {
  const head = ["model", "how", "FLOPs, counted", "they grow as", "serial steps", ...(what === "flops" ? [] : [`measured, T = ${tokens}`]), ...(what === "seconds" ? [] : [`counted, T = ${tokens}`])]
    .map((title) => html("th", { scope: "col" }, title));
  const rows = lines.map((line) => {
    const { model, way, counted, color } = line, found = amounts(line, what, tokens);
    return html("tr", {},
      html("th", { scope: "row" }, html("span", { class: `cost-key ${way}`, "data-model": model.name, style: `color:${colorOf({ model: model.name, color: hue(color) })}` }), model.name),
      html("td", {}, EXPLAINED[/** @type {keyof typeof EXPLAINED} */ (way)]),
      html("td", { class: "cost-terms" }, counted?.terms ? formula(counted.terms) : "–"),
      html("td", { class: "cost-power", "data-power": counted?.power, "data-line": `${model.name} ${way}` }, ...(counted ? ["T", html("sup", {}, fixed(counted.power, 2))] : ["–"])),
      html("td", { "data-serial": model.parallel && way === "learn" ? "1" : "T" }, model.parallel && way === "learn" ? "1: all tokens at once" : "T, one after another"),
      what === "flops" ? null : html("td", { "data-measured": found.measured }, found.measured == null && tokens > (model.context ?? tokens) ? "beyond its context" : amount(found.measured, what)),
      what === "seconds" ? null : html("td", { "data-counted": found.counted }, amount(found.counted, what)));
  });
  return html("table", { class: "cost-slopes" }, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

/** a · T + b · T² @param {number[]} terms */
const formula = (terms) => terms.map((term, place) => (term ? `${short(term)} · ${POWERS[place]}` : "")).filter(Boolean).join(" + ");
