// @ts-check
/** A table of tokens and layers: in each cell the best guess for the next token, coloured by its probability or by the true token's. */
import { choices, fixed, html, short } from "chainrule/draw";
import { unpack } from "chainrule/arrays";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ name: string, left_out: number, row?: string, answer?: string, tokens: string[], truth: number[], names: Record<string, string>, vocabulary: number,
 *   guesses: Packed, probabilities: Packed, truths: Packed, ranks: Packed }} Data */
/** @typedef {{ token: number, layer: number }} Cell both from 0 */
/** @typedef {{ layers: number, name(id: number): string, best(cell: Cell): { id: number, probability: number }[],
 *   truth(cell: Cell): { id: number, probability: number, rank: number } | null }} Lens */
/** @typedef {keyof typeof COLOURS} Colour */

const COLOURS = { guess: "probability of the guess", truth: "probability of the true token", rank: "rank of the true token" };

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const closer = html("section", { class: "lens-closer", "aria-live": "polite" });
  const place = html("div", { class: "lens-table", tabindex: 0, role: "group", "aria-label": "guesses after each layer; arrow keys go from cell to cell" });
  const scale = html("span", { class: "scale" });
  let lens = unfolded(data);

  const show = (/** @type {Cell} */ cell, quiet = false) => {
    place.querySelector(".chosen")?.classList.remove("chosen");
    const found = place.querySelector(`[data-token="${cell.token}"][data-layer="${cell.layer + 1}"]`);
    found?.classList.add("chosen");
    if (!quiet) {
      found?.scrollIntoView({ block: "nearest", inline: "nearest" });
      state.set("token", String(cell.token));
      state.set("layer", String(cell.layer + 1));
    }
    closer.replaceChildren(...details(data, lens, cell));
  };
  const now = () => chosen(data, lens, state);
  const draw = () => {
    const colour = /** @type {Colour} */ (state.get("colour", "guess"));
    place.replaceChildren(table(data, lens, colour));
    scale.replaceChildren(...(colour === "rank" ? [`rank ${data.vocabulary.toLocaleString("en")}`, html("i", { class: "rise" }), "1"] : ["0", html("i", { class: "rise" }), "1"]));
    show(now(), true);
  };
  place.addEventListener("click", (event) => {
    const cell = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-layer]"));
    if (cell) show({ token: Number(cell.dataset.token), layer: Number(cell.dataset.layer) - 1 });
  });
  place.addEventListener("keydown", (event) => {
    const { token, layer } = now();
    /** @type {Record<string, Cell>} */
    const moves = { ArrowUp: { token: token - 1, layer }, ArrowDown: { token: token + 1, layer }, ArrowLeft: { token, layer: layer - 1 },
      ArrowRight: { token, layer: layer + 1 }, Home: { token: 0, layer }, End: { token: data.tokens.length - 1, layer } };
    if (!moves[event.key]) return;
    event.preventDefault();
    show(within(data, lens, moves[event.key]));
  });
  element.append(html("div", { class: "choices" }, choices("colour", COLOURS, state.get("colour", "guess"), (colour) => { state.set("colour", colour); draw(); }), scale),
    formula(), html("div", { class: "lens picture" }, place, closer));
  draw();
  return (/** @type {Data} */ other) => { data = other; lens = unfolded(data); draw(); };
}

/** @param {Data} data @returns {Lens} */
function unfolded(data) {
  const [guesses, probabilities, truths, ranks] = [data.guesses, data.probabilities, data.truths, data.ranks].map(unpack);
  const [layers, tokens, best] = guesses.shape;
  return {
    layers,
    name: (id) => data.names[id],
    best({ token, layer }) {
      const first = (layer * tokens + token) * best;
      return Array.from({ length: best }, (_, place) => ({ id: guesses.values[first + place], probability: probabilities.values[first + place] }));
    },
    truth({ token, layer }) {
      const at = layer * data.truth.length + token;
      return token < data.truth.length ? { id: data.truth[token], probability: truths.values[at], rank: ranks.values[at] } : null;
    },
  };
}

/** @param {Data} data @param {Lens} lens @param {Cell} cell @returns {Cell} */
const within = (data, lens, { token, layer }) => ({
  token: Math.min(data.tokens.length - 1, Math.max(0, token)), layer: Math.min(lens.layers - 1, Math.max(0, layer)) });

/** From the address; else the model's prediction after the whole text. @param {Data} data @param {Lens} lens @param {import("chainrule/state").State} state */
function chosen(data, lens, state) {
  const number = (/** @type {string} */ name, /** @type {number} */ otherwise) => Math.floor(Number(state.get(name, String(otherwise)))) || 0;
  return within(data, lens, { token: number("token", data.tokens.length - 1), layer: number("layer", lens.layers) - 1 });
}

function formula() {
  const i = (/** @type {string} */ letter) => html("i", {}, letter);
  return html("p", { class: "note" }, i("p"), " = softmax(", i("W"), " norm(", i("x"), html("sub", {}, "l"), ")): the last norm and the output matrix ", i("W"),
    " applied after layer ", i("l"), "; after the last layer this is the model’s own prediction. A row is a token that was read, its last column the true next token. After each guess stands the rank of the true token; ",
    html("b", {}, "bold"), ": the guess is correct.");
}

/** @param {Data} data @param {Lens} lens @param {Colour} colour */
function table(data, lens, colour) {
  const layers = Array.from({ length: lens.layers }, (_, layer) => layer);
  const head = html("tr", {}, html("th", { scope: "col" }, data.row ?? "read"), ...layers.map((layer) => html("th", { scope: "col" }, `layer ${layer + 1}`)), html("th", { scope: "col" }, data.answer ?? "true next token"));
  const mean = html("tr", { class: "lens-bits" }, html("th", { scope: "row", title: "of the true token, on average" }, "bits"), ...layers.map((layer) => {
    const bits = meanBits(data, lens, layer);
    return html("td", { "data-bits": bits }, fixed(bits, 2));
  }), html("td"));
  const rows = data.tokens.map((token, place) => html("tr", {}, html("th", { scope: "row", title: token }, html("span", {}, token)),
    ...layers.map((layer) => guess(data, lens, { token: place, layer }, colour)),
    html("td", { class: "lens-truth" }, place < data.truth.length ? html("span", {}, lens.name(data.truth[place])) : "")));
  return html("table", {}, html("thead", {}, head, mean), html("tbody", {}, ...rows));
}

/** The mean bits of the true tokens after a layer. @param {Data} data @param {Lens} lens @param {number} layer */
function meanBits(data, lens, layer) {
  if (!data.truth.length) return null;
  return data.truth.reduce((sum, _, token) => sum - Math.log2(lens.truth({ token, layer })?.probability ?? 1), 0) / data.truth.length;
}

/** @param {Data} data @param {Lens} lens @param {Cell} cell @param {Colour} colour */
function guess(data, lens, cell, colour) {
  const [best] = lens.best(cell), truth = lens.truth(cell);
  const heat = colour === "guess" ? best.probability : !truth ? 0 : colour === "truth" ? truth.probability : 1 - Math.log(truth.rank) / Math.log(data.vocabulary);
  const right = truth?.id === best.id;
  return html("td", { class: right ? "lens-right" : "", "data-token": cell.token, "data-layer": cell.layer + 1, "data-probability": best.probability,
    "data-truth": truth?.probability, "data-rank": truth?.rank, title: `${fixed(best.probability, 4)}${truth ? `; the true token has rank ${truth.rank}` : ""}`,
    style: `--heat:${heat.toFixed(3)}` }, html("span", {}, lens.name(best.id)), truth ? html("small", {}, short(truth.rank)) : null);
}

/** The best guesses of one cell, and the true token. @param {Data} data @param {Lens} lens @param {Cell} cell */
function details(data, lens, cell) {
  const best = lens.best(cell), truth = lens.truth(cell), most = best[0].probability;
  const bar = (/** @type {{ id: number, probability: number }} */ { id, probability }) => html("li", { class: id === truth?.id ? "lens-right" : "", "data-probability": probability },
    html("span", { class: "lens-name" }, lens.name(id)), html("i", { style: `width:${((100 * probability) / most).toFixed(2)}%` }), html("small", { title: probability }, fixed(probability, 4)));
  return [
    html("h3", {}, `After layer ${cell.layer + 1}, ${data.row ? `${data.row} ` : "following "}“${data.tokens[cell.token]}”`),
    html("ol", { class: "lens-best" }, ...best.map(bar)),
    truth ? html("p", { class: "lens-came", "data-probability": truth.probability, "data-rank": truth.rank }, `The ${data.answer ?? "true next token"} is `, html("b", {}, `“${lens.name(truth.id)}”`),
      `: rank ${truth.rank.toLocaleString("en")} of ${data.vocabulary.toLocaleString("en")}, probability ${fixed(truth.probability, 4)}.`) : html("p", {}, data.row ? "" : "The text ends here."),
  ];
}
