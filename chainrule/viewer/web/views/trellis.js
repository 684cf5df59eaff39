// @ts-check
/** The trellis of a hidden Markov model: a grid of states by time, the sum of the chosen cell, and the model beside it. */
import { choices, html, scrolling, svg } from "chainrule/draw";
import { digits, low, number, result, symbols } from "chainrule/formula";
import { unpack } from "chainrule/arrays";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {import("chainrule/arrays").Values} Values */
/** @typedef {"alpha" | "gamma" | "delta"} Mode */
/** @typedef {{ name: string, states: number, shown: number[], names?: string[], symbols: string[][], labels?: string[][], initial: Packed, transition: Packed, emission: Packed,
 *   tokens?: string[], begins: number[], log_p?: (number | null)[], scale: number[], height: (number | null)[], path: number[],
 *   modes?: Mode[], truth?: number[], begin?: Packed, alpha_terms?: Packed, gamma_terms?: Packed, delta_terms?: Packed,
 *   alpha: Packed, beta: Packed, gamma: Packed, delta: Packed, arriving: Packed, emits: Packed, winner: Packed }} Data */
/** @typedef {{ from: number, factors: number[], product: number }} Term what one state adds to a sum */

const MODES = { alpha: "forward α", gamma: "posterior γ", delta: "Viterbi δ" };
const TAG_MODES = { gamma: "p(tag | sentence), γ", alpha: "p(tag | words so far), α", delta: "Viterbi δ" };
const TERMS = 8;             // at most so many are written out one by one
const MATTERS = 1e-4;        // and such as are more than this share of the sum
const ROW = 24;              // pixels of a state
const LONGEST = 14;          // characters of a state's name beside the grid
const NARROW = matchMedia("(max-width: 40rem)").matches;
const [LABEL, LETTER] = NARROW ? [10, 6.2] : [20, 8];    // characters of a state's typical symbols, and pixels of one
const HEAD = 30;             // pixels of the tokens' names
const ARRAYS = /** @type {const} */ (["initial", "transition", "emission", "alpha", "beta", "gamma", "delta", "arriving", "emits", "winner", "begin", "alpha_terms", "gamma_terms", "delta_terms"]);

const TAG_FORMULAS = {
  alpha: "α_s(t) = Σ_{s'} α_{s's}(t)    p of the tag s and of the tag s' before it, given the words so far",
  gamma: "γ_s(t) = Σ_{s'} ξ_{ss'}(t)    p of the tag s and of the tag s' after it, given the whole sentence",
  delta: "δ_s(t) = max_{s'} δ_{s's}(t)    the best path that ends in s' and s; 1: the best of all at this word",
};
const FORMULAS = {
  alpha: "α_s(t) = b_{s,x_t} Σ_{s'} α_{s'}(t−1) a_{s',s} / c_t    c_t makes the column sum to 1: p(x_t | the tokens before)",
  gamma: "γ_s(t) = α_s(t) β_s(t)    β_s(t) = Σ_{s'} a_{s,s'} b_{s',x_{t+1}} β_{s'}(t+1) / c_{t+1}",
  delta: "δ_s(t) = b_{s,x_t} max_{s'} a_{s',s} δ_{s'}(t−1)    Δ_s(t): the best s'",
};

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const hmm = new Trellis(data);
  const detail = html("div", { class: "trellis-detail", role: "group", "aria-live": "polite", "aria-label": "the sum of the chosen cell" });
  const beside = html("div", { class: "trellis-beside" });
  if (hmm.length === 0) {
    element.append(html("p", {}, "There is no token yet: type a text to see its trellis."), beside);
    const draw = (/** @type {number} */ row) => beside.replaceChildren(...model(hmm, row, draw));
    return void draw(0);
  }
  const modes = Object.fromEntries(Object.entries(hmm.tags ? TAG_MODES : MODES).filter(([name]) => hmm.data.modes?.includes(/** @type {Mode} */ (name)) ?? true));
  let mode = /** @type {Mode} */ (state.get("mode", "gamma"));
  if (!(mode in modes)) mode = "gamma";
  let [time, row] = start(hmm, state.get("at", ""));
  const grid = html("div", { class: "trellis-grid picture" });
  const draw = () => {
    paint(grid, hmm, mode, time, row);
    detail.replaceChildren(...explain(hmm, mode, time, row));
    beside.replaceChildren(...model(hmm, row, (next) => choose(time, next)));
  };
  const choose = (/** @type {number} */ nextTime, /** @type {number} */ nextRow) => {
    time = Math.min(hmm.length - 1, Math.max(0, nextTime));
    row = Math.min(hmm.rows - 1, Math.max(0, nextRow));
    state.set("at", `${time}.${hmm.data.shown[row]}`);
    draw();
    reveal(grid, hmm, time);
  };
  listen(grid, hmm, (nextTime, nextRow) => choose(nextTime, nextRow), (times, rows) => choose(time + times, row + rows));
  element.append(
    choices("show", modes, mode, (value) => { mode = /** @type {Mode} */ (value); state.set("mode", value); draw(); }),
    html("p", { class: "trellis-facts" }, facts(hmm)), grid, detail, beside);
  draw();
  reveal(grid, hmm, time);
}

/** Scrolls within the grid, never the page, so that a time can be seen. @param {HTMLElement} grid @param {Trellis} hmm @param {number} time */
function reveal(grid, hmm, time) {
  const scroll = grid.querySelector(".scroll"), width = columnWidth(hmm);
  if (!scroll) return;
  if (time * width < scroll.scrollLeft || (time + 1) * width > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = (time + 0.5) * width - scroll.clientWidth / 2;
}

/** The numbers, and where they lie. */
class Trellis {
  /** @param {Data} data */
  constructor(data) {
    this.data = data;
    this.rows = data.shown.length;
    this.length = data.tokens?.length ?? 0;
    /** @type {Record<string, Values>} */
    this.arrays = Object.fromEntries(ARRAYS.flatMap((name) => { const packed = data[name]; return packed ? [[name, unpack(packed).values]] : []; }));
    this.begins = new Set(data.begins);
  }

  /** Whether the states are the tags of a tagger. */
  get tags() { return Boolean(this.data.modes); }

  /** What each other tag adds to a cell of a tagger, by the tag before it, or after it for γ; none at the ends.
   * @param {Mode} mode @param {number} time @param {number} row @returns {Term[]} */
  terms(mode, time, row) {
    const all = this.arrays[`${mode}_terms`], end = mode === "gamma" ? time + 1 === this.length : time === 0;
    if (!all || end) return [];
    return this.data.shown.map((_, from) => { const product = all[(time * this.rows + row) * this.rows + from]; return { from, factors: [], product }; }).sort(falling);
  }

  /** @param {string} name @param {number} time @param {number} row */
  at(name, time, row) { return this.arrays[name][time * this.rows + row]; }

  /** a_{s,s'} @param {number} from @param {number} to */
  a(from, to) { return this.arrays.transition[from * this.rows + to]; }

  /** The value of a cell; δ by its true size. @param {Mode} mode @param {number} time @param {number} row */
  value(mode, time, row) { return mode === "delta" ? this.delta(time, row) : this.at(mode, time, row); }

  /** @param {number} time @param {number} row */
  delta(time, row) {
    if (this.tags) return this.at("delta", time, row);
    const height = this.data.height[time];
    return height == null ? 0 : this.at("delta", time, row) * Math.exp(height);
  }

  /** @param {number} row */
  name(row) { return this.data.names?.[row] ?? String(this.data.shown[row]); }

  /** @param {number} state by its number among all states */
  nameOf(state) { return this.data.shown.includes(state) ? this.name(this.data.shown.indexOf(state)) : String(state); }

  /** What the other states, those that are not shown, are called. */
  get others() { return this.data.states - this.rows; }
}

/** The cell that the address names, or the last of the best path. @param {Trellis} hmm @param {string} asked @returns {[number, number]} */
function start(hmm, asked) {
  const [time, state] = asked.split(".").map((part) => Number.parseInt(part, 10));
  const row = hmm.data.shown.indexOf(state);
  if (time >= 0 && time < hmm.length && row >= 0) return [time, row];
  return [hmm.length - 1, Math.max(0, hmm.data.shown.indexOf(hmm.data.path[hmm.length - 1]))];
}

/** @param {Trellis} hmm */
function facts({ data, rows, length }) {
  if (data.log_p === undefined) {
    const known = data.truth?.filter((tag) => tag >= 0), right = data.truth?.filter((tag, time) => tag >= 0 && tag === data.path[time]);
    return `${length} words, ${rows} tags.${known ? ` The path has ${right?.length} of ${known.length} tags right; a ring is the true tag.` : " Write word/TAG to compare with true tags."}`;
  }
  const nats = data.log_p.reduce((/** @type {number | null} */ sum, log) => (sum == null || log == null ? null : sum - log), 0);
  const bits = nats == null ? "This text is impossible" : `${length} tokens in ${(nats / Math.LN2).toFixed(2)} bits, the sum over all paths`;
  return `${bits}. ${rows < data.states ? `The ${rows} most probable of ${data.states} states.` : `${data.states} states.`}`;
}

/** The width of a column: that of its longest token. @param {Trellis} hmm */
const columnWidth = (hmm) => Math.min(110, Math.max(24, 12 + 8.4 * Math.max(...(hmm.data.tokens ?? []).map((token) => [...token].length))));

/** @param {HTMLElement} grid @param {Trellis} hmm @param {Mode} mode @param {number} time @param {number} row */
function paint(grid, hmm, mode, time, row) {
  const width = columnWidth(hmm), height = HEAD + hmm.rows * ROW;
  const x = (/** @type {number} */ at) => at * width + width / 2, y = (/** @type {number} */ at) => HEAD + at * ROW + ROW / 2;
  const made = svg("svg", { class: "trellis-cells", width: hmm.length * width, height, "aria-hidden": true },
    ...heads(hmm, time, x), ...cells(hmm, mode, width), ...arrivals(hmm, mode, time, row, x, y), ...paths(hmm, x, y),
    svg("rect", { class: "chosen", x: time * width + 1, y: HEAD + row * ROW + 1, width: width - 2, height: ROW - 2, rx: 3 }));
  const scroll = grid.querySelector(".scroll");
  if (scroll) return void scroll.replaceChildren(made);
  const labels = hmm.data.shown.map((_, at) => fitting(hmm.data.labels?.[at] ?? [])), widest = Math.max(...labels.map((label) => [...label].length));
  const names = hmm.data.shown.map((_, at) => cut(hmm.name(at), LONGEST)), beside = Math.max(34, 12 + 8 * Math.max(...names.map((name) => name.length)));
  const said = (/** @type {number} */ at) => (hmm.data.labels ? `state ${hmm.name(at)}; it emits most, in proportion to their frequency: ${hmm.data.labels[at].join(" ")}` : hmm.name(at));
  grid.append(svg("svg", { class: "trellis-names", height, "aria-hidden": true, width: beside + widest * LETTER + (widest ? 16 : 8) }, ...names.map((name, at) =>
    svg("text", { x: 0, y: y(at) + 5 }, name, svg("title", {}, said(at)), svg("tspan", { class: "trellis-soft", x: beside }, labels[at])))),
    html("div", { class: "scroll", tabindex: 0, role: "application", "aria-label": "the trellis: the arrow keys choose a cell" }, made));
}

/** @param {string} text @param {number} most */
const cut = (text, most) => ([...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text);

/** As many whole symbols as there is room for. @param {string[]} labels */
function fitting(labels) {
  let text = cut(labels[0] ?? "", LABEL);
  for (const label of labels.slice(1)) if ([...text].length + 1 + [...label].length <= LABEL) text += ` ${label}`;
  return text;
}

/** @param {Trellis} hmm @param {number} time @param {(at: number) => number} x */
const heads = (hmm, time, x) => (hmm.data.tokens ?? []).map((token, at) =>
  svg("text", { class: at === time ? "trellis-now" : "", x: x(at), y: HEAD - 10, "text-anchor": "middle" }, cut(token, 12)));

/** Those that can be seen. @param {Trellis} hmm @param {Mode} mode @param {number} width */
function* cells(hmm, mode, width) {
  const values = hmm.arrays[mode];
  for (let time = 0; time < hmm.length; time++) for (let row = 0; row < hmm.rows; row++) {
    const value = values[time * hmm.rows + row];
    if (value >= 0.004) yield svg("rect", { class: "cell", x: time * width + 1, y: HEAD + row * ROW + 1, width: width - 2, height: ROW - 2,
      rx: 3, "fill-opacity": (0.9 * Math.sqrt(value)).toFixed(3), "data-cell": `${time}.${hmm.data.shown[row]}`, "data-value": value });
  }
}

/** The best path of each text. @param {Trellis} hmm @param {(at: number) => number} x @param {(at: number) => number} y */
function paths(hmm, x, y) {
  const places = hmm.data.path.map((state) => hmm.data.shown.indexOf(state));
  const d = places.map((row, time) => (row < 0 ? "" : `${hmm.begins.has(time) || places[time - 1] < 0 ? "M" : "L"}${x(time)} ${y(row)}`)).join("");
  return [svg("path", { class: "trellis-path", d }), ...places.flatMap((row, time) =>
    (row < 0 ? [] : [svg("circle", { class: "trellis-node", cx: x(time), cy: y(row), r: 4 })])), ...truths(hmm, x, y)];
}

/** Rings around the true states; red where the path is wrong. @param {Trellis} hmm @param {(at: number) => number} x @param {(at: number) => number} y */
const truths = (hmm, x, y) => (hmm.data.truth ?? []).flatMap((state, time) => (state < 0 ? [] : [svg("circle", {
  class: `trellis-truth${state === hmm.data.path[time] ? "" : " trellis-wrong"}`, cx: x(time), cy: y(hmm.data.shown.indexOf(state)), r: 8, "data-truth": time })]));

/** Lines from the states that contribute to the chosen cell, by their contribution.
 * @param {Trellis} hmm @param {Mode} mode @param {number} time @param {number} row @param {(at: number) => number} x @param {(at: number) => number} y */
function arrivals(hmm, mode, time, row, x, y) {
  const { terms, total, best } = mode === "gamma" ? after(hmm, time, row) : before(hmm, mode, time, row);
  const step = mode === "gamma" ? 1 : -1;
  return terms.filter((term) => term.product > 0.01 * (best ?? total)).map((term) => svg("line", { class: "trellis-term", x1: x(time), y1: y(row),
    x2: x(time + step), y2: y(term.from), "stroke-width": Math.max(0.8, (6 * term.product) / (best ?? total)).toFixed(2) }));
}

/** @param {HTMLElement} grid @param {Trellis} hmm @param {(time: number, row: number) => void} choose @param {(times: number, rows: number) => void} move */
function listen(grid, hmm, choose, move) {
  grid.addEventListener("click", (event) => {
    const cells = grid.querySelector(".trellis-cells");
    if (!cells || !(event.target instanceof Node) || !grid.querySelector(".scroll")?.contains(event.target)) return;
    const box = cells.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - HEAD) / ROW);
    if (row < hmm.rows) choose(Math.floor((event.clientX - box.left) / columnWidth(hmm)), Math.max(0, row));
  });
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-hmm.length, 0], End: [hmm.length, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    move(step[0], step[1]);
  });
}

/** The terms of a cell from the states before it: α is their sum, δ the largest. None where a text begins.
 * @param {Trellis} hmm @param {Mode} mode @param {number} time @param {number} row @returns {{ terms: Term[], total: number, best?: number }} */
function before(hmm, mode, time, row) {
  if (hmm.tags) return tagged(hmm, mode, time, row);
  if (hmm.begins.has(time)) return { terms: [], total: hmm.arrays.initial[row] };
  const terms = hmm.data.shown.map((_, from) => {
    const factors = [mode === "delta" ? hmm.delta(time - 1, from) : hmm.at("alpha", time - 1, from), hmm.a(from, row)];
    return { from, factors, product: factors[0] * factors[1] };
  }).sort(falling);
  return mode === "delta" ? { terms, total: terms[0].product, best: terms[0].product } : { terms, total: hmm.at("arriving", time, row) };
}

/** The terms of β of a cell, by the states after it. @param {Trellis} hmm @param {number} time @param {number} row
 * @returns {{ terms: Term[], total: number, best?: number }} */
function after(hmm, time, row) {
  if (hmm.tags) return tagged(hmm, "gamma", time, row);
  if (time + 1 === hmm.length || hmm.begins.has(time + 1)) return { terms: [], total: 1 };
  const terms = hmm.data.shown.map((_, from) => {
    const factors = [hmm.a(row, from), hmm.at("emits", time + 1, from), hmm.at("beta", time + 1, from)];
    return { from, factors, product: factors[0] * factors[1] * factors[2] };
  }).sort(falling);
  return { terms, total: hmm.at("beta", time, row) * hmm.data.scale[time + 1] };
}

/** @param {Trellis} hmm @param {Mode} mode @param {number} time @param {number} row @returns {{ terms: Term[], total: number, best?: number }} */
function tagged(hmm, mode, time, row) {
  const terms = hmm.terms(mode, time, row), total = hmm.at(mode, time, row);
  return mode === "delta" ? { terms, total, best: total } : { terms, total };
}

/** @param {Term} one @param {Term} other */
const falling = (one, other) => other.product - one.product;

/** @param {Trellis} hmm @param {Mode} mode @param {number} time @param {number} row */
function explain(hmm, mode, time, row) {
  const letter = { alpha: "α", gamma: "γ", delta: "δ" }[mode];
  return [
    html("h3", {}, symbols(`${letter}_{${hmm.name(row)}}(${time + 1})`), " = ", result(hmm.value(mode, time, row)),
      html("small", {}, `  state ${hmm.name(row)} when `, html("span", { class: "trellis-token" }, hmm.data.tokens?.[time]), " is read")),
    ...(hmm.tags && !hmm.arrays.alpha ? [] : [html("p", { class: "trellis-formula" }, symbols((hmm.tags ? TAG_FORMULAS : FORMULAS)[mode]))]),
    ...(hmm.tags ? explainTags(hmm, mode, time, row) : mode === "gamma" ? explainGamma(hmm, time, row) : explainArrival(hmm, mode, time, row)),
  ];
}

/** The sum over the tag before, or after; of a network the distribution of the word. @param {Trellis} hmm @param {Mode} mode @param {number} time @param {number} row */
function explainTags(hmm, mode, time, row) {
  const { terms, total } = tagged(hmm, mode, time, row), where = mode === "gamma" ? "tag after it" : "tag before it";
  const order = hmm.data.shown.map((_, at) => at).sort((one, other) => hmm.at(mode, time, other) - hmm.at(mode, time, one)).slice(0, TERMS);
  const most = hmm.at(mode, time, order[0]);
  return [
    ...(terms.length ? [table(hmm, terms, total, mode !== "delta", [where, mode === "delta" ? "δ of both" : "p of both"])]
      : hmm.arrays.alpha ? [html("p", {}, mode === "gamma" ? "This is the last word: no tag follows." : "This is the first word: no tag is before it.")] : []),
    html("h3", {}, "All tags of this word"),
    html("ul", { class: "trellis-bars" }, ...order.map((at) => bar(hmm.name(at), hmm.at(mode, time, at), most))),
  ];
}

/** @param {Trellis} hmm @param {Mode} mode @param {number} time @param {number} row */
function explainArrival(hmm, mode, time, row) {
  const { terms, total } = before(hmm, mode, time, row), s = hmm.name(row), sum = mode === "alpha";
  const emits = hmm.at("emits", time, row), value = hmm.value(mode, time, row);
  const scaled = sum ? [" / ", number(hmm.data.scale[time])] : [];
  const begins = terms.length === 0;
  const words = begins ? `π_{${s}}` : sum ? "Σ" : "max";
  return [
    begins ? html("p", {}, "A text begins here, with π.") : table(hmm, terms, total, sum,
      ["s'", symbols(sum ? `α_{s'}(${time})` : `δ_{s'}(${time})`), symbols(`a_{s',${s}}`), "product"]),
    html("p", { class: "trellis-sum" }, sum ? "α = " : "δ = ", low("b", s, ",", hmm.data.tokens?.[time]), symbols(` · ${words}${sum ? ` / c_{${time + 1}}` : ""} = `),
      number(emits), " · ", number(total), ...scaled, " = ", result(value)),
    ...(sum || begins ? [] : [html("p", { class: "trellis-sum" }, symbols(`Δ_{${s}}(${time + 1})`), " = ", html("b", { class: "trellis-winner" }, hmm.nameOf(hmm.at("winner", time, row))))]),
  ];
}

/** @param {Trellis} hmm @param {number} time @param {number} row */
function explainGamma(hmm, time, row) {
  const { terms, total } = after(hmm, time, row), s = hmm.name(row), next = time + 2;
  const last = terms.length === 0;
  const beta = hmm.at("beta", time, row);
  return [
    html("p", { class: "trellis-sum" }, symbols("γ = α · β = "), number(hmm.at("alpha", time, row)), " · ", number(beta), " = ", result(hmm.value("gamma", time, row))),
    last ? html("p", {}, "This is the last token, so β is 1.") : table(hmm, terms, total, true,
      ["s'", symbols(`a_{${s},s'}`), low("b", "s',", hmm.data.tokens?.[time + 1]), symbols(`β_{s'}(${next})`), "product"]),
    ...(last ? [] : [html("p", { class: "trellis-sum" }, symbols(`β = Σ / c_{${next}}`), " = ", number(total), " / ", number(hmm.data.scale[time + 1]), " = ", number(beta))]),
  ];
}

/** The largest terms one by one, the rest together. @param {Trellis} hmm @param {Term[]} terms @param {number} total @param {boolean} adds @param {import("chainrule/draw").Child[]} names */
function table(hmm, terms, total, adds, names) {
  const few = terms.slice(0, TERMS).filter((term, place) => place === 0 || term.product > MATTERS * total), many = terms.slice(few.length);
  const unseen = hmm.others ? Math.max(0, total - added(terms)) : 0, others = many.length + hmm.others;
  const line = (/** @type {Term} */ term, /** @type {number} */ place) => html("tr", { class: place === 0 && !adds ? "best" : "" },
    html("th", { scope: "row" }, hmm.name(term.from)), ...term.factors.map((factor) => html("td", {}, number(factor))),
    html("td", { class: "product" }, number(term.product)));
  const gap = names.length - 2;
  return scrolling("the terms of the sum", html("table", { class: "trellis-terms" },
    html("thead", {}, html("tr", {}, ...names.map((name) => html("th", { scope: "col" }, name)))),
    html("tbody", {}, ...few.map(line), others && adds ? html("tr", {}, html("th", { scope: "row", colspan: gap + 1 }, `${others} other states together`),
      html("td", { class: "product" }, number(added(many) + unseen))) : null),
    html("tfoot", {}, html("tr", {}, html("th", { scope: "row", colspan: gap + 1 }, adds ? "Σ" : "max"), html("td", { class: "trellis-total" }, number(total))))));
}

/** @param {Term[]} terms */
const added = (terms) => terms.reduce((sum, term) => sum + term.product, 0);

/** The emissions of the chosen state, and the transition matrix. @param {Trellis} hmm @param {number} row @param {(row: number) => void} choose */
function model(hmm, row, choose) {
  if (hmm.tags || !hmm.arrays.transition) return [];
  const { emission, initial } = hmm.arrays, emitted = hmm.data.symbols[row], many = emitted.length;
  const bars = emitted.map((token, place) => bar(token, emission[row * many + place], emission[row * many]));
  const moves = hmm.data.shown.map((_, to) => ({ to, p: hmm.a(row, to) })).sort((one, other) => other.p - one.p).slice(0, many);
  return [
    html("section", {}, html("h3", {}, symbols(`b_{${hmm.name(row)},o}`), html("small", {}, `  emissions of state ${hmm.name(row)}`)), html("ul", { class: "trellis-bars" }, ...bars)),
    html("section", {}, html("h3", {}, symbols(`a_{${hmm.name(row)},s'}`), html("small", {}, "  transitions from it")),
      html("ul", { class: "trellis-bars" }, ...moves.map(({ to, p }) => bar(`${hmm.name(to)}  ${(hmm.data.labels?.[to] ?? []).slice(0, 4).join(" ")}`, p, moves[0].p))),
      html("p", { class: "trellis-sum" }, symbols(`π_{${hmm.name(row)}}`), " = ", number(initial[row]))),
    html("section", {}, html("h3", {}, symbols("a_{s,s'}"), html("small", {}, "  from each row to each column")), matrix(hmm, row, choose)),
  ];
}

/** @param {string} label @param {number} value @param {number} most */
const bar = (label, value, most) => html("li", { "data-value": value, title: value }, html("span", { class: "trellis-token" }, label),
  html("span", {}, html("i", { style: `width:${((70 * value) / (most || 1)).toFixed(2)}%` }), digits(value, 3)));

/** @param {Trellis} hmm @param {number} row @param {(row: number) => void} choose */
function matrix(hmm, row, choose) {
  const size = hmm.rows, cells = [];
  for (let from = 0; from < size; from++) for (let to = 0; to < size; to++) {
    const p = hmm.a(from, to);
    if (p >= 0.004) cells.push(svg("rect", { x: to, y: from, width: 1, height: 1, "fill-opacity": (0.9 * Math.sqrt(p)).toFixed(3) },
      svg("title", {}, `a from ${hmm.name(from)} to ${hmm.name(to)}: ${digits(p)}`)));
  }
  const made = svg("svg", { class: "trellis-matrix", viewBox: `-0.05 -0.05 ${size + 0.1} ${size + 0.1}`, role: "img", "aria-label": "the transition matrix; the chosen state is the row with a frame" },
    ...cells, svg("rect", { class: "chosen", x: 0, y: row, width: size, height: 1 }));
  made.addEventListener("click", (event) => {
    const box = made.getBoundingClientRect();
    choose(Math.min(size - 1, Math.max(0, Math.floor(((/** @type {MouseEvent} */ (event).clientY - box.top) / box.height) * size))));
  });
  return made;
}
