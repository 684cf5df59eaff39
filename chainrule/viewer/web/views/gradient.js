// @ts-check
/** |∂L_T/∂h_t| against t, on a log axis: each model before training (dashed) and after, and the slope of each line. */
import { fixed, html, hue, scrolling } from "chainrule/draw";
import { range, scientific } from "chainrule/axes";
import { colorOf, makeChart } from "chainrule/chart";

/** @typedef {{ lengths: (number | null)[], factor: number | null }} Line from the first token to the last; the factor of each step back */
/** @typedef {{ name: string, before: Line, after: Line }} Layer */
/** @typedef {{ name: string, kind: string, tokens: string[], target: string, left_out: number, layers: Layer[] }} Model */
/** @typedef {{ model: Model, when: "before" | "after", line: Line, color: number }} Drawn */

const WHEN = { before: "before training", after: "after training" };
const HUES = 6;
const LETTERS = { x: "x, the embedding", h: "h", c: "c, the cell" };
const ORDER = "xhc";

/** @param {Element} element @param {{ models: Model[] }} data @param {import("chainrule/state").State} state */
export function render(element, { models }, state) {
  const names = [...new Set(models.flatMap((model) => model.layers.map((layer) => layer.name)))].sort((one, other) => rank(one) - rank(other));
  const most = Math.max(...models.map((model) => model.tokens.length));
  const chart = makeChart((x) => { state.set("back", String(-x)); slide.value = String(x); draw(); });
  const slopes = scrolling("the factor of each step back");
  const said = html("p", { class: "gradient-said" });
  const layer = () => (names.includes(state.get("of", "")) ? state.get("of", "") : names.includes("h1") ? "h1" : names[0]);
  const back = () => Math.min(most - 1, Math.max(0, Number(state.get("back", "0")) || 0));
  const draw = () => {
    const lines = drawn(models, layer());
    slopes.replaceChildren(table(lines, layer()));
    said.textContent = sentence(models, layer());
    chart.show({ ...picture(lines, layer(), most), at: 0 - back(), say: () => [html("b", {}, back() ? `t = T − ${back()}` : "t = T"), ...lines.map((one) => readoutOf(one, back()))] });
  };
  const pick = html("label", {}, "gradient of ", html("select", { "data-which": "of", change: (event) => { state.set("of", /** @type {HTMLSelectElement} */ (event.target).value); draw(); } },
    ...names.map((name) => html("option", { value: name, selected: name === layer() }, spoken(name)))));
  const slide = /** @type {HTMLInputElement} */ (html("input", { type: "range", min: 1 - most, max: 0, value: -back(), "aria-label": "t − T, tokens before the last",
    input: () => { state.set("back", String(-Number(slide.value))); draw(); } }));
  chart.element.classList.add("picture");
  element.append(html("div", { class: "choices" }, pick, html("label", { class: "gradient-time" }, "t ", slide)), chart.element, said, slopes, formula(), ...models.map(about));
  draw();
}

/** x first, then h1, h2, … and c1, c2, … @param {string} name */
const rank = (name) => 100 * ORDER.indexOf(name[0]) + Number(name.slice(1));

/** @param {string} name */
const spoken = (name) => `${LETTERS[/** @type {keyof typeof LETTERS} */ (name[0])]}${name === "x" ? "" : `${name[0] === "c" ? " of" : ","} layer ${name.slice(1)}`}`;

/** What the slopes say, in the numbers of these models. @param {Model[]} models @param {string} name */
function sentence(models, name) {
  const factors = (/** @type {string} */ which) => models.flatMap((model) => model.layers.filter((layer) => layer.name === which && layer.after.factor != null)
    .map((layer) => `${fixed(layer.after.factor, 2)} in ${model.name}`));
  const here = factors(name), cells = name[0] === "h" ? factors(`c${name.slice(1)}`) : [];
  if (!here.length) return "";
  return `After training, each step back multiplies the gradient of ${spoken(name)}, by ${joined(here)}.${cells.length ? ` For the cell, ∂L/∂c, the factor is ${joined(cells)}.` : ""}`;
}

/** @param {string[]} parts */
const joined = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);

/** The lines of all models that have such a layer. @param {Model[]} models @param {string} name @returns {Drawn[]} */
const drawn = (models, name) => models.flatMap((model, place) => model.layers.filter((layer) => layer.name === name)
  .flatMap((layer) => /** @type {const} */ (["before", "after"]).map((when) => ({ model, when, line: layer[when], color: place % HUES }))));

/** @param {Drawn[]} lines @param {string} name @param {number} most tokens @returns {import("chainrule/chart").Picture} */
function picture(lines, name, most) {
  const lengths = lines.flatMap(({ line }) => line.lengths);
  return {
    title: `Gradient of the loss at the last token with respect to ${spoken(name)}`,
    x: { title: "t − T (tokens)", low: Math.min(-1, 1 - most), high: 0, write: (value) => String(value).replace("-", "−") },
    labels: "start",
    y: { title: `|∂L/∂${name[0]}|`, log: true, write: scientific, ...range(lengths, true) },
    lines: lines.map(({ model, when, line, color }) => ({
      name: `${model.name}, ${when}`, model: model.name, label: when === "after" ? model.name : `${model.name}, before`, color: hue(color), width: when === "after" ? 2.5 : 1.75, dash: when === "after" ? undefined : "6 5",
      points: line.lengths.map((length, t) => /** @type {[number, number | null]} */ ([t + 1 - line.lengths.length, length])),
    })),
  };
}

/** @param {Drawn} one @param {number} back */
function readoutOf({ model, when, line, color }, back) {
  const length = line.lengths.at(-1 - back);
  if (back >= line.lengths.length) return "";
  return html("span", { "data-length": length, "data-line": `${model.name} ${when}`, "data-model": model.name, style: `color:${colorOf({ model: model.name, color: hue(color) })}` }, `${model.name} ${when}: ${written(length)}`);
}

/** @param {number | null | undefined} value */
const written = (value) => (value == null ? "not finite" : value === 0 ? "0" : value.toExponential(2).replaceAll("-", "−"));

/** @param {Drawn[]} lines @param {string} name */
function table(lines, name) {
  const head = ["model", "when", "with each step back", "at T", "at the first token"].map((title) => html("th", { scope: "col" }, title));
  const rows = lines.map(({ model, when, line, color }) => html("tr", {},
    html("th", { scope: "row" }, html("span", { class: `gradient-key ${when}`, "data-model": model.name, style: `color:${colorOf({ model: model.name, color: hue(color) })}` }), model.name), html("td", {}, WHEN[when]),
    html("td", { "data-factor": line.factor, "data-line": `${model.name} ${when}` }, line.factor == null ? none(line) : `× ${fixed(line.factor, 4)}`),
    html("td", { title: line.lengths.at(-1) }, written(line.lengths.at(-1))), html("td", { title: line.lengths[0] }, written(line.lengths[0]))));
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
      "The cell of an LSTM is multiplied by its forget gate, and attention has a path of one step to any token: the numbers above say what these models have learned."));
}

/** The tokens that were read, and the target of the loss. @param {Model} model */
function about(model) {
  const left = model.left_out ? ` The first ${model.left_out.toLocaleString("en")} tokens of the text are left out.` : "";
  return html("p", { class: "note" }, `${model.name} (${model.kind}) read ${model.tokens.length.toLocaleString("en")} tokens; L is its loss at the next token, “${model.target}”.${left}`);
}
