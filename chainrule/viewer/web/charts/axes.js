// @ts-check
/** Axes of charts: linear and logarithmic scales, ticks that do not touch each other, grid lines and titles. */
import { short, svg } from "chainrule/draw";

/** @typedef {{ title: string, low: number, high: number, log?: boolean, ticks?: number[], write?: (value: number) => string }} Axis
 *   `ticks`: where they may be; else at round numbers */
/** @typedef {{ left: number, right: number, top: number, bottom: number }} Frame edges of the picture inside the axes, in pixels */
/** @typedef {(value: number) => number} Scale from a value to its pixel */

export const LETTER = 8;     // pixels of a letter of a tick, at most
const LINE = 20;             // pixels between two ticks of the y axis, at least

/** @param {{ low: number, high: number, log?: boolean }} axis @param {number} from @param {number} to pixels of its two ends @returns {Scale} */
export function scale({ low, high, log }, from, to) {
  const at = log ? Math.log : (/** @type {number} */ value) => value;
  const span = at(high) - at(low) || 1;
  return (value) => from + ((to - from) * (at(value) - at(low))) / span;
}

/** From the smallest value to the largest, and a little more; a log axis has no place for 0.
 * @param {Iterable<number | null>} values @param {boolean} [log] @param {number} [more] share of the range on both sides */
export function range(values, log = false, more = 0.04) {
  let low = Infinity, high = -Infinity;
  for (const value of values)
    if (value != null && Number.isFinite(value) && (!log || value > 0)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high) return { low: log ? 0.1 : 0, high: 1 };
  if (log) {
    const by = high > low ? (high / low) ** more : 2;
    return { low: low / by, high: high * by };
  }
  const by = (high - low) * more || Math.abs(high) / 2 || 1;
  return { low: low - by, high: high + by };
}

/** 1, 2 or 5 times a power of ten, and no less than what is given. @param {number} rough */
export function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough) + 1e-9);
  return power * ([1, 2, 5].find((step) => step * power >= rough * (1 - 1e-9)) ?? 10);
}

/** Round numbers along an axis. @param {Axis} axis @param {number} most how many there may be */
export function ticksOf({ low, high, log, ticks }, most) {
  if (ticks) return ticks.filter((value) => value >= low && value <= high);
  const found = log ? powers(low, high, most) : [];
  if (found.length > 1) return found;
  const step = niceStep((high - low) / Math.max(1, most) || 1), first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) }, (_, place) => Number(((first + place) * step).toPrecision(12)));
}

/** Powers of ten; with 2 and 5 times each if there is room, or only every second, third, … @param {number} low @param {number} high @param {number} most */
function powers(low, high, most) {
  const decades = Math.log10(high / low), every = Math.max(1, Math.ceil(decades / most));
  const found = [];
  for (let power = every * Math.floor(Math.log10(low) / every); 10 ** power <= high; power += every)
    for (const step of 3 * decades <= most ? [1, 2, 5] : [1]) found.push(Number(`${step}e${power}`));
  return found.filter((value) => value >= low && value <= high);
}

/** Those ticks whose labels do not touch. @param {number[]} ticks @param {Scale} place @param {(tick: number) => number} size of a label, in pixels */
function spaced(ticks, place, size) {
  /** @type {number[]} */
  const kept = [];
  for (const tick of ticks) {
    const last = kept.at(-1);
    if (last === undefined || Math.abs(place(tick) - place(last)) >= (size(tick) + size(last)) / 2) kept.push(tick);
  }
  return kept;
}

/** 1k, 2M, 0.5; a minus that is one. @param {number} value */
export const plain = (value) => short(value).replace("-", "−");

/** 10⁻³, 2·10⁵. @param {number} value */
export function scientific(value) {
  const [digits, power] = value.toExponential(0).split("e");
  const raised = [...power.replace("+", "")].map((letter) => (letter === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(letter)])).join("");
  return `${digits === "1" ? "" : `${digits}·`}10${raised}`.replace("-", "−");
}

/** The edges of a picture: at the left there is room for the ticks of y, at the top for its title, below for ticks and title of x.
 * @param {number} width @param {number} height @param {Axis} y @param {number} right pixels for names at the right @returns {Frame} */
export function frameOf(width, height, y, right) {
  const longest = Math.max(2, ...ticksOf(y, (height - 90) / LINE / 2).map((value) => (y.write ?? plain)(value).length));
  return { left: LETTER * longest + 14, right: width - right, top: 30, bottom: height - 52 };
}

/** Grid lines, ticks and titles. The title of y stands above its ticks, so that it never covers one.
 * @param {Axis} x @param {Axis} y @param {Frame} frame @returns {SVGElement[]} */
export function grid(x, y, { left, right, top, bottom }) {
  const across = scale(x, left, right), up = scale(y, bottom, top);
  const [writeX, writeY] = [x.write ?? plain, y.write ?? plain];
  const columns = spaced(ticksOf(x, (right - left) / 80), across, (tick) => LETTER * writeX(tick).length + 12);
  const rows = spaced(ticksOf(y, (bottom - top) / LINE / 2), up, () => LINE);
  return [
    ...rows.flatMap((value) => [svg("line", { class: "grid", x1: left, x2: right, y1: up(value), y2: up(value) }),
      svg("text", { class: "tick", x: left - 8, y: up(value) + 5, "text-anchor": "end", "data-axis": "y", "data-value": value, "data-at": up(value) }, writeY(value))]),
    ...columns.flatMap((value) => [svg("line", { class: "grid", x1: across(value), x2: across(value), y1: top, y2: bottom }),
      svg("text", { class: "tick", x: across(value), y: bottom + 20, "text-anchor": "middle", "data-axis": "x", "data-value": value, "data-at": across(value) }, writeX(value))]),
    svg("text", { class: "axis-title", x: (left + right) / 2, y: bottom + 44, "text-anchor": "middle" }, x.title),
    svg("text", { class: "axis-title", x: 4, y: 16 }, y.title),
  ];
}

/** Names beside the ends of lines, from top to bottom, pushed apart where they would meet. @param {{ name: string, x: number, at: number, color: string, model?: string, before?: boolean }[]} named `before`: left of x
 * @param {{ top: number, bottom: number }} frame @param {number} apart pixels @returns {SVGElement[]} */
export function endLabels(named, { top, bottom }, apart) {
  const sorted = [...named].sort((one, other) => one.at - other.at);
  let last = top - apart;
  const places = sorted.map(({ at }, place) => (last = Math.max(last + apart, Math.min(at + 4, bottom - apart * (sorted.length - 1 - place)))));
  return sorted.map(({ name, x, color, model, before }, place) => svg("text", { class: "end-label", "data-model": model, x: before ? x - 12 : x, "text-anchor": before ? "end" : "start", y: places[place], style: `fill:${color}` }, name));
}
