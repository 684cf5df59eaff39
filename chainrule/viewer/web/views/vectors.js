// @ts-check
/** The tokens of a model as a map; the nearest neighbours of a word, or of a − b + c, with their cosines. */
import { choices, fixed, html } from "chainrule/draw";
import { unpack } from "chainrule/arrays";
import { plot } from "chainrule/plot";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ model: string, known: number, size: number, words: string[], map: Packed, shares: number[], vectors: Packed,
 *   first: string[], count: number }} Data */
/** @typedef {[string, number][]} Found words and their cosines, the nearest first */
/** @typedef {{ ask(options: Record<string, string>): Promise<{ found: Found } | null> }} Live */
/** @typedef {{ words: string[], units: Float64Array[], places: Map<string, number> }} Known */

const MODES = { near: "nearest to a word", analogy: "a − b + c" };
const NAMES = /** @type {const} */ (["a", "b", "c"]);
const APART = [80, 18];    // pixels across and down that names of words keep from each other

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  const known = directions(data);
  const controls = html("div", { class: "choices" });
  const formula = html("p", { class: "vectors-formula" });
  const answer = html("div", { "aria-live": "polite" });
  const map = html("div", { class: "vectors-map", role: "img", "aria-label": "a map of the tokens" });
  const mode = () => state.get("mode", "near");
  const asked = () => NAMES.slice(0, mode() === "near" ? 1 : 3).map((name, place) => state.get(name, data.first[place]));
  let turn = 0;
  const answered = async () => {
    const mine = ++turn;
    const words = asked(), exclude = state.get("exclude", "yes") === "yes";
    formula.textContent = words.length === 1 ? "cos(a, b) = a · b / |a||b|" : `${words[0]} − ${words[1]} + ${words[2]}, the sum of unit vectors`;
    const missing = words.find((word) => find(known, word) === undefined);
    const found = live ? await askServer(live, words, exclude) : missing === undefined ? nearest(known, words.map((word) => find(known, word) ?? 0), exclude, data.count) : null;
    if (mine !== turn) return;
    answer.replaceChildren(found ? table(found, choose) : html("p", {}, absent(missing ?? words[0], data, known, live)));
    await draw(map, data, known, words, found ?? [], choose);
  };
  const choose = (/** @type {string} */ word) => { state.set("mode", "near"); state.set("a", word); show(); };
  const show = () => {
    controls.replaceChildren(choices("find", MODES, mode(), (value) => { state.set("mode", value); show(); }),
      ...asked().map((word, place) => field(NAMES[place], word, mode() === "near", (value) => { state.set(NAMES[place], value); answered(); })),
      ...(mode() === "near" ? [] : [without(state, answered)]));
    return answered();
  };
  const list = html("datalist", { id: "vectors-words" }, ...data.words.map((value) => html("option", { value })));
  element.append(controls, list, formula, html("div", { class: "vectors-both picture" }, answer, map), html("p", { class: "note" }, about(data, known, live)));
  return show().then(() => undefined);
}

/** @param {string} name @param {string} word @param {boolean} alone @param {(word: string) => void} onchange */
function field(name, word, alone, onchange) {
  return html("label", {}, alone ? "word " : `${name} `, html("input", { class: "vectors-word", "data-which": name, "aria-label": alone ? "word" : name, list: "vectors-words",
    value: word, autocomplete: "off", autocapitalize: "off", spellcheck: "false", change: (event) => onchange(/** @type {HTMLInputElement} */ (event.target).value.trim()) }));
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

/** @param {Live} live @param {string[]} words @param {boolean} exclude @returns {Promise<Found | null>} */
async function askServer(live, words, exclude) {
  const named = Object.fromEntries(words.map((word, place) => [NAMES[place], word]));
  return (await live.ask({ ask: "yes", mode: words.length === 1 ? "near" : "analogy", ...named, exclude: exclude ? "yes" : "no" }))?.found ?? null;
}

/** @param {Found} found @param {(word: string) => void} choose */
function table(found, choose) {
  const rows = found.map(([word, cosine]) => html("tr", {}, html("th", { scope: "row" }, html("button", { type: "button", click: () => choose(word) }, word)),
    html("td", { "data-cosine": cosine }, fixed(cosine, 4)),
    html("td", {}, html("span", { class: cosine < 0 ? "vectors-bar opposite" : "vectors-bar", style: `width:${(100 * Math.min(1, Math.abs(cosine))).toFixed(2)}%` }))));
  const head = html("tr", {}, ...["token", "cosine", ""].map((name) => html("th", { scope: "col" }, name)));
  return html("div", { class: "scroll" }, html("table", { class: "vectors-found" }, html("thead", {}, head), html("tbody", {}, ...rows)));
}

/** @param {string} word @param {Data} data @param {Known} known @param {Live | null} live */
function absent(word, data, known, live) {
  if (live) return `There is no answer for “${word}”.`;
  const rest = known.units.length < data.known ? " Open it with `chainrule look RUN` to ask for any of them." : "";
  return `“${word}” is not among the ${known.units.length.toLocaleString("en")} tokens whose vectors are in this page.${rest}`;
}

/** How many vectors there are, and how many are shown. @param {Data} data @param {Known} known @param {Live | null} live */
function about(data, known, live) {
  const percent = (/** @type {number} */ share) => `${fixed(100 * share, 1)} %`;
  const over = live ? data.known : known.units.length;
  return `${data.model}: vectors of ${data.size} numbers. Cosines are over ${over.toLocaleString("en")} of ${data.known.toLocaleString("en")} tokens. `
    + `The map shows ${data.words.length.toLocaleString("en")}, by the two directions of largest variance (PCA): ${percent(data.shares[0])} and ${percent(data.shares[1])} of it. `
    + "Words that are close on the map may be far apart in the other directions.";
}

/** @param {HTMLElement} map @param {Data} data @param {Known} known @param {string[]} asked @param {Found} found @param {(word: string) => void} choose */
async function draw(map, data, known, asked, found, choose) {
  const { values } = unpack(data.map);
  const place = new Map(data.words.map((word, row) => [word, row]));
  const words = asked.map((word) => known.words[find(known, word) ?? -1] ?? word).filter((word) => place.has(word));
  const marked = found.map(([word]) => word).filter((word) => place.has(word) && !words.includes(word));
  const named = spread([...new Set([...words, ...marked, ...data.words])], (word, axis) => values[2 * (place.get(word) ?? 0) + axis], [map.clientWidth, map.clientHeight]);
  const at = (/** @type {string[]} */ some) => ({ x: some.map((word) => values[2 * (place.get(word) ?? 0)]), y: some.map((word) => values[2 * (place.get(word) ?? 0) + 1]),
    customdata: some, hovertext: some, text: some.map((word) => (named.has(word) || word === marked[0] ? word : "")) });
  const points = { type: "scatter", hoverinfo: "text", showlegend: false };
  const around = data.words.filter((word) => named.has(word) && !words.includes(word) && !marked.includes(word));
  const traces = [
    { ...points, ...at(data.words), mode: "markers", marker: { size: 5, color: "rgb(var(--cold) / 0.28)" } },
    { ...points, ...at(around), mode: "text", textfont: { size: 11, color: "var(--soft)" }, hoverinfo: "skip" },
    ...steps(words, marked).map((step) => ({ ...points, ...at(step), mode: "lines", line: { color: "var(--hue4)", width: 2, dash: "dot" }, hoverinfo: "skip" })),
    { ...points, ...at(marked), mode: "markers+text", textposition: "top center", marker: { size: 8, color: "var(--hue0)" }, textfont: { color: "var(--hue0)" } },
    { ...points, ...at(words), text: words, mode: "markers+text", textposition: "top center", marker: { size: 11, color: "var(--hue1)", symbol: "diamond" }, textfont: { color: "var(--hue1)", size: 15 } },
  ];
  await plot(map, traces, { hovermode: "closest", dragmode: "pan", margin: { l: 40, r: 10, t: 10, b: 40 }, xaxis: { title: { text: "first direction" } }, yaxis: { title: { text: "second" } } });
  const drawn = /** @type {any} */ (map);
  drawn.removeAllListeners?.("plotly_click");
  drawn.on?.("plotly_click", (/** @type {any} */ event) => choose(event.points[0].customdata));
}

/** Words whose names do not cover each other, the first first.
 * @param {string[]} words @param {(word: string, axis: 0 | 1) => number} where @param {number[]} size of the map, in pixels @returns {Set<string>} */
function spread(words, where, size) {
  const apart = APART.map((pixels, axis) => {
    const along = words.map((word) => where(word, /** @type {0 | 1} */ (axis)));
    return (pixels / (size[axis] || 1)) * (Math.max(...along) - Math.min(...along) || 1);
  });
  /** @type {Set<string>} */
  const kept = new Set();
  const covers = (/** @type {string} */ one, /** @type {string} */ other) => Math.abs(where(one, 0) - where(other, 0)) < apart[0] && Math.abs(where(one, 1) - where(other, 1)) < apart[1];
  for (const word of words) if (![...kept].some((other) => covers(word, other))) kept.add(word);
  return kept;
}

/** From b to a, and as far from c. @param {string[]} words @param {string[]} marked */
const steps = (words, marked) => (words.length < 3 ? [] : [[words[1], words[0]], ...(marked.length ? [[words[2], marked[0]]] : [])]);
