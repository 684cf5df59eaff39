// @ts-check
/** Bits per byte against tokens, seconds or FLOPs; counting models are level lines. Arrow keys move along the curves. */
import { choices, fixed, html, hue, short } from "chainrule/draw";
import { range } from "chainrule/axes";
import { makeChart } from "chainrule/chart";

/** @typedef {{ tokens: number, seconds: number, bits_per_byte: number | null, held_out: boolean }} Point */
/** @typedef {{ kind: string, color: number, flops: number, points: Point[], end: Point }} Curve */
/** @typedef {{ curves: Curve[], levels: { name: string, bits_per_byte: number }[] }} Data */
/** @typedef {"tokens" | "seconds" | "flops"} Axis */

const AXES = { tokens: "tokens", seconds: "seconds", flops: "FLOPs" };
const DASHES = [undefined, "9 3", "3 3", "9 3 3 3", "14 4", "5 2"];
const SHOWN = 60;

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  if (data.curves.length === 0) return void element.append(html("p", {}, "None of these kinds is trained step by step."));
  const chart = makeChart();
  const axis = () => /** @type {Axis} */ (state.get("x", "seconds") in AXES ? state.get("x", "seconds") : "seconds");
  const draw = () => chart.show(picture(data, axis()));
  element.append(choices("against", AXES, axis(), (value) => { state.set("x", value); draw(); }), chart.element);
  draw();
}

/** Where a point lies along an axis. @param {Curve} curve @param {Point} point @param {Axis} axis */
const along = (curve, point, axis) => (axis === "flops" ? point.tokens * curve.flops : point[axis]);

/** x by its logarithm, y from the lowest line to the first level, or to the worst final result. @param {Data} data @param {Axis} axis @returns {import("chainrule/chart").Picture} */
function picture(data, axis) {
  const bits = data.curves.flatMap((curve) => [...curve.points, curve.end].map((point) => point.bits_per_byte ?? NaN)).filter(Number.isFinite);
  const levels = data.levels.map((level) => level.bits_per_byte), ends = data.curves.map((curve) => curve.end.bits_per_byte ?? 0);
  const low = Math.min(...bits, ...levels) * 0.96, high = Math.max(...ends, ...levels, low * 1.2) * 1.06;
  const curves = data.curves.map((curve) => ({ ...curve, smooth: thinned(curve.points) }));
  const x = range(curves.flatMap((curve) => [...curve.smooth, curve.end].filter((point) => (point.bits_per_byte ?? Infinity) <= high).map((point) => along(curve, point, axis))), true, 0.01);
  const ordered = [...data.levels.map((level) => ({ name: level.name, color: "var(--ink)", label: `${level.name} ${fixed(level.bits_per_byte)}`, class: `level ${level.name}`, guide: true, width: level.name === "ngram" ? 2.25 : 1.5,
    dash: level.name === "ngram" ? undefined : "6 5", points: /** @type {[number, number][]} */ ([[x.low, level.bits_per_byte], [x.high, level.bits_per_byte]]) }))];
  return {
    title: "Bits per byte while training", x: { title: `${AXES[axis]} of training (log scale)`, log: true, ...x },
    y: { title: "bits per byte", low, high, write: (value) => fixed(value, high - low < 0.6 ? 2 : 1) },
    lines: [...ordered, ...curves.flatMap((curve, place) => lines(curve, place, axis, x.low))],
    say: (value) => [html("b", {}, `${short(value)} ${AXES[axis]}`), ...curves.flatMap((curve) => {
      const known = curve.smooth.filter((point) => along(curve, point, axis) <= value * 1.0001).at(-1)?.bits_per_byte;
      return known == null ? [] : [html("span", { style: `color:${hue(curve.color)}` }, `${curve.kind} ${fixed(known)}`)];
    })],
  };
}

/** The training loss, and the evaluations with the final result. @param {Curve & { smooth: Point[] }} curve @param {number} place @param {Axis} axis @param {number} first x where the chart begins @returns {import("chainrule/chart").Line[]} */
function lines(curve, place, axis, first) {
  const at = (/** @type {Point[]} */ points) => points.map((point) => /** @type {[number, number | null]} */ ([Math.max(first, along(curve, point, axis)), point.bits_per_byte]));
  const evaluations = curve.points.filter((point) => point.held_out), color = hue(curve.color);
  const heldOut = curve.end.bits_per_byte == null ? evaluations : [...evaluations, curve.end];
  return [
    { name: curve.kind, class: "curve", color, width: 1.75, dash: DASHES[place % DASHES.length], points: at(curve.smooth) },
    { name: `${curve.kind} on held-out text`, class: "evaluations", guide: true, color, width: 2.75, points: at(heldOut), label: curve.end.bits_per_byte == null ? undefined : `${curve.kind} ${fixed(curve.end.bits_per_byte)}` },
    { name: `${curve.kind} on held-out text`, guide: true, color, as: "dots", points: at(heldOut) },
  ];
}

/** The logged training loss, smoothed to at most SHOWN means of neighbouring points. @param {Point[]} points */
function thinned(points) {
  const logged = points.filter((point) => !point.held_out);
  const each = Math.ceil(logged.length / SHOWN);
  const mean = (/** @type {Point[]} */ some, /** @type {"tokens" | "seconds" | "bits_per_byte"} */ name) =>
    some.reduce((sum, point) => sum + (point[name] ?? 0), 0) / some.length;
  return Array.from({ length: Math.ceil(logged.length / each) }, (_, place) => logged.slice(place * each, (place + 1) * each))
    .map((some) => ({ tokens: mean(some, "tokens"), seconds: mean(some, "seconds"), bits_per_byte: mean(some, "bits_per_byte"), held_out: false }));
}
