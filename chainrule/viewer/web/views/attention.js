// @ts-check
/** Every head of every layer as a small map, and the chosen one as lines between tokens and as a large map. */
import { choices, fixed, html } from "chainrule/draw";
import { makeHeat } from "chainrule/heat";
import { makeLines } from "chainrule/lines";
import { unpack } from "chainrule/arrays";
import { makeOverview } from "chainrule/overview";
import { Pin } from "chainrule/pin";
import { renew } from "chainrule/renew";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ shown: string[], written: number | null, words: [number, string][] }} Text */
/** @typedef {{ layer: number, head: number, weights: Packed }} Exact a square, or what is not above its diagonal */
/** @typedef {{ name: string, queries: string, keys: string, size: number, layers: number, heads: number, maps: Packed, exact: Exact[],
 *   qkv: boolean, scaled: boolean, compressed: number[], stride: number | null }} Part the numbers of compressed layers from 1 */
/** @typedef {{ part: string, layer: number, head: number }} Chosen layer and head from 1 */
/** @typedef {{ name: string, left_out: number, cut: number, continues: boolean, asked: { tokens: number, seed: number }, chosen: Chosen,
 *   texts: Record<string, Text>, parts: Part[], titles: Record<string, string>, scores: Scored[] }} Data */
/** @typedef {{ layer: number, head: number, name: string | null, scores: Record<string, number | null> }} Scored what a head attends to, by its definitions */
/** @typedef {import("chainrule/heat").Weights} Weights */
/** @typedef {import("chainrule/lines").Spot} Spot */
/** @typedef {{ ask(options: Record<string, string>): Promise<Data | null> }} Live */

const PARTS = { source: "source on source", text: "text on text", cross: "text on source" };
const LEAST = 0.05;    // weight of a line, at first

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  const controls = html("div", { class: "choices" });
  const readout = html("output", { class: "readout", "aria-live": "polite" });
  const formula = html("p", { class: "note attention-formula" });
  const overview = makeOverview((layer, head) => choose({ layer, head }));
  const pin = new Pin();
  const lines = makeLines((spot) => (spot ? select(spot, null) : rest()), pin);
  const heat = makeHeat({ pin, title: "weights of the chosen head; arrow keys go from cell to cell", pick: (cell) => (cell ? select({ side: "rows", place: cell.row }, cell.column) : rest()) });
  const why = html("p", { class: "note" });
  const closer = html("div", { class: "attention-head picture" }, lines.element, heat.element);
  const scores = html("details", { class: "attention-scores", hidden: true });
  /** @type {Weights} */
  let weights = { rows: [], columns: [], weight: () => 0 };
  let latest = 0;
  /** @type {{ spot: Spot, column: number | null, size: number } | null} */
  let selected = null;

  const select = (/** @type {Spot} */ spot, /** @type {number | null} */ column) => {
    selected = { spot, column, size: weights.rows.length };
    lines.mark(spot);
    heat.mark(spot.side === "rows" ? { row: spot.place, column: column ?? -1 } : { row: -1, column: -1 });
    readout.replaceChildren(...summary(weights, spot, column), pin.held ? html("small", { class: "attention-pinned" }, " pinned; Escape frees it") : "");
  };
  const rest = () => {
    selected = null;
    lines.mark(null);
    heat.mark({ row: -1, column: -1 });
    readout.replaceChildren(html("b", {}, named(now(), data)), "Point at a token or a cell, or focus them and use the arrow keys. A click or a tap pins it.");
  };
  /** What is pinned stays, in another head of the same tokens. */
  const restore = () => {
    if (pin.held && selected?.size === weights.rows.length) return select(selected.spot, selected.column);
    pin.free();
    rest();
  };
  const choose = async (/** @type {Partial<Chosen>} */ change, again = false) => {
    const next = { ...now(), ...change }, turn = ++latest;
    for (const [name, value] of Object.entries(next)) state.set(name, String(value));
    if (live && (again || !exact(data, next))) {
      drawAll();
      const asked = { tokens: state.get("tokens", String(data.asked.tokens)), seed: state.get("seed", String(data.asked.seed)) };
      const more = await live.ask({ part: next.part, layer: String(next.layer), head: String(next.head), ...asked });
      if (turn !== latest) return;
      data = more ?? data;
    }
    draw();
  };
  const now = () => chosen(data, state);
  const drawHead = () => {
    const part = partOf(data, now()), found = exact(data, now());
    lines.element.hidden = !found;
    why.replaceChildren(...(found ? [] : ["This page has only the small map of this head, not its weights. A frame marks those that it has; open it with ", html("code", {}, "chainrule look RUN"), " to see any."]));
    weights = found ? whole(data, part, found) : coarse(part, now());
    if (found && state.get("words", "") === "whole") weights = merged(weights, data.texts[part.queries], data.texts[part.keys]);
    lines.show(weights, Number(state.get("least", String(LEAST))));
    heat.show(weights);
    restore();
  };
  const drawAll = () => {
    const part = partOf(data, now());
    renew(controls, ...pickers(data, state, live, now(), choose, drawHead));
    formula.replaceChildren(...explained(data, part));
    const names = new Map(part.name === "text" ? data.scores.map(({ layer, head, name }) => [`${layer}.${head}`, name ?? ""]) : []);
    overview.show(unpack(part.maps), live ? null : new Set(part.exact.map(({ layer, head }) => `${layer}.${head}`)), now(), names);
    scores.hidden = part.name !== "text" || !data.scores.length;
    scores.replaceChildren(html("summary", {}, "what each head attends to"), scoreTable(data, now(), choose));
  };
  const draw = () => { drawAll(); drawHead(); };
  element.append(controls, readout, overview.element, why, formula, closer, scores);
  element.addEventListener("keydown", (event) => { if (/** @type {KeyboardEvent} */ (event).key === "Escape") { pin.free(); rest(); } });
  draw();
  if (live && !exact(data, now())) choose({});
  return (/** @type {Data} */ other) => { data = other; latest++; pin.free(); draw(); };
}

/** The chosen head, by the address; else as the server sent it. @param {Data} data @param {import("chainrule/state").State} state @returns {Chosen} */
function chosen(data, state) {
  const part = data.parts.find(({ name }) => name === state.get("part", data.chosen.part)) ?? data.parts[0];
  const within = (/** @type {"layer" | "head"} */ name, /** @type {number} */ most) =>
    Math.min(most, Math.max(1, Math.floor(Number(state.get(name, String(data.chosen[name]))) || 1)));
  return { part: part.name, layer: within("layer", part.layers), head: within("head", part.heads) };
}

/** @param {Data} data @param {Chosen} chosen */
const partOf = (data, { part }) => data.parts.find(({ name }) => name === part) ?? data.parts[0];

/** @param {Data} data @param {Chosen} chosen */
const exact = (data, chosen) => partOf(data, chosen).exact.find(({ layer, head }) => layer === chosen.layer && head === chosen.head);

/** With its name, if it has one. @param {Chosen} chosen @param {Data} data */
function named({ part, layer, head }, data) {
  const name = part === "text" ? data.scores.find((one) => one.layer === layer && one.head === head)?.name : null;
  return `layer ${layer}, head ${head}${name ? `: ${name}` : ""}`;
}

/** Mean weights from tokens to others, by the definition of each score. @param {Data} data @param {Chosen} now @param {(change: Partial<Chosen>) => void} choose */
function scoreTable(data, now, choose) {
  const names = Object.keys(data.titles);
  const head = html("tr", {}, ...["layer", "head", ...names.map((name) => data.titles[name]), "name"].map((title) => html("th", { scope: "col" }, title)));
  const rows = data.scores.map((one) => html("tr", { class: one.layer === now.layer && one.head === now.head ? "chosen" : "", "data-head": `${one.layer}.${one.head}` },
    html("td", {}, one.layer), html("td", {}, html("button", { type: "button", click: () => choose({ part: "text", layer: one.layer, head: one.head }) }, one.head)),
    ...names.map((name) => html("td", { title: one.scores[name] }, fixed(one.scores[name], 3))), html("td", {}, one.name ?? "")));
  return html("div", { class: "scroll" }, html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
}

/** @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live @param {Chosen} now
 * @param {(change: Partial<Chosen>, again?: boolean) => void} choose @param {() => void} drawHead */
function pickers(data, state, live, now, choose, drawHead) {
  const part = partOf(data, now), names = Object.fromEntries(data.parts.map(({ name }) => [name, PARTS[/** @type {keyof typeof PARTS} */ (name)]]));
  const pieces = [part.queries, part.keys].some((name) => data.texts[name].words.length < data.texts[name].shown.length);
  const numbers = (/** @type {number} */ most) => Array.from({ length: most }, (_, place) => place + 1);
  const picker = (/** @type {"layer" | "head"} */ name, /** @type {number} */ most) => html("label", {}, `${name} `, html("select", { "data-which": name,
    change: (event) => choose({ [name]: Number(/** @type {HTMLSelectElement} */ (event.target).value) }) },
    ...numbers(most).map((number) => html("option", { value: number, selected: number === now[name] }, number))));
  const ask = (/** @type {"tokens" | "seed"} */ name, /** @type {string} */ label, unit = "") => html("label", {}, `${label} `, html("input", { class: "attention-number", type: "number", min: 0,
    max: 512, value: data.asked[name], "data-which": name, change: (event) => { state.set(name, /** @type {HTMLInputElement} */ (event.target).value); choose({}, true); } }), unit);
  return [
    data.parts.length > 1 ? choices("shown", names, now.part, (name) => choose({ part: name })) : null,
    picker("layer", part.layers), picker("head", part.heads),
    slider(state.get("least", String(LEAST)), (value) => { state.set("least", value); drawHead(); }),
    pieces ? html("label", { class: "choice" }, html("input", { type: "checkbox", checked: state.get("words", "") === "whole", "data-which": "words",
      change: (event) => { state.set("words", /** @type {HTMLInputElement} */ (event.target).checked ? "whole" : ""); drawHead(); } }), "merge pieces into words") : null,
    ...(live && data.continues ? [ask("tokens", "continue for", " tokens"), ask("seed", "seed")] : []),
  ].filter((made) => made != null);
}

/** The smallest weight that is drawn as a line. @param {string} value @param {(value: string) => void} onchange */
function slider(value, onchange) {
  const shown = html("output", {}, fixed(Number(value), 2));
  return html("label", { class: "attention-least" }, "hide weights below ", html("input", { type: "range", min: 0, max: 0.5, step: 0.01, value, "aria-label": "smallest weight that is drawn",
    input: (event) => {
      const now = /** @type {HTMLInputElement} */ (event.target).value;
      shown.textContent = fixed(Number(now), 2);
      onchange(now);
    } }), shown);
}

/** What the weights of a compressed layer mean. @param {Part} part */
function compressed({ compressed: layers, stride }) {
  if (!layers.length) return [];
  return [` In layer${layers.length > 1 ? "s" : ""} ${layers.join(", ")} a key stands for ${stride} tokens: its weight is drawn in equal parts on them.`];
}

/** The formula, and the values of its letters here. @param {Data} data @param {Part} part */
function explained(data, part) {
  const { shown, written } = data.texts[part.queries];
  const mask = part.name === "text" && part.exact.some(({ weights }) => weights.shape.length === 1)
    ? ["; ", html("i", {}, "M"), " is 0 on and below the diagonal and −∞ above it (grey), so that no token attends to a later one"] : [];
  const own = written == null || written >= shown.length ? [] : [" ", html("span", { class: "attention-own" }, "Green"), " tokens were generated by the model."];
  const cut = data.cut ? ` The last ${data.cut.toLocaleString("en")} tokens of the source are left out.` : "";
  const root = () => [html("i", {}, "d"), html("sub", {}, "k")];
  const scale = part.scaled ? [" / √", ...root()] : [], here = part.scaled ? [". Here ", ...root(), ` = ${part.size}`] : [];
  return [
    html("i", {}, "X"), "′ = softmax(", html("i", {}, part.qkv ? "QK" : "XX"), html("sup", {}, "T"), ...scale, " + ", html("i", {}, "M"), ") ", html("i", {}, part.qkv ? "V" : "X"),
    ". The softmax is drawn, ", html("i", {}, "a"), html("sub", {}, "t,j"), ": how much token ", html("i", {}, "t"), ", at the left, attends to token ", html("i", {}, "j"),
    ...here, ...mask, ". Colour: square root of the weight.", ...compressed(part), ...own, cut,
  ];
}

/** @param {Text} text @returns {import("chainrule/heat").Label[]} */
const labels = ({ shown, written }) => shown.map((text, place) => ({ text, own: written != null && place >= written }));

/** The weights of a head. @param {Data} data @param {Part} part @param {Exact} found @returns {Weights} */
function whole(data, part, found) {
  const { shape, values } = unpack(found.weights);
  const [rows, columns] = [labels(data.texts[part.queries]), labels(data.texts[part.keys])];
  const weight = shape.length === 1 ? (/** @type {number} */ row, /** @type {number} */ column) => (column > row ? NaN : values[(row * (row + 1)) / 2 + column])
    : (/** @type {number} */ row, /** @type {number} */ column) => values[row * shape[1] + column];
  return { rows, columns, weight };
}

/** The weights of a small map. @param {Part} part @param {Chosen} chosen @returns {Weights} */
function coarse(part, { layer, head }) {
  const { shape: [, heads, height, width], values } = unpack(part.maps);
  const first = ((layer - 1) * heads + head - 1) * height * width;
  const none = (/** @type {number} */ size) => Array.from({ length: size }, () => ({ text: "" }));
  return { rows: none(height), columns: none(width), weight: (row, column) => (values[first + row * width + column] / 255) ** 2 };
}

/** Words instead of their pieces: a query is the mean of its pieces, a key their sum.
 * @param {Weights} weights @param {Text} queries @param {Text} keys @returns {Weights} */
export function merged({ rows, columns, weight }, queries, keys) {
  const [up, along] = [ends(queries), ends(keys)];
  const sums = new Float64Array(up.length * along.length);
  const word = (/** @type {number[]} */ stops) => stops.flatMap((stop, place) => Array.from({ length: stop - (stops[place - 1] ?? 0) }, () => place));
  const [above, across] = [word(up), word(along)];
  for (let row = 0; row < rows.length; row++)
    for (let column = 0; column < columns.length; column++) sums[above[row] * along.length + across[column]] += weight(row, column) || 0;
  const blocked = (/** @type {number} */ row, /** @type {number} */ column) => Number.isNaN(weight(up[row] - 1, column ? along[column - 1] : 0));
  const label = (/** @type {Text} */ text, /** @type {import("chainrule/heat").Label[]} */ of, /** @type {number[]} */ stops) =>
    text.words.map(([, shown], place) => ({ text: shown, own: of[stops[place] - 1]?.own }));
  return {
    rows: label(queries, rows, up), columns: label(keys, columns, along),
    weight: (row, column) => (blocked(row, column) ? NaN : sums[row * along.length + column] / queries.words[row][0]),
  };
}

/** Where each word ends, in tokens. @param {Text} text */
function ends({ words }) {
  let end = 0;
  return words.map(([size]) => (end += size));
}

/** A token and its largest weights. @param {Weights} weights @param {Spot} spot @param {number | null} column */
function summary({ rows, columns, weight }, { side, place }, column) {
  const takes = side === "rows", others = takes ? columns : rows;
  const value = (/** @type {number} */ other) => (takes ? weight(place, other) : weight(other, place));
  const quoted = (/** @type {string} */ text) => `“${text}”`;
  if (column != null) return [html("b", {}, `${quoted(rows[place].text)} attends to ${quoted(columns[column].text)}`), number(place, column, value(column))];
  const most = others.map((_, other) => other).filter((other) => value(other) > 0).sort((one, other) => value(other) - value(one)).slice(0, 5);
  const list = most.map((other) => `${quoted(others[other].text)} ${fixed(value(other))}`).join(", ");
  return [html("b", {}, `${quoted((takes ? rows : columns)[place].text)} ${takes ? "attends most to" : "is attended to most by"}`), list];
}

/** @param {number} row @param {number} column @param {number} value */
function number(row, column, value) {
  if (Number.isNaN(value)) return html("span", { "data-weight": "" }, "0: it is a later token, which the mask hides");
  return html("span", { "data-weight": value }, html("i", {}, "a"), html("sub", {}, `${row},${column}`), ` = ${fixed(value, 4)}`);
}
