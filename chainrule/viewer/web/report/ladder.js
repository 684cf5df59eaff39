// @ts-check
/** Every kind with its bits per byte: a bar from zero, and on it the 95 % interval. */
import { fixed, html, hue, scrolling, svg } from "chainrule/draw";

/** @typedef {{ kind: string, idea: string, bits_per_byte: number | null, bits_per_byte_interval: [number, number] | null,
 *   perplexity: number | null, gap: number | null, gap_interval: [number, number] | null, why: string | null,
 *   color: number | null }} Row */

/** @param {Element} element @param {{ rows: Row[], truth: number | null }} data */
export function render(element, { rows, truth }) {
  const known = rows.map((row) => row.bits_per_byte).filter((bits) => bits != null);
  const [best, most] = [Math.min(...known), Math.max(...known)];
  const names = ["kind", unseen("as a bar"), "bits per byte", "95 % interval", ...(truth == null ? [] : ["gap", "its interval"]), unseen("what it is")];
  const head = html("tr", {}, ...names.map((name) => html("th", { scope: "col" }, name)));
  const body = rows.map((row) => html("tr", { class: row.bits_per_byte === best ? "best" : "" },
    html("th", { scope: "row" }, row.kind),
    html("td", { class: "bar" }, bar(row, most, truth)),
    html("td", { class: "bits", title: row.bits_per_byte ?? row.why }, row.bits_per_byte == null ? "infinite" : fixed(row.bits_per_byte)),
    html("td", { class: "interval" }, between(row.bits_per_byte_interval)),
    ...(truth == null ? [] : [html("td", { class: "gap" }, fixed(row.gap)), html("td", {}, between(row.gap_interval))]),
    html("td", { class: "idea" }, row.idea)));
  element.append(scrolling("the ladder",
    html("table", {}, html("thead", {}, head), html("tbody", {}, ...body))));
}

/** A name that only a screen reader says. @param {string} name */
const unseen = (name) => html("span", { class: "unseen" }, name);

/** @param {[number, number] | null} interval */
const between = (interval) => (interval == null ? "–" : `${fixed(interval[0])} to ${fixed(interval[1])}`);

/** @param {Row} row @param {number} most @param {number | null} truth */
function bar(row, most, truth) {
  if (row.bits_per_byte == null || row.bits_per_byte_interval == null) return html("span", {}, row.why);
  const [low, high] = row.bits_per_byte_interval.map((bits) => `${(100 * bits) / most}%`);
  return svg("svg", { "aria-hidden": true },
    svg("rect", { width: `${(100 * row.bits_per_byte) / most}%`, height: "100%", rx: 3, fill: hue(row.color), opacity: 0.45 }),
    svg("line", { x1: low, x2: high, y1: "50%", y2: "50%", stroke: "var(--ink)", "stroke-width": 3 }),
    truth == null ? null : svg("line", { x1: `${(100 * truth) / most}%`, x2: `${(100 * truth) / most}%`, y1: "-15%", y2: "115%",
      stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "3 2" }));
}
