// @ts-check
/** FLOPs, seconds and bytes against the length of a text, on log axes: lines are counted, dots are measured. */
import { choices, fixed, html, hue, short } from "chainrule/draw";
import { plot } from "chainrule/plot";

/** @typedef {{ tokens: number, seconds: number, bytes: number }} Cost */
/** @typedef {{ tokens: number[], flops: number[], state: number[], terms: number[] | null, power: number }} Counted */
/** @typedef {"flops" | "seconds" | "bytes"} What */
/** @typedef {{ name: string, kind: string, context: number | null, parallel: boolean, counted: Record<string, Counted>, ways: Record<string, Cost[]>, slopes: Record<string, Record<string, number | null>> }} Model */
/** @typedef {{ models: Model[], device: string }} Data */
/** @typedef {{ ask(options: Record<string, string>): Promise<Data | null> }} Live */
/** @typedef {{ model: Model, way: string, costs: Cost[], counted: Counted | undefined, color: number }} Line */

const WORK = { learn: "training on T tokens", write: "generating T tokens, one by one" };
const WAYS = { write: ["write", "reread"], learn: ["learn"] };
const EXPLAINED = { write: "each token read once, with the state or KV cache kept", reread: "the whole text read again for each token", learn: "forward and backward" };
const WHATS = { flops: "FLOPs, counted", seconds: "time", bytes: "memory" };
const UNITS = { flops: " FLOPs", seconds: "s", bytes: "B" };
const POWERS = ["T", "T²", "T³"];
const HUES = 6;
const TICKS = [1, 4, 16, 64, 256, 1024, 4096, 16384];

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  let now = data;
  const chart = html("div", { class: "cost-chart picture", role: "img", "aria-label": "cost against length, both on log axes" });
  const slopes = html("div", { class: "scroll" });
  const work = () => /** @type {keyof typeof WORK} */ (state.get("of", "learn") in WORK ? state.get("of", "learn") : "learn");
  const what = () => /** @type {What} */ (state.get("what", "flops") in WHATS ? state.get("what", "flops") : "flops");
  const draw = () => {
    const lines = linesOf(now.models, work(), what());
    slopes.replaceChildren(table(lines, what()));
    return plot(chart, [...lines.flatMap((line) => traces(line, what())), ...guides(lines, what())], layout(what(), work()));
  };
  const pick = (/** @type {string} */ name) => (/** @type {string} */ value) => { state.set(name, value); draw(); };
  const controls = html("div", { class: "choices" }, choices("cost of", WORK, work(), pick("of")), choices("as", WHATS, what(), pick("what")));
  if (live) controls.append(again(live, (more) => { now = more; draw(); }));
  const note = html("p", { class: "note" }, "Lines are counted: FLOPs by the weights and keys that a token is multiplied by, exact at any length, beyond a model's context too; and the bytes of the state. ",
    `Dots are measured on ${data.device}: the fastest of several repeats, one text at a time, and the peak memory of tensors beyond the model itself. `,
    "In the chart of time a line is the counted FLOPs at the speed of the longest text: dots above it are the fixed cost of a step. Serial steps wait for one another, whatever the machine. Dotted: T and T².");
  element.append(controls, chart, slopes, note);
  return draw().then(() => (/** @type {Data} */ more) => { now = more; draw(); });
}

/** @param {Live} live @param {(data: Data) => void} show */
function again(live, show) {
  const button = /** @type {HTMLButtonElement} */ (html("button", { type: "button", click: async () => {
    button.disabled = true;
    const more = await live.ask({ again: "yes" });
    button.disabled = false;
    if (more) show(more);
  } }, "measure again"));
  return button;
}

/** @param {Model[]} models @param {keyof typeof WAYS} work @param {What} what @returns {Line[]} */
const linesOf = (models, work, what) => models.flatMap((model, place) => WAYS[work].filter((way) => (what === "flops" ? model.counted[way] : model.ways[way]))
  .map((way) => ({ model, way, costs: model.ways[way] ?? [], counted: model.counted[way], color: place % HUES })));

/** The counted line and the measured dots. @param {Line} line @param {What} what */
function traces(line, what) {
  const { model, way, costs, color } = line, counted = countedLine(line, what);
  const common = { type: "scatter", name: `${model.name}, ${way}`,
    hovertemplate: `%{x} tokens: %{y:.3s}${UNITS[what]}<extra>${model.name.replaceAll("&", "&amp;").replaceAll("<", "&lt;")}, ${way}</extra>` };
  const drawn = { color: hue(color), width: 2.5, dash: way === "reread" ? "dash" : "solid" };
  const found = [];
  if (counted) found.push({ ...common, mode: "lines", x: counted.x, y: counted.y, line: drawn });
  if (what !== "flops") found.push({ ...common, mode: counted ? "markers" : "lines+markers", x: costs.map((cost) => cost.tokens), y: costs.map((cost) => cost[what] || null),
    line: drawn, marker: { size: 8, color: hue(color), symbol: way === "reread" ? "circle-open" : "circle" } });
  return found;
}

/** FLOPs; or seconds at the speed of the longest text measured; or the bytes of the state. @param {Line} line @param {What} what */
function countedLine({ way, costs, counted }, what) {
  if (!counted || (what === "bytes" && way !== "write")) return null;
  const last = costs.at(-1);
  if (what === "flops") return { x: counted.tokens, y: counted.flops };
  const kept = counted.tokens.map((tokens, place) => ({ tokens, place })).filter(({ tokens }) => last && tokens <= 2 * last.tokens);
  if (what === "bytes") return { x: kept.map(({ tokens }) => tokens), y: kept.map(({ place }) => counted.state[place]) };
  if (!last) return null;
  const speed = flopsAt(counted, last.tokens) / last.seconds;
  return { x: kept.map(({ tokens }) => tokens), y: kept.map(({ place }) => counted.flops[place] / speed) };
}

/** By the polynomial, else between the two lengths around it, on log axes. @param {Counted} counted @param {number} tokens */
function flopsAt({ tokens: lengths, flops, terms }, tokens) {
  if (terms) return terms.reduce((sum, term, place) => sum + term * tokens ** (place + 1), 0);
  const after = Math.max(1, lengths.findIndex((length) => length >= tokens)), share = Math.log(tokens / lengths[after - 1]) / Math.log(lengths[after] / lengths[after - 1]);
  return flops[after - 1] * (flops[after] / flops[after - 1]) ** share;
}

/** T and T², from the cheapest first point on. @param {Line[]} lines @param {What} what */
function guides(lines, what) {
  const every = lines.flatMap((line) => (what === "flops" ? (line.counted?.tokens ?? []).map((tokens, place) => ({ tokens, value: line.counted?.flops[place] ?? 0 }))
    : line.costs.map((cost) => ({ tokens: cost.tokens, value: cost[what] }))));
  const [low, high] = [Math.min(...every.map((cost) => cost.tokens)), Math.max(...every.map((cost) => cost.tokens))];
  const least = Math.min(...every.map((cost) => cost.value).filter((value) => value > 0));
  if (!(high > low) || !Number.isFinite(least)) return [];
  return [1, 2].map((power) => ({ type: "scatter", mode: "lines+text", x: [low, high], y: [least, least * (high / low) ** power], hoverinfo: "skip", text: ["", POWERS[power - 1]],
    textposition: "middle right", cliponaxis: false, textfont: { color: "var(--soft)" }, line: { color: "var(--soft)", width: 1.25, dash: "dot" } }));
}

/** @param {What} what @param {string} work */
const layout = (what, work) => ({
  showlegend: false, hovermode: "closest", margin: { r: 34 },
  xaxis: { type: "log", title: { text: work === "learn" ? "T (tokens of a text)" : "T (tokens)" }, tickvals: TICKS, ticktext: TICKS.map(String) },
  yaxis: { type: "log", title: { text: what === "flops" ? "FLOPs" : what }, tickformat: what === "seconds" ? "~g" : "~s" },
});

/** @param {Line[]} lines @param {What} what */
function table(lines, what) {
  const grows = what === "flops" ? "FLOPs" : `${WHATS[what]}, by the dots,`;
  const head = ["model", "", "FLOPs, counted", `${grows} grows as`.replace("FLOPs grows", "FLOPs grow"), "serial steps", "at the longest text"].map((title) => html("th", { scope: "col" }, title));
  const rows = lines.map(({ model, way, costs, counted, color }) => {
    const power = what === "flops" ? counted?.power ?? null : model.slopes[way][what];
    return html("tr", {},
      html("th", { scope: "row" }, html("span", { class: `cost-key ${way}`, style: `color:${hue(color)}` }), model.name),
      html("td", {}, EXPLAINED[/** @type {keyof typeof EXPLAINED} */ (way)]),
      html("td", { class: "cost-terms" }, counted?.terms ? formula(counted.terms) : "–"),
      html("td", { class: "cost-power", "data-power": power, "data-line": `${model.name} ${way}` }, ...(power == null ? ["–"] : ["T", html("sup", {}, fixed(power, 2))])),
      html("td", { "data-serial": model.parallel && way === "learn" ? "1" : "T" }, model.parallel && way === "learn" ? "1: all tokens at once" : "T, one after another"),
      html("td", { "data-cost": what === "flops" ? counted?.flops.at(-1) : costs.at(-1)?.[what], "data-tokens": costs.at(-1)?.tokens }, longest(costs.at(-1), counted, what)));
  });
  return html("table", { class: "cost-slopes" }, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

/** a · T + b · T² @param {number[]} terms */
const formula = (terms) => terms.map((term, place) => (term ? `${short(term)} · ${POWERS[place]}` : "")).filter(Boolean).join(" + ");

/** @param {Cost | undefined} cost @param {Counted | undefined} counted @param {What} what */
function longest(cost, counted, what) {
  if (what === "flops") return counted ? `${short(counted.flops.at(-1) ?? 0)} for ${counted.tokens.at(-1)}` : "–";
  if (!cost) return "–";
  const amount = what === "bytes" ? `${short(cost.bytes)}B` : cost.seconds < 1 ? `${(1000 * cost.seconds).toPrecision(3)} ms` : `${cost.seconds.toPrecision(3)} s`;
  return `${amount} for ${cost.tokens}`;
}
