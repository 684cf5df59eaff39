// @ts-check
/** A text with its tokens coloured by their bits: two models side by side, or their difference. */
import { choices, fixed, html } from "chainrule/draw";

/** @typedef {{ kind: string, begin: number, pieces: [string, number | null][], lossy?: boolean }} Strip `lossy`: the pieces do not reproduce the text */
/** @typedef {{ text: string, bits: (number | null)[] }} Span text, and its bits by one model, or by two */

const MODES = { side: "side by side", difference: "difference" };
const HOT = 12;     // bits at which the colour is full
const APART = 6;    // the same for a difference

/** `first`: the models that are shown at first. @param {Element} element
 * @param {{ strips: Strip[], first: string[] }} data @param {import("chainrule/state").State} state */
export function render(element, { strips, first }, state) {
  const chosen = () => ["one", "other"].map((name, place) =>
    strips.find((strip) => strip.kind === state.get(name, first[place])) ?? strips[0]);
  const readout = html("output", { class: "readout", "aria-live": "polite" }, "Point at a token, or focus the text and use the arrow keys.");
  const place = html("div", { class: "strips picture" });
  const scale = html("span", { class: "scale" });
  const draw = () => {
    const [one, other] = chosen();
    const difference = state.get("mode", "side") === "difference";
    scale.replaceChildren(...(difference ? [`${one.kind} predicts it better`, html("i", { class: "both" }), `${other.kind} predicts it better`]
      : ["0 bits", html("i", { class: "rise" }), `${HOT} or more`]));
    place.replaceChildren(...(difference ? [panel(`${one.kind} minus ${other.kind}`, merged(one, other), [one.kind, other.kind], readout)]
      : (one === other ? [one] : [one, other]).map((strip) => panel(strip.kind, alone(strip), [strip.kind], readout))));
  };
  const pick = (/** @type {string} */ name, /** @type {string} */ value) => { state.set(name, value); draw(); };
  const selects = ["one", "other"].map((name, number) => select(name, strips, chosen()[number].kind, (kind) => pick(name, kind)));
  element.append(html("div", { class: "choices" }, ...selects, choices("shown", MODES, state.get("mode", "side"), (mode) => pick("mode", mode)), scale), readout, place);
  draw();
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
    readout.replaceChildren(html("b", {}, visible(spans[at].text)), kinds.map((kind, number) => `${kind} ${inBits(spans[at].bits[number])}`).join(", "));
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
  const heat = Number.isNaN(value) ? 0 : Math.min(1, Math.abs(value) / (alone ? HOT : APART)) * 0.85;
  const tint = value < 0 ? ";--tint:var(--cold)" : "";
  return html("span", { class: "token", "data-bits": alone ? one : fixed(value, 4), style: `--heat:${heat.toFixed(3)}${tint}` }, text.replaceAll("\n", "↵\n"));
}

/** @param {number | null} bits */
const inBits = (bits) => (bits == null ? "infinite" : `${fixed(bits)} bits`);

/** White space made visible. @param {string} text */
const visible = (text) => `“${text.replaceAll("\n", "↵").replaceAll(" ", "·").replaceAll("\t", "⇥")}” `;
