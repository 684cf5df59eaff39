// @ts-check
/** Every pair of kinds: by how much one is better, and whether that is more than the random variation of the text. */
import { fixed, html } from "chainrule/draw";

/** @typedef {{ better: string, worse: string, bits_per_byte: number, bits_per_byte_interval: [number, number], real: boolean }} Pair */

/** @param {Element} element @param {{ kinds: string[], pairs: Pair[] }} data */
export function render(element, { kinds, pairs }) {
  if (pairs.length === 0) return void element.append(html("p", {}, "There is only one kind, so no differences."));
  const readout = html("output", { class: "readout", "aria-live": "polite" },
    "Blue: significant at 95 %. Grey: not significant on this text. Point at a cell, or move through them with the Tab key.");
  const found = new Map(pairs.map((pair) => [`${pair.worse} ${pair.better}`, pair]));
  const [worse, better] = [kinds.slice(1), kinds.slice(0, -1)];
  const head = html("tr", {}, html("td", {}), ...better.map((kind) => html("th", { scope: "col" }, kind)));
  const body = worse.map((row) => html("tr", {}, html("th", { scope: "row" }, row),
    ...better.map((column) => cell(found.get(`${row} ${column}`), readout))));
  element.append(html("div", { class: "scroll" },
    html("table", { class: "matrix" }, html("thead", {}, head), html("tbody", {}, ...body))), readout);
}

/** @param {Pair | undefined} pair @param {HTMLElement} readout */
function cell(pair, readout) {
  if (!pair) return html("td");
  const show = () => { readout.textContent = spoken(pair); };
  return html("td", { class: pair.real ? "real" : "", tabindex: 0, title: spoken(pair), focus: show, pointerenter: show },
    (pair.real ? "" : "≈ ") + fixed(pair.bits_per_byte));
}

/** @param {Pair} pair */
function spoken({ better, worse, bits_per_byte, bits_per_byte_interval: [low, high], real }) {
  const gap = `${fixed(bits_per_byte, 4)} bits per byte (${fixed(low, 4)} to ${fixed(high, 4)})`;
  return real ? `${better} is better than ${worse} by ${gap}.` : `${better} and ${worse} cannot be distinguished: ${gap}.`;
}
