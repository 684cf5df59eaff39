// @ts-check
/** A text with its tokens coloured by their bits: models side by side with their totals, or the difference of two. */
import { choices, fixed, html, scrolling, visible } from "chainrule/draw";

/** @typedef {{ tokens: number, bits: number | null, bits_per_byte: number | null, perplexity: number | null, tokenizer: string }} Totals */
/** @typedef {{ kind: string, begin: number, pieces: [string, number | null][], lossy?: boolean, totals?: Totals }} Strip `lossy`: the pieces do not reproduce the text */
/** @typedef {{ text: string, bits: (number | null)[] }} Span text, and its bits by one model, or by two */

const MODES = { side: "side by side", difference: "difference" };
const HOT = 12;     // bits at which the colour is full
const APART = 6;    // the same for a difference

/** `first`: the models that are shown at first; all of them side by side, or two that can be exchanged for others. @param {Element} element
 * @param {{ strips: Strip[], first: string[] }} data @param {import("chainrule/state").State} state */
export function render(element, { strips, first }, state) {
  const one = (/** @type {string} */ name, /** @type {number} */ place) => strips.find((strip) => strip.kind === state.get(name, first[place] ?? first[0])) ?? strips[0];
  const pair = () => [one("one", 0), one("other", 1)];
  const all = first.length === strips.length;
  const readout = html("output", { class: "readout", "aria-live": "polite" }, "Point at a token, or focus the text and use the arrow keys.");
  const place = html("div", { class: "strips picture" });
  const scale = html("span", { class: "scale" });
  const selects = ["one", "other"].map((name, number) => select(name, strips, pair()[number].kind, (kind) => { state.set(name, kind); draw(); }));
  const note = html("p", { class: "note" });
  const draw = () => {
    const [one, other] = pair();
    const difference = strips.length > 1 && state.get("mode", "side") === "difference";
    for (const one of selects) one.hidden = all && !difference;
    note.textContent = difference || all || strips.length < 3 ? "" : `Two of ${strips.length} models are shown; choose others above.`;
    scale.replaceChildren(...(difference ? [`${one.kind} predicts it better: −${APART} bits or fewer`, html("i", { class: "both" }), `${other.kind} predicts it better: ${APART} or more`]
      : ["0 bits", html("i", { class: "rise" }), `${HOT} or more`]));
    const shown = all ? strips : one === other ? [one] : [one, other];
    place.replaceChildren(...(difference ? [panel(`${one.kind} minus ${other.kind}`, merged(one, other), [one.kind, other.kind], readout)]
      : shown.map((strip) => panel(strip.kind, alone(strip), [strip.kind], readout))));
  };
  const modes = strips.length > 1 ? [choices("shown", MODES, state.get("mode", "side"), (mode) => { state.set("mode", mode); draw(); })] : [];
  element.append(html("div", { class: "choices" }, ...(strips.length > 1 ? selects : []), ...modes, scale), ...totals(strips), note, readout, place);
  draw();
}

/** Which model predicts the text best, and the numbers. @param {Strip[]} strips */
function totals(strips) {
  const scored = strips.flatMap(({ kind, totals, lossy = false }) => (totals?.tokens ? [{ kind, lossy, ...totals }] : []));
  if (!scored.length) return [];
  const titles = ["model", "bits", "bits per byte", "perplexity", "tokens"];
  const [best] = comparable(scored);
  const rows = scored.map((one) => html("tr", { class: one === best && scored.length > 1 ? "best" : "", "data-model": one.kind }, html("th", { scope: "row" }, one.kind),
    html("td", { class: "bits", "data-bits": one.bits, title: one.bits }, one.bits == null ? "infinite" : fixed(one.bits, 1)), html("td", { title: one.bits_per_byte }, fixed(one.bits_per_byte)),
    html("td", { title: one.perplexity }, one.bits == null ? "infinite" : fixed(one.perplexity, 2)), html("td", {}, one.tokens.toLocaleString("en"))));
  return [html("p", { class: "surprise-best" }, verdict(scored)), scrolling("the bits of the text", html("table", { class: "surprise-totals" },
    html("thead", {}, html("tr", {}, ...titles.map((title) => html("th", { scope: "col" }, title)))), html("tbody", {}, ...rows)))];
}

/** Models whose bits can be compared, the best first: their tokens give the text back, or are the same.
 * @template {{ kind: string, lossy: boolean, bits: number | null, tokenizer: string }} One @param {One[]} scored @returns {One[]} */
function comparable(scored) {
  const same = scored.every(({ tokenizer }) => tokenizer === scored[0].tokenizer);
  return scored.filter(({ lossy }) => same || !lossy).sort((one, other) => (one.bits ?? Infinity) - (other.bits ?? Infinity));
}

/** @param {{ kind: string, lossy: boolean, bits: number | null, tokenizer: string }[]} scored */
function verdict(scored) {
  const [best, second] = comparable(scored), left = scored.filter((one) => !comparable(scored).includes(one)).map(({ kind }) => kind);
  const without = left.length ? ` The tokens of ${left.join(", ")} do not give the text back, so ${left.length > 1 ? "their bits" : "its bits"} cannot be compared.` : "";
  if (!best || best.bits == null) return `${scored.length > 1 && !without ? "No model gives this text a probability." : ""}${without}`;
  if (!second) return without;
  const gap = second.bits == null ? "" : second.bits - best.bits;
  if (gap === 0) return `${best.kind} and ${second.kind} predict this text equally well, with ${fixed(best.bits, 1)} bits.${without}`;
  return `${best.kind} predicts this text best, with ${fixed(best.bits, 1)} bits: ${gap === "" ? `${second.kind} gives it probability 0` : `${fixed(gap, 1)} fewer than ${second.kind}`}.${without}`;
}

/** @param {string} name @param {Strip[]} strips @param {string} chosen @param {(kind: string) => void} onchange */
function select(name, strips, chosen, onchange) {
  const options = strips.map(({ kind }) => html("option", { value: kind, selected: kind === chosen }, kind));
  return html("select", { "aria-label": `${name} model`, "data-which": name,
    change: (event) => onchange(/** @type {HTMLSelectElement} */ (event.target).value) }, ...options);
}

/** @param {Strip} strip @returns {Span[]} */
const alone = (strip) => strip.pieces.map(([text, bits]) => ({ text, bits: [bits] }));

/** Spans that end where tokens of both models end, so that different tokenizers can be compared; none if one of them
 * does not reproduce the text. @param {Strip} one @param {Strip} other @returns {Span[]} */
export function merged(one, other) {
  if ((one.lossy || other.lossy) && spelled(one) !== spelled(other)) return [];
  const [ends, others] = [sums(one), sums(other)];
  const shared = [...ends.keys()].filter((end) => others.has(end));
  const text = new Map();
  const encoder = new TextEncoder();
  let at = one.begin, before = "";
  for (const [piece] of one.pieces) {
    at += encoder.encode(piece).length;
    before += piece;
    text.set(at, before);
  }
  text.set(one.begin, "");
  const minus = (/** @type {number | null | undefined} */ a, /** @type {number | null | undefined} */ b) => (a == null || b == null ? null : a - b);
  return shared.slice(1).map((end, place) => ({
    text: text.get(end).slice(text.get(shared[place]).length),
    bits: [minus(ends.get(end), ends.get(shared[place])), minus(others.get(end), others.get(shared[place]))],
  }));
}

/** @param {Strip} strip */
const spelled = (strip) => strip.pieces.map(([text]) => text).join("");

/** All bits up to each end of a token, by its place in bytes. @param {Strip} strip @returns {Map<number, number | null>} */
function sums(strip) {
  const encoder = new TextEncoder();
  let at = strip.begin;
  /** @type {number | null} */
  let total = 0;
  /** @type {Map<number, number | null>} */
  const found = new Map([[at, 0]]);
  for (const [text, bits] of strip.pieces) {
    at += encoder.encode(text).length;
    total = total == null || bits == null ? null : total + bits;
    found.set(at, total);
  }
  return found;
}

/** @param {string} title @param {Span[]} spans @param {string[]} kinds @param {HTMLElement} readout */
function panel(title, spans, kinds, readout) {
  if (!spans.length) return html("section", { class: "strip" }, html("h3", {}, title), html("p", { class: "note" }, kinds.length > 1 && kinds[0] !== kinds[1]
    ? "There is no place in the text where tokens of both end." : "The text is empty."));
  const tokens = spans.map(token);
  const text = html("p", { class: "text", tabindex: 0, role: "group", "aria-label": `${title}, token by token` }, ...tokens);
  let at = -1;
  const show = (/** @type {number} */ place) => {
    tokens[at]?.classList.remove("chosen");
    at = Math.min(tokens.length - 1, Math.max(0, place));
    tokens[at]?.classList.add("chosen");
    readout.replaceChildren(html("b", {}, `“${visible(spans[at].text)}” `), kinds.map((kind, number) => `${kind} ${inBits(spans[at].bits[number])}`).join(", "));
  };
  text.addEventListener("pointerover", (event) => {
    const place = tokens.indexOf(/** @type {HTMLElement} */ (event.target));
    if (place >= 0) show(place);
  });
  text.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -20, ArrowDown: 20, Home: -tokens.length, End: tokens.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(at + step);
  });
  return html("section", { class: "strip" }, html("h3", {}, title), text);
}

/** @param {Span} span */
function token({ text, bits: [one, other] }) {
  const alone = other === undefined;
  const value = alone ? (one ?? Infinity) : (one ?? Infinity) - (other ?? Infinity);
  const heat = Number.isNaN(value) ? 0 : Math.min(1, Math.abs(value) / (alone ? HOT : APART));
  const tint = value < 0 ? ";--tint:var(--cold)" : "";
  return html("span", { class: "token", "data-bits": alone ? one : value.toFixed(4), style: `--heat:${heat.toFixed(3)}${tint}` }, text.replaceAll("\n", "↵\n"));
}

/** @param {number | null} bits */
const inBits = (bits) => (bits == null ? "infinite" : `${fixed(bits)} bits`);
