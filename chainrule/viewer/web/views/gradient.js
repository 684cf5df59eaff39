// @ts-check
/** |∂L_T/∂h_t| against t, on a log axis: each model before training (dashed) and after, and the slope of each line. */
import { fixed, html, hue } from "chainrule/draw";
import { plot } from "chainrule/plot";

/** @typedef {{ lengths: (number | null)[], factor: number | null }} Line from the first token to the last; the factor of each step back */
/** @typedef {{ name: string, before: Line, after: Line }} Layer */
/** @typedef {{ name: string, kind: string, tokens: string[], target: string, left_out: number, layers: Layer[] }} Model */
/** @typedef {{ model: Model, when: "before" | "after", line: Line, color: number }} Drawn */

const WHEN = { before: "before training", after: "after training" };
const HUES = 6;
const PLAIN = { x: "x, the embedding" };

/** @param {Element} element @param {{ models: Model[] }} data @param {import("chainrule/state").State} state */
export function render(element, { models }, state) {
  const names = [...new Set(models.flatMap((model) => model.layers.map((layer) => layer.name)))].sort((one, other) => rank(one) - rank(other));
  const most = Math.max(...models.map((model) => model.tokens.length));
  const chart = html("div", { class: "gradient-chart picture", role: "img", "aria-label": "length of the gradient against time, on a log axis" });
  const slopes = html("div", { class: "scroll" });
  const readout = html("output", { class: "readout", "aria-live": "polite" });
  const layer = () => (names.includes(state.get("of", "")) ? state.get("of", "") : names.includes("h1") ? "h1" : names[0]);
  const back = () => Math.min(most - 1, Math.max(0, Number(state.get("back", "0")) || 0));
  const draw = () => {
    const lines = drawn(models, layer());
    slopes.replaceChildren(table(lines, layer()));
    readout.replaceChildren(html("b", {}, back() ? `t = T − ${back()}` : "t = T"), ...lines.map((one) => readoutOf(one, back())));
    return plot(chart, lines.map(trace), layout(layer(), back()));
  };
  const pick = html("label", {}, "gradient of ", html("select", { "data-which": "of", change: (event) => { state.set("of", /** @type {HTMLSelectElement} */ (event.target).value); draw(); } },
    ...names.map((name) => html("option", { value: name, selected: name === layer() }, spoken(name)))));
  const slider = html("label", { class: "gradient-time" }, "t ", html("input", { type: "range", min: 1 - most, max: 0, value: -back(), "aria-label": "t − T, tokens before the last",
    input: (event) => { state.set("back", String(-Number(/** @type {HTMLInputElement} */ (event.target).value))); draw(); } }));
  element.append(html("div", { class: "choices" }, pick, slider), readout, formula(), chart, slopes, ...models.map(about));
  return draw().then(() => undefined);
}

/** x first, then h1, h2, … @param {string} name */
const rank = (name) => (name === "x" ? 0 : Number(name.slice(1)));

/** @param {string} name */
const spoken = (name) => PLAIN[/** @type {"x"} */ (name)] ?? `h, layer ${name.slice(1)}`;

/** The lines of all models that have such a layer. @param {Model[]} models @param {string} name @returns {Drawn[]} */
const drawn = (models, name) => models.flatMap((model, place) => model.layers.filter((layer) => layer.name === name)
  .flatMap((layer) => /** @type {const} */ (["before", "after"]).map((when) => ({ model, when, line: layer[when], color: place % HUES }))));

/** 0 has no place on a log axis. @param {Drawn} one */
const trace = ({ model, when, line, color }) => ({
  type: "scatter", mode: "lines", name: `${model.name}, ${when}`, x: line.lengths.map((_, t) => t + 1 - line.lengths.length), y: line.lengths.map((length) => length || null),
  line: { color: hue(color), width: when === "after" ? 2.5 : 1.75, dash: when === "after" ? "solid" : "dash" }, text: model.tokens,
  hovertemplate: `%{y:.3e} at “%{text}”<extra>${escaped(model.name)}, ${when}</extra>`,
});

/** Plotly reads some tags in names. @param {string} name */
const escaped = (name) => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** @param {string} name @param {number} back */
const layout = (name, back) => ({
  showlegend: false, hovermode: "closest",
  xaxis: { title: { text: "t − T (tokens)" } },
  yaxis: { type: "log", title: { text: `|∂L<sub>T</sub>/∂${name === "x" ? "x" : "h"}<sub>t</sub>|` }, exponentformat: "power" },
  shapes: [{ type: "line", x0: -back, x1: -back, y0: 0, y1: 1, yref: "paper", line: { color: "var(--soft)", width: 1, dash: "dot" } }],
});

/** @param {Drawn} one @param {number} back */
function readoutOf({ model, when, line, color }, back) {
  const length = line.lengths.at(-1 - back);
  if (back >= line.lengths.length) return "";
  return html("span", { "data-length": length, "data-line": `${model.name} ${when}`, style: `color:${hue(color)};margin-right:1em` }, `${model.name} ${when}: ${scientific(length)}`);
}

/** @param {number | null | undefined} value */
const scientific = (value) => (value == null ? "not finite" : value === 0 ? "0" : value.toExponential(2));

/** @param {Drawn[]} lines @param {string} name */
function table(lines, name) {
  const head = ["model", "", "with each step back", "at T", "at the first token"].map((title) => html("th", { scope: "col" }, title));
  const rows = lines.map(({ model, when, line, color }) => html("tr", {},
    html("th", { scope: "row" }, html("span", { class: `gradient-key ${when}`, style: `color:${hue(color)}` }), model.name), html("td", {}, WHEN[when]),
    html("td", { "data-factor": line.factor, "data-line": `${model.name} ${when}` }, line.factor == null ? none(line) : `× ${fixed(line.factor, 4)}`),
    html("td", { title: line.lengths.at(-1) }, scientific(line.lengths.at(-1))), html("td", { title: line.lengths[0] }, scientific(line.lengths[0]))));
  return html("table", { class: "gradient-slopes", "aria-label": `slopes of the gradient of ${spoken(name)}` }, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

/** Why a line has no slope. @param {Line} line */
const none = (line) => (line.lengths.every((length) => length === 0) ? "0: its output layer starts at zero" : "no gradient before T");

/** As in the lectures: every step back is one more Wᵀ. */
function formula() {
  const sub = (/** @type {string} */ text) => html("sub", {}, text);
  const step = () => html("span", {}, "W", html("sup", {}, "T"), " diag σ′(a", sub("k"), ")");
  const lost = (/** @type {string} */ t) => html("span", {}, "∂L", sub("T"), "/∂h", sub(t));
  return html("div", {}, html("p", { class: "gradient-formula" }, lost("t"), " = ", html("span", {}, "∏", sub("k = t+1 … T")), " ", step(), " · ", lost("T")),
    html("p", { class: "note" }, "in an Elman network: each token further back is one more product with W", html("sup", {}, "T"), ", so the gradient vanishes or explodes by about the same factor at each step. ",
      "The cell of an LSTM scales it by the forget gate, and attention reaches any token in one step."));
}

/** The tokens that were read, and the target of the loss. @param {Model} model */
function about(model) {
  const left = model.left_out ? ` The first ${model.left_out.toLocaleString("en")} tokens of the text are left out.` : "";
  return html("p", { class: "note" }, `${model.name} (${model.kind}) read ${model.tokens.length.toLocaleString("en")} tokens; L is its loss at the next token, “${model.target}”.${left}`);
}
