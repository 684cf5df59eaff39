// @ts-check
/** Line charts as SVG, in the colours of the page: linear or log axes, lines, dots, and a cursor for pointer and arrow keys.
 *
 * A chart is drawn for the width that it has, and again when that changes. It keeps its element, and so the keyboard's focus. */
import { html, svg } from "chainrule/draw";
import { endLabels, frameOf, grid, LETTER, scale } from "chainrule/axes";

/** @typedef {import("chainrule/axes").Axis} Axis */
/** @typedef {{ name: string, model?: string, color: string, points: [number, number | null][], as?: "line" | "dots" | "band", lower?: [number, number | null][], dash?: string, width?: number, open?: boolean, label?: string, guide?: boolean, class?: string }} Line
 *   `model`: the colour is that of this model, if it has one; `label`: its name beside it, or in a legend if the chart is narrow; `open`: dots are rings; `lower`: the lower edge of a band, whose upper one are the points; `guide`: the cursor does not stop at its points */
/** @typedef {{ title: string, x: Axis, y: Axis, lines: Line[], labels?: "start" | "end", at?: number, say?: (x: number) => (Node | string)[] }} Picture
 *   `labels`: at which end of their lines they are; `at`: where the cursor is; `say`: what it tells there */
/** @typedef {{ element: HTMLElement, show(picture: Picture): void, wait(line: string, share?: number): void }} Chart */

const HEIGHT = { wide: 400, narrow: 330 }, NARROW = 560;
const APART = 18;    // pixels between two names at the right
const HINT = "Point at the chart, or focus it and use the arrow keys.";

/** @param {(x: number) => void} [moved] when a reader has moved the cursor @returns {Chart} */
export function makeChart(moved) {
  const drawing = svg("svg", { class: "chart plot-drawing", tabindex: 0, role: "img" });
  const title = html("figcaption", { class: "plot-title" });
  const waiting = html("div", { class: "plot-wait", role: "status" });
  const readout = html("output", { class: "readout", "aria-live": "polite" }, HINT);
  const legend = html("p", { class: "plot-legend" });
  const element = html("figure", { class: "plot" }, title, html("div", { class: "plot-place" }, drawing, waiting), legend, readout);
  /** @type {Picture | undefined} */
  let picture;
  let width = 0, now = NaN;
  const draw = () => {
    if (!picture) return;
    width = element.clientWidth || width || 800;
    drawInto(drawing, picture, width, width < NARROW ? HEIGHT.narrow : HEIGHT.wide, now);
    title.textContent = picture.title;
    legend.replaceChildren(...(width < NARROW ? picture.lines.filter((line) => line.label).map((line) => html("span", { "data-model": line.model, style: `color:${colorOf(line)}` }, line.label)) : []));
    drawing.setAttribute("aria-label", `${picture.title}: ${picture.y.title} against ${picture.x.title}; arrow keys move along it`);
    if (picture.say) readout.replaceChildren(...(Number.isNaN(now) ? [HINT] : picture.say(now)));
    readout.hidden = !picture.say;
  };
  const move = (/** @type {number} */ x) => {
    if (x === now) return;
    now = x;
    moved?.(x);
    draw();
  };
  drawing.addEventListener("pointermove", (event) => { if (picture) move(nearestStop(picture, drawing, event.clientX)); });
  drawing.addEventListener("pointerdown", (event) => { if (picture) move(nearestStop(picture, drawing, event.clientX)); });
  drawing.addEventListener("keydown", (event) => {
    const stops = picture ? stopsOf(picture) : [], at = stops.indexOf(now);
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -stops.length, End: stops.length }[event.key];
    if (step === undefined || !stops.length) return;
    event.preventDefault();
    move(stops[Math.min(stops.length - 1, Math.max(0, (at < 0 ? stops.length - (step < 0 ? 0 : 1) : at) + step))]);
  });
  new ResizeObserver(() => { if (element.clientWidth && element.clientWidth !== width) draw(); }).observe(element);
  return {
    element,
    show(more) {
      picture = more;
      if (more.at !== undefined) now = more.at;
      draw();
    },
    wait(line, share) {
      waiting.replaceChildren(...(line ? [line, html("progress", { value: share, max: 1, "aria-label": line })] : []));
    },
  };
}

/** Where the cursor can stand: at every point of every line. @param {Picture} picture */
const stopsOf = ({ lines }) => [...new Set(lines.flatMap((line) => (line.guide ? [] : line.points).map(([x]) => x)))].sort((one, other) => one - other);

/** @param {Picture} picture @param {SVGElement} drawing @param {number} pointer x in pixels of the window */
function nearestStop(picture, drawing, pointer) {
  const box = drawing.getBoundingClientRect(), { width, frame } = measures(picture, drawing);
  const at = ((pointer - box.left) / box.width) * width, across = scale(picture.x, frame.left, frame.right);
  return stopsOf(picture).reduce((best, stop) => (Math.abs(across(stop) - at) < Math.abs(across(best) - at) ? stop : best), Infinity);
}

/** @param {Picture} picture @param {SVGElement} drawing */
function measures(picture, drawing) {
  const [, , width, height] = (drawing.getAttribute("viewBox") ?? "0 0 1 1").split(" ").map(Number);
  return { width, frame: frameOf(width, height, picture.y, margin(picture, width)) };
}

/** Room for names at the right, unless the chart is narrow. @param {Picture} picture @param {number} width */
function margin({ lines, labels }, width) {
  if (labels === "start") return 14;
  const longest = Math.max(0, ...lines.map((line) => line.label?.length ?? 0));
  return width < NARROW || !longest ? 14 : Math.min(width / 3, LETTER * longest + 14);
}

/** @param {SVGElement} drawing @param {Picture} picture @param {number} width @param {number} height @param {number} now */
function drawInto(drawing, picture, width, height, now) {
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const { frame } = measures(picture, drawing), { x, y, lines } = picture;
  const across = scale(x, frame.left, frame.right), up = scale(y, frame.bottom, frame.top);
  const start = picture.labels === "start";
  const named = width < NARROW ? [] : lines.filter((line) => line.label).flatMap((line) => {
    const end = line.points.filter(([, value]) => drawable(value, y)).at(start ? 0 : -1);
    return end ? [{ name: line.label ?? "", x: start ? across(end[0]) + 6 : frame.right + 8, before: start && across(end[0]) > (frame.left + frame.right) / 2, at: up(/** @type {number} */ (end[1])) - (start ? 8 : 0), color: colorOf(line), model: line.model }] : [];
  });
  drawing.replaceChildren(...grid(x, y, frame), ...lines.flatMap((line) => drawLine(line, across, up, y)), ...endLabels(named, frame, APART),
    ...(Number.isNaN(now) ? [] : [svg("line", { class: "cursor", x1: across(now), x2: across(now), y1: frame.top, y2: frame.bottom, "data-at": now })]));
}

/** 0 has no place on a log axis, nor has what is beyond the axis. @param {number | null} value @param {Axis} y */
const drawable = (value, y) => value != null && Number.isFinite(value) && (!y.log || value > 0) && value <= y.high;

/** @param {{ model?: string, color: string }} line */
export const colorOf = ({ model, color }) => (model === undefined ? color : `var(--model, ${color})`);

/** @param {Line} line @param {(value: number) => number} across @param {(value: number) => number} up @param {Axis} y @returns {SVGElement[]} */
function drawLine(line, across, up, y) {
  const { name, model, points, as = "line", dash, width = 2.5, open } = line, color = colorOf(line);
  const kept = points.map(([x, value]) => (drawable(value, y) ? [across(x), up(/** @type {number} */ (value))] : null));
  if (as === "dots") return kept.flatMap((spot, place) => (spot ? [svg("circle", { "data-model": model, "data-dot": name, "data-x": points[place][0], "data-y": points[place][1], cx: spot[0], cy: spot[1], r: 4.5,
    fill: open ? "var(--paper)" : color, stroke: color, "stroke-width": 2 }, svg("title", {}, name))] : []));
  if (as === "band") return [svg("polygon", { "data-model": model, "data-band": name, fill: color, opacity: 0.18,
    points: [...points, ...(line.lower ?? []).toReversed()].map(([x, value]) => `${across(x).toFixed(2)},${up(Math.min(value ?? y.high, y.high)).toFixed(2)}`).join(" ") })];
  const path = kept.map((spot, place) => (spot ? `${place && kept[place - 1] ? "L" : "M"}${spot[0].toFixed(2)} ${spot[1].toFixed(2)}` : "")).join("");
  return [svg("path", { class: line.class, "data-model": model, "data-line": name, d: path, fill: "none", stroke: color, "stroke-width": width, "stroke-dasharray": dash, "stroke-linejoin": "round", "stroke-linecap": "round" }, svg("title", {}, name))];
}
