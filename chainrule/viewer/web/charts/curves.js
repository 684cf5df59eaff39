// @ts-check
/** Bits per byte against tokens, seconds or FLOPs; counting models are level lines. Arrow keys move along the curves. */
import { choices, fixed, html, hue, short, svg } from "chainrule/draw";

/** @typedef {{ tokens: number, seconds: number, bits_per_byte: number | null, held_out: boolean }} Point */
/** @typedef {{ kind: string, color: number, flops: number, points: Point[], end: Point }} Curve */
/** @typedef {{ curves: Curve[], levels: { name: string, bits_per_byte: number }[] }} Data */
/** @typedef {"tokens" | "seconds" | "flops"} Axis */
/** @typedef {{ x: (value: number) => number, y: (bits: number) => number, low: number, high: number, top: number, bottom: number }} Scale */

const AXES = { tokens: "tokens", seconds: "seconds", flops: "FLOPs" };
const DASHES = ["", "9 3", "3 3", "9 3 3 3", "14 4", "5 2"];
const NARROW = 600;
const SHOWN = 60;

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  if (data.curves.length === 0) return void element.append(html("p", {}, "None of these kinds is trained step by step."));
  const readout = html("output", { class: "readout", "aria-live": "polite" }, "Point at the chart, or focus it and use the arrow keys.");
  const place = html("div");
  const draw = () => {
    const axis = /** @type {Axis} */ (state.get("x", "seconds"));
    const wide = element.clientWidth >= NARROW;
    place.replaceChildren(chart(data, axis, readout, wide ? 1000 : 560, wide ? 460 : 520));
  };
  element.append(choices("against", AXES, state.get("x", "seconds"), (value) => { state.set("x", value); draw(); }), place, readout);
  draw();
  new ResizeObserver(draw).observe(element);
}

/** Where a point lies along an axis. @param {Curve} curve @param {Point} point @param {Axis} axis */
const along = (curve, point, axis) => (axis === "flops" ? point.tokens * curve.flops : point[axis]);

/** @param {Data} data @param {Axis} axis @param {HTMLElement} readout @param {number} width @param {number} height */
function chart(data, axis, readout, width, height) {
  const margin = width < 800 ? { left: 78, right: 190, top: 18, bottom: 66 } : { left: 58, right: 160, top: 14, bottom: 48 };
  const scale = scales(data, axis, width, height, margin);
  const made = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img",
    "aria-label": `bits per byte against ${AXES[axis]}` });
  made.append(
    svg("clipPath", { id: "inside" }, svg("rect", { x: margin.left, y: margin.top, width: width - margin.left - margin.right, height: height - margin.top - margin.bottom })),
    ...grid(scale, axis, width, height, margin),
    ...data.levels.map((level) => levelLine(level, scale, width, margin)),
    ...data.curves.flatMap((curve, place) => curveLines(curve, place, axis, scale)),
    ...labels(data, scale, width, margin));
  listen(made, data, axis, scale, readout, height, margin);
  return made;
}

/** x by its logarithm, y from the lowest line to the first level, or to the worst final result.
 * @param {Data} data @param {Axis} axis @param {number} width @param {number} height
 * @param {{ left: number, right: number, top: number, bottom: number }} margin @returns {Scale} */
function scales(data, axis, width, height, margin) {
  const bits = data.curves.flatMap((curve) => [...curve.points, curve.end].map((point) => point.bits_per_byte ?? NaN)).filter(Number.isFinite);
  const levels = data.levels.map((level) => level.bits_per_byte);
  const ends = data.curves.map((curve) => curve.end.bits_per_byte ?? 0);
  const bottom = Math.min(...bits, ...levels) * 0.96;
  const top = Math.max(...ends, ...levels, bottom * 1.2) * 1.06;
  const xs = data.curves.flatMap((curve) => [...thinned(curve.points), curve.end]
    .filter((point) => (point.bits_per_byte ?? Infinity) <= top).map((point) => along(curve, point, axis))).filter((x) => x > 0);
  const [low, high] = [Math.min(...xs) * 0.9, Math.max(...xs)];
  const [right, floor] = [width - margin.right, height - margin.bottom];
  const span = Math.log(high / low) || 1;
  return {
    x: (value) => margin.left + ((right - margin.left) * Math.log(Math.max(value, low) / low)) / span,
    y: (value) => floor - ((floor - margin.top) * (value - bottom)) / (top - bottom),
    low, high, top, bottom,
  };
}

/** @param {Scale} scale @param {Axis} axis @param {number} width @param {number} height @param {{ left: number, right: number, top: number, bottom: number }} margin */
function* grid(scale, axis, width, height, margin) {
  const step = niceStep((scale.top - scale.bottom) / 6);
  for (let bits = Math.ceil(scale.bottom / step) * step; bits <= scale.top; bits += step) {
    yield svg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: scale.y(bits), y2: scale.y(bits) });
    yield svg("text", { class: "tick", x: margin.left - 8, y: scale.y(bits) + 5, "text-anchor": "end" }, fixed(bits, step < 0.1 ? 2 : 1));
  }
  for (const value of ticks(scale.low, scale.high)) {
    yield svg("line", { class: "grid", x1: scale.x(value), x2: scale.x(value), y1: margin.top, y2: height - margin.bottom });
    yield svg("text", { class: "tick", x: scale.x(value), y: height - margin.bottom + 22, "text-anchor": "middle" }, short(value));
  }
  yield svg("text", { x: (margin.left + width - margin.right) / 2, y: height - 8, "text-anchor": "middle" }, `${AXES[axis]} of training (log scale)`);
  yield svg("text", { transform: `translate(${margin.left - 42} ${height / 2}) rotate(-90)`, "text-anchor": "middle" }, "bits per byte");
}

/** 1, 2 or 5 times a power of ten. @param {number} rough */
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * (rough / power >= 5 ? 5 : rough / power >= 2 ? 2 : 1);
}

/** @param {number} low @param {number} high */
function ticks(low, high) {
  const steps = high / low < 500 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    for (const step of steps) if (power * step >= low && power * step <= high) found.push(power * step);
  const every = Math.ceil(found.length / 10);
  return found.filter((_, place) => place % every === 0);
}

/** @param {{ name: string, bits_per_byte: number }} level @param {Scale} scale @param {number} width @param {{ left: number, right: number }} margin */
const levelLine = (level, scale, width, margin) => svg("line", { class: `level ${level.name}`, x1: margin.left, x2: width - margin.right,
  y1: scale.y(level.bits_per_byte), y2: scale.y(level.bits_per_byte) });

/** @param {Curve} curve @param {number} place @param {Axis} axis @param {Scale} scale */
function curveLines(curve, place, axis, scale) {
  const path = (/** @type {Point[]} */ points) => points.map((point, index) =>
    `${index ? "L" : "M"}${scale.x(along(curve, point, axis)).toFixed(1)} ${scale.y(point.bits_per_byte ?? 0).toFixed(1)}`).join("");
  const color = hue(curve.color);
  const evaluations = curve.points.filter((point) => point.held_out);
  const heldOut = curve.end.bits_per_byte == null ? evaluations : [...evaluations, curve.end];
  return [
    svg("path", { class: "curve", d: path(thinned(curve.points)), stroke: color,
      "stroke-dasharray": DASHES[place % DASHES.length], "clip-path": "url(#inside)" }),
    svg("path", { class: "evaluations", d: path(heldOut), stroke: color, "clip-path": "url(#inside)" }),
    ...heldOut.map((point) => svg("circle", { cx: scale.x(along(curve, point, axis)), cy: scale.y(point.bits_per_byte ?? 0), r: 5, fill: color,
      stroke: "var(--paper)", "stroke-width": 1.5 }, svg("title", {}, `${curve.kind}: ${fixed(point.bits_per_byte)} on held-out text`))),
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

/** Names at the right, each beside its line, pushed apart where they would meet.
 * @param {Data} data @param {Scale} scale @param {number} width @param {{ right: number, top: number }} margin */
function labels(data, scale, width, margin) {
  const named = [
    ...data.curves.filter((curve) => curve.end.bits_per_byte != null).map((curve) => ({ name: curve.kind, bits: curve.end.bits_per_byte ?? 0, color: hue(curve.color) })),
    ...data.levels.map((level) => ({ name: level.name, bits: level.bits_per_byte, color: "var(--ink)" })),
  ].sort((one, other) => other.bits - one.bits);
  const apart = width < 800 ? 23 : 17;
  let last = margin.top - apart;
  return named.map(({ name, bits, color }) => {
    last = Math.max(last + apart, scale.y(bits) + 4);
    return svg("text", { x: width - margin.right + 10, y: last, style: `fill:${color}` }, `${name} ${fixed(bits)}`);
  });
}

/** @param {SVGElement} made @param {Data} data @param {Axis} axis @param {Scale} scale @param {HTMLElement} readout @param {number} height @param {{ top: number, bottom: number }} margin */
function listen(made, data, axis, scale, readout, height, margin) {
  const drawn = data.curves.map((curve) => ({ ...curve, points: thinned(curve.points) }));
  const places = drawn.flatMap((curve) => curve.points.map((point) => along(curve, point, axis)));
  const stops = [...new Set(places)].filter((x) => x >= scale.low).sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: margin.top, y2: height - margin.bottom, visibility: "hidden" });
  made.append(cursor);
  let at = stops.length - 1;
  const show = () => {
    const value = stops[at];
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(scale.x(value)));
    cursor.setAttribute("visibility", "visible");
    readout.replaceChildren(html("b", {}, `${short(value)} ${AXES[axis]}`), ...drawn.flatMap((curve) => {
      const bits = curve.points.filter((point) => along(curve, point, axis) <= value * 1.0001).at(-1)?.bits_per_byte;
      return bits == null ? [] : [html("span", { style: `color:${hue(curve.color)}` }, `${curve.kind} ${fixed(bits)}  `)];
    }));
  };
  made.addEventListener("pointermove", (event) => {
    const box = made.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * Number(made.getAttribute("viewBox")?.split(" ")[2]);
    at = stops.reduce((best, stop, place) => (Math.abs(scale.x(stop) - x) < Math.abs(scale.x(stops[best]) - x) ? place : best), 0);
    show();
  });
  made.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -stops.length, End: stops.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    at = Math.min(stops.length - 1, Math.max(0, at + step));
    show();
  });
}
