// @ts-check
/** The tokens of a model as a map; the nearest neighbours of a word, or of a − b + c, with their cosines. */
import { choices, fixed, html, unique } from "chainrule/draw";
import { unpack } from "chainrule/arrays";
import { renew } from "chainrule/renew";
import { makeMap } from "chainrule/scatter";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ model: string, known: number, size: number, words: string[], map: Packed, shares: number[], vectors: Packed,
 *   first: string[], count: number }} Data */
/** @typedef {[string, number][]} Found words and their cosines, the nearest first */
/** @typedef {{ ask(options: Record<string, string>): Promise<Answer | null> }} Live */
/** @typedef {{ found?: Found, missing?: string }} Answer what is nearest, or why there is none */
/** @typedef {{ words: string[], units: Float64Array[], places: Map<string, number> }} Known */

const MODES = { near: "nearest to a word", analogy: "a − b + c" };
const NAMES = /** @type {const} */ (["a", "b", "c"]);
const KNOWN = ["man", "woman", "king", "queen"];

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  const known = directions(data);
  const formula = html("p", { class: "vectors-formula" });
  const answer = html("div", { class: "vectors-answer", "aria-live": "polite" });
  const map = makeMap((place) => choose(data.words[place]));
  const mode = () => (state.get("mode", "near") === "analogy" ? "analogy" : "near");
  const asked = () => NAMES.slice(0, mode() === "near" ? 1 : 3).map((name, place) => state.get(name, data.first[place]));
  let turn = 0;
  /** @type {string | undefined} a word without an answer */
  let missing;
  const show = async () => {
    const mine = ++turn;
    const words = asked(), exclude = state.get("exclude", "yes") === "yes";
    fields.forEach(({ label, input, text }, place) => {
      label.hidden = place >= words.length;
      text.textContent = words.length === 1 ? "word " : `${NAMES[place]} `;
      input.setAttribute("aria-label", words.length === 1 ? "word" : NAMES[place]);
      if (document.activeElement !== input || !missing) input.value = state.get(NAMES[place], data.first[place]);
    });
    left.hidden = words.length === 1;
    formula.textContent = words.length === 1 ? "cos(a, b) = a · b / |a||b|" : `${words[0]} − ${words[1]} + ${words[2]}, the sum of unit vectors`;
    const { found, missing: why } = live ? await askServer(live, words, exclude) : answerOf(data, known, words, exclude);
    if (mine !== turn) return;
    missing = why;
    renew(answer, found ? table(found, choose) : html("p", { class: "vectors-missing", role: "alert" }, why ?? "There is no answer."));
    drawMap(map, data, known, words, found ?? []);
  };
  const choose = (/** @type {string} */ word) => {
    state.set("mode", "near");
    state.set("a", word);
    const radio = /** @type {HTMLInputElement | null} */ (element.querySelector("input[value=near]"));
    if (radio) radio.checked = true;
    show();
  };
  const change = (/** @type {string} */ value) => {
    if (missing) for (const [place, name] of NAMES.entries()) state.set(name, data.first[place]);    // a word that is not there is not asked for again
    missing = undefined;
    state.set("mode", value);
    show();
  };
  const id = unique("vectors-words");
  const fields = NAMES.map((name) => field(name, id, (value) => { state.set(name, value); show(); }));
  const left = without(state, show);
  const list = html("datalist", { id }, ...data.words.map((value) => html("option", { value })));
  element.append(html("div", { class: "choices" }, choices("find", MODES, mode(), change), ...fields.map(({ label }) => label), left), list, formula,
    html("div", { class: "vectors-both picture" }, answer, map.element), html("p", { class: "note" }, about(data, known, live)));
  return show().then(() => undefined);
}

/** @param {string} name @param {string} list the id of its words @param {(word: string) => void} onchange */
function field(name, list, onchange) {
  const input = /** @type {HTMLInputElement} */ (html("input", { class: "vectors-word", "data-which": name, list, autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    change: () => onchange(input.value.trim()) }));
  const text = html("span");
  return { input, text, label: html("label", {}, text, input) };
}

/** @param {import("chainrule/state").State} state @param {() => void} onchange */
function without(state, onchange) {
  return html("label", { class: "choice" }, html("input", { type: "checkbox", checked: state.get("exclude", "yes") === "yes",
    change: (event) => { state.set("exclude", /** @type {HTMLInputElement} */ (event.target).checked ? "yes" : "no"); onchange(); } }), "exclude a, b and c");
}

/** @param {Data} data @returns {Known} */
function directions(data) {
  const { shape: [count, size], values } = unpack(data.vectors);
  const units = Array.from({ length: count }, (_, row) => unit(Float64Array.from(values.subarray(row * size, (row + 1) * size))));
  return { words: data.words.slice(0, count), units, places: new Map(data.words.slice(0, count).map((word, place) => [word, place])) };
}

/** @param {Float64Array} vector */
function unit(vector) {
  const length = Math.sqrt(dot(vector, vector)) || 1;
  return vector.map((number) => number / length);
}

/** @param {Float64Array} one @param {Float64Array} other */
function dot(one, other) {
  let sum = 0;
  for (let place = 0; place < one.length; place++) sum += one[place] * other[place];
  return sum;
}

/** As written, or with the space before it that many subwords have. @param {Known} known @param {string} word */
function find(known, word) {
  const names = [word, word.toLowerCase()].flatMap((name) => [name, `·${name}`]);
  return names.map((name) => known.places.get(name)).find((place) => place !== undefined);
}

/** Of one word its neighbours; of three those of a − b + c. @param {Known} known @param {number[]} places @param {boolean} exclude @param {number} count @returns {Found} */
function nearest(known, places, exclude, count) {
  const [a, b, c] = places.map((place) => known.units[place]);
  const wanted = places.length === 1 ? a : unit(a.map((number, place) => number - b[place] + c[place]));
  const left = new Set(places.length === 1 || exclude ? places : []);
  return known.units.map((one, place) => /** @type {[number, number]} */ ([place, dot(one, wanted)])).filter(([place]) => !left.has(place))
    .sort((one, other) => other[1] - one[1]).slice(0, count).map(([place, cosine]) => [known.words[place], cosine]);
}

/** @param {Live} live @param {string[]} words @param {boolean} exclude @returns {Promise<Answer>} */
async function askServer(live, words, exclude) {
  const named = Object.fromEntries(words.map((word, place) => [NAMES[place], word]));
  return (await live.ask({ ask: "yes", mode: words.length === 1 ? "near" : "analogy", ...named, exclude: exclude ? "yes" : "no" })) ?? {};
}

/** By the vectors that are in the page. @param {Data} data @param {Known} known @param {string[]} words @param {boolean} exclude @returns {Answer} */
function answerOf(data, known, words, exclude) {
  const absent = words.find((word) => find(known, word) === undefined);
  if (absent === undefined) return { found: nearest(known, words.map((word) => find(known, word) ?? 0), exclude, data.count) };
  const rest = known.units.length < data.known ? " The page that chainrule look RUN opens has all of them." : "";
  return { missing: `“${absent}” is not among the ${known.units.length.toLocaleString("en")} tokens whose vectors are in this page.${rest}` };
}

/** @param {Found} found @param {(word: string) => void} choose */
function table(found, choose) {
  const rows = found.map(([word, cosine]) => html("tr", {}, html("th", { scope: "row" }, html("button", { type: "button", click: () => choose(word) }, word)),
    html("td", { "data-cosine": cosine }, fixed(cosine, 4)),
    html("td", {}, html("span", { class: cosine < 0 ? "vectors-bar opposite" : "vectors-bar", style: `width:${(100 * Math.min(1, Math.abs(cosine))).toFixed(2)}%` }))));
  const head = html("tr", {}, ...["token", "cosine", "from 0 to 1"].map((name) => html("th", { scope: "col" }, name)));
  return html("div", { class: "scroll" }, html("table", { class: "vectors-found" }, html("thead", {}, head), html("tbody", {}, ...rows)));
}

/** How many vectors there are, and how many are shown. @param {Data} data @param {Known} known @param {Live | null} live */
function about(data, known, live) {
  const percent = (/** @type {number} */ share) => `${fixed(100 * share, 1)} %`;
  const over = live ? data.known : known.units.length;
  return `${data.model}: vectors of ${data.size} numbers. Cosines are over ${over.toLocaleString("en")} of ${data.known.toLocaleString("en")} tokens. `
    + `The map shows ${data.words.length.toLocaleString("en")}, by the two directions of largest variance (PCA): ${percent(data.shares[0])} and ${percent(data.shares[1])} of it. `
    + "Tokens that are close on the map may be far apart in the other directions."
    + (KNOWN.every((word) => find(known, word) !== undefined) ? " In good vectors of words, man → woman is about king → queen: try a − b + c." : "");
}

/** @param {import("chainrule/scatter").Scatter} map @param {Data} data @param {Known} known @param {string[]} asked @param {Found} found */
function drawMap(map, data, known, asked, found) {
  const { values } = unpack(data.map), place = new Map(data.words.map((word, row) => [word, row]));
  const at = (/** @type {string} */ word) => place.get(known.words[find(known, word) ?? -1] ?? word);
  const words = asked.map(at), nearby = found.map(([word]) => at(word));
  const there = (/** @type {(number | undefined)[]} */ some) => /** @type {number[]} */ (some.filter((row) => row !== undefined));
  const [a, b, c] = words;
  const marks = [...there(words).map((row) => ({ place: row, style: /** @type {const} */ ("asked") })),
    ...there(nearby).filter((row) => !words.includes(row)).map((row) => ({ place: row, style: /** @type {const} */ ("found") }))];
  const arrows = asked.length < 3 ? [] : [[b, c], [a, nearby[0]]].filter((ends) => there(ends).length === 2);    // what is added to a is c − b
  map.show({
    title: asked.length < 3 ? `Map of the tokens, and the nearest to ${asked[0]}` : `Map of the tokens: ${asked[1]} → ${asked[2]} added to ${asked[0]}`,
    x: `first direction (${fixed(100 * data.shares[0], 1)} %)`, y: `second direction (${fixed(100 * data.shares[1], 1)} %)`,
    count: data.words.length, spot: (row) => [values[2 * row], values[2 * row + 1]], name: (row) => data.words[row], marks, arrows: /** @type {[number, number][]} */ (arrows),
  });
}
