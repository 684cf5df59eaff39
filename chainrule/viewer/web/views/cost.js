// @ts-check
/** Seconds and bytes against the length of a text, both on log axes, with the power of T that each line follows. */
import { choices, fixed, html, hue, short } from "chainrule/draw";
import { plot } from "chainrule/plot";

/** @typedef {{ tokens: number, seconds: number, bytes: number }} Cost */
/** @typedef {"seconds" | "bytes"} What */
/** @typedef {{ name: string, kind: string, context: number | null, ways: Record<string, Cost[]>, slopes: Record<string, Record<What, number | null>> }} Model */
/** @typedef {{ models: Model[], device: string }} Data */
/** @typedef {{ ask(options: Record<string, string>): Promise<Data | null> }} Live */
/** @typedef {{ model: Model, way: string, costs: Cost[], power: number | null, color: number }} Line */

const WORK = { write: "generating T tokens, one by one", learn: "training on T tokens" };
const WAYS = { write: ["write", "reread"], learn: ["learn"] };
const EXPLAINED = { write: "each token read once, with the state or KV cache kept", reread: "the whole text read again for each token", learn: "forward and backward" };
const WHATS = { seconds: "time", bytes: "memory" };
const HUES = 6;

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  let now = data;
  const chart = html("div", { class: "cost-chart", role: "img", "aria-label": "cost against length, both on log axes" });
  const slopes = html("div", { class: "scroll" });
  const work = () => /** @type {keyof typeof WORK} */ (state.get("of", "write") in WORK ? state.get("of", "write") : "write");
  const what = () => /** @type {What} */ (state.get("what", "seconds") in WHATS ? state.get("what", "seconds") : "seconds");
  const draw = () => {
    const lines = linesOf(now.models, work(), what());
    slopes.replaceChildren(table(lines, what()));
    return plot(chart, [...lines.map((line) => trace(line, what())), ...guides(lines, what())], layout(what(), work()));
  };
  const pick = (/** @type {string} */ name) => (/** @type {string} */ value) => { state.set(name, value); draw(); };
  const controls = html("div", { class: "choices" }, choices("cost of", WORK, work(), pick("of")), choices("as", WHATS, what(), pick("what")));
  if (live) controls.append(again(live, (more) => { now = more; draw(); }));
  const note = html("p", { class: "note" }, `Measured on ${data.device}. Seconds are the fastest of several repeats, one text at a time; bytes are the peak memory of tensors beyond the model itself. `,
    "The power is fitted to the longer half of the lengths; short texts are dominated by the fixed cost of a step. Dotted: T and T².");
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
const linesOf = (models, work, what) => models.flatMap((model, place) => WAYS[work].filter((way) => model.ways[way])
  .map((way) => ({ model, way, costs: model.ways[way], power: model.slopes[way][what], color: place % HUES })));

/** @param {Line} line @param {What} what */
const trace = ({ model, way, costs, color }, what) => ({
  type: "scatter", mode: "lines+markers", name: `${model.name}, ${way}`, x: costs.map((cost) => cost.tokens), y: costs.map((cost) => cost[what] || null),
  line: { color: hue(color), width: 2.5, dash: way === "reread" ? "dash" : "solid" }, marker: { size: 7, color: hue(color) },
  hovertemplate: `%{x} tokens: ${what === "seconds" ? "%{y:.3s}s" : "%{y:.3s}B"}<extra>${model.name.replaceAll("&", "&amp;").replaceAll("<", "&lt;")}, ${way}</extra>`,
});

/** T and T², from the cheapest first point on. @param {Line[]} lines @param {What} what */
function guides(lines, what) {
  const every = lines.flatMap((line) => line.costs);
  const [low, high] = [Math.min(...every.map((cost) => cost.tokens)), Math.max(...every.map((cost) => cost.tokens))];
  const least = Math.min(...every.map((cost) => cost[what]).filter((value) => value > 0));
  if (!(high > low) || !Number.isFinite(least)) return [];
  return [1, 2].map((power) => ({ type: "scatter", mode: "lines+text", x: [low, high], y: [least, least * (high / low) ** power], hoverinfo: "skip", text: ["", power === 1 ? "T" : "T²"],
    textposition: "middle right", cliponaxis: false, textfont: { color: "var(--soft)" }, line: { color: "var(--soft)", width: 1.25, dash: "dot" } }));
}

/** @param {What} what @param {string} work */
const layout = (what, work) => ({
  showlegend: false, hovermode: "closest", margin: { r: 34 },
  xaxis: { type: "log", title: { text: work === "learn" ? "T (tokens of a text)" : "T (tokens)" }, tickvals: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] },
  yaxis: { type: "log", title: { text: what }, tickformat: what === "seconds" ? "~g" : "~s" },
});

/** @param {Line[]} lines @param {What} what */
function table(lines, what) {
  const head = ["model", "", `${WHATS[what]} grows as`, "at the longest text"].map((title) => html("th", { scope: "col" }, title));
  const rows = lines.map(({ model, way, costs, power, color }) => html("tr", {},
    html("th", { scope: "row" }, html("span", { class: `cost-key ${way}`, style: `color:${hue(color)}` }), model.name),
    html("td", {}, EXPLAINED[/** @type {keyof typeof EXPLAINED} */ (way)]),
    html("td", { class: "cost-power", "data-power": power, "data-line": `${model.name} ${way}` }, ...(power == null ? ["–"] : ["T", html("sup", {}, fixed(power, 2))])),
    html("td", { "data-cost": costs.at(-1)?.[what], "data-tokens": costs.at(-1)?.tokens }, longest(costs.at(-1), what))));
  return html("table", { class: "cost-slopes" }, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

/** @param {Cost | undefined} cost @param {What} what */
function longest(cost, what) {
  if (!cost) return "–";
  const amount = what === "bytes" ? `${short(cost.bytes)}B` : cost.seconds < 1 ? `${(1000 * cost.seconds).toPrecision(3)} ms` : `${cost.seconds.toPrecision(3)} s`;
  return `${amount} for ${cost.tokens}`;
}
