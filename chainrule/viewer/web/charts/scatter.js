// @ts-check
/** A map of named points as SVG: names that do not cover each other, arrows, and a point that pointer, touch or arrow keys choose. */
import { html, svg } from "chainrule/draw";
import { frameOf, grid, range, scale } from "chainrule/axes";

/** @typedef {{ place: number, style: "asked" | "found" }} Mark a point that stands out */
/** @typedef {{ title: string, x: string, y: string, count: number, spot(place: number): [number, number], name(place: number): string, about?(place: number): string,
 *   marks: Mark[], arrows?: [number, number][] }} Picture places are numbers of points; names of the first points are drawn first; `about`: what is said of a point */
/** @typedef {{ element: HTMLElement, show(picture: Picture): void }} Scatter */
/** @typedef {[number, number, number, number]} Box left, top, right, bottom, in pixels */

const HEIGHT = { wide: 540, narrow: 420 }, NARROW = 560;
const NEAR = 24;        // pixels from the pointer to a point, at most
const NAMES = 160;      // names at most
const DEEPEST = 64;     // times that a map can be magnified
const STYLES = { asked: { color: "var(--hue1)", radius: 7, size: 16 }, found: { color: "var(--hue0)", radius: 5, size: 14 }, other: { color: "var(--soft)", radius: 2.5, size: 12 } };

/** @param {(place: number) => void} [choose] a click or Enter on a point @returns {Scatter} */
export function makeMap(choose) {
  const drawing = svg("svg", { class: "chart plot-drawing map-drawing", tabindex: 0, role: "img" });
  const title = html("figcaption", { class: "plot-title" });
  const readout = html("output", { class: "readout", "aria-live": "polite" });
  const zoom = (/** @type {number} */ by) => html("button", { type: "button", "aria-label": by > 1 ? "zoom in" : "zoom out", click: () => magnify(by) }, by > 1 ? "+" : "−");
  const element = html("figure", { class: "plot" }, title, html("div", { class: "plot-place" }, drawing, html("div", { class: "plot-buttons" }, zoom(2), zoom(0.5))), readout);
  /** @type {Picture | undefined} */
  let picture;
  let width = 0, over = -1, depth = 1;
  /** @type {[number, number] | null} the middle of what is shown; null: of all */
  let middle = null;
  /** @type {(place: number) => [number, number]} */
  let pixel = () => [0, 0];
  const draw = () => {
    if (!picture) return;
    width = element.clientWidth || width || 800;
    const height = width < NARROW ? HEIGHT.narrow : HEIGHT.wide;
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const axes = axesOf(picture, depth, middle), frame = frameOf(width, height, axes.y, 14);
    const across = scale(axes.x, frame.left, frame.right), up = scale(axes.y, frame.bottom, frame.top);
    const { spot } = picture;
    pixel = (place) => [across(spot(place)[0]), up(spot(place)[1])];
    drawing.replaceChildren(...grid(axes.x, axes.y, frame), ...drawPoints(picture, pixel, frame, over));
    title.textContent = picture.title;
    drawing.setAttribute("aria-label", `${picture.title}; arrow keys go from point to point${choose ? ", Enter chooses one" : ""}, + and − zoom`);
    readout.replaceChildren(over < 0 ? `Point at the map, or focus it and use the arrow keys${choose ? "; click or Enter chooses" : ""}.` : html("b", {}, (picture.about ?? picture.name)(over)));
  };
  const magnify = (/** @type {number} */ by) => {
    depth = Math.min(DEEPEST, Math.max(1, depth * by));
    const chosen = over >= 0 ? over : picture?.marks[0]?.place;
    middle = depth === 1 || chosen === undefined || !picture ? null : picture.spot(chosen);
    draw();
  };
  const hover = (/** @type {number} */ place) => { if (place !== over) { over = place; draw(); } };
  const under = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const box = drawing.getBoundingClientRect(), share = width / box.width;
    return picture ? nearest(picture.count, pixel, (event.clientX - box.left) * share, (event.clientY - box.top) * share, NEAR) : -1;
  };
  drawing.addEventListener("pointermove", (event) => hover(under(event)));
  drawing.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hover(-1); });
  drawing.addEventListener("click", (event) => { const place = under(/** @type {MouseEvent} */ (event)); hover(place); if (place >= 0) choose?.(place); });
  drawing.addEventListener("keydown", (event) => {
    if (!picture || !picture.count) return;
    const way = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] })[event.key];
    if (way) hover(over < 0 ? picture.marks[0]?.place ?? 0 : towards(picture.count, pixel, over, way));
    else if (event.key === "Enter" && over >= 0) choose?.(over);
    else if (event.key === "Escape") hover(-1);
    else if (event.key === "+" || event.key === "-") magnify(event.key === "+" ? 2 : 0.5);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  new ResizeObserver(() => { if (element.clientWidth && element.clientWidth !== width) draw(); }).observe(element);
  return { element, show(more) { picture = more; if (over >= more.count) over = -1; draw(); } };
}

/** @param {Picture} picture @param {number} depth @param {[number, number] | null} middle */
function axesOf({ x, y, count, spot }, depth, middle) {
  const [across, up] = [0, 1].map((axis) => {
    const whole = range(Array.from({ length: count }, (_, place) => spot(place)[axis]), false, 0.06);
    const half = (whole.high - whole.low) / 2 / depth, centre = middle?.[axis] ?? (whole.low + whole.high) / 2;
    return { low: centre - half, high: centre + half };
  });
  return { x: { title: x, ...across }, y: { title: y, ...up } };
}

/** The number of the point that is nearest to a pixel; -1: none is near. @param {number} count @param {(place: number) => [number, number]} pixel @param {number} x @param {number} y @param {number} most */
function nearest(count, pixel, x, y, most) {
  let best = -1, distance = most;
  for (let place = 0; place < count; place++) {
    const [left, top] = pixel(place), away = Math.hypot(left - x, top - y);
    if (away < distance) [best, distance] = [place, away];
  }
  return best;
}

/** The next point in a direction: the nearest, where what lies aside counts twice. @param {number} count @param {(place: number) => [number, number]} pixel @param {number} from @param {[number, number]} way */
function towards(count, pixel, from, [right, down]) {
  const [x, y] = pixel(from);
  let best = from, distance = Infinity;
  for (let place = 0; place < count; place++) {
    const [dx, dy] = [pixel(place)[0] - x, pixel(place)[1] - y], along = dx * right + dy * down, aside = Math.abs(dx * down) + Math.abs(dy * right);
    if (along > 0.5 && along + 2 * aside < distance) [best, distance] = [place, along + 2 * aside];
  }
  return best;
}

/** @param {Picture} picture @param {(place: number) => [number, number]} pixel @param {import("chainrule/axes").Frame} frame @param {number} over @returns {SVGElement[]} */
function drawPoints({ count, name, marks, arrows = [] }, pixel, frame, over) {
  const inside = (/** @type {number} */ place) => { const [x, y] = pixel(place); return x >= frame.left && x <= frame.right && y >= frame.top && y <= frame.bottom; };
  const every = Array.from({ length: count }, (_, place) => place).filter(inside), styles = new Map(marks.map(({ place, style }) => [place, style]));
  const dots = every.filter((place) => !styles.has(place)).map((place) => `M${pixel(place).map((at) => at.toFixed(1)).join(" ")}h0`).join("");
  const order = [...new Set([...(over >= 0 && inside(over) ? [over] : []), ...marks.map(({ place }) => place).filter(inside), ...every])];
  return [
    svg("path", { class: "map-dots", d: dots, fill: "none", stroke: "rgb(var(--cold) / 0.45)", "stroke-width": 2 * STYLES.other.radius, "stroke-linecap": "round" }),
    ...arrows.filter((ends) => ends.every(inside)).map(([from, to]) => arrow(pixel(from), pixel(to), `${name(from)} → ${name(to)}`)),
    ...marks.filter(({ place }) => inside(place)).map(({ place, style }) => svg("circle", { cx: pixel(place)[0], cy: pixel(place)[1], r: STYLES[style].radius, fill: STYLES[style].color, "data-marked": name(place) })),
    ...(over >= 0 && inside(over) ? [svg("circle", { cx: pixel(over)[0], cy: pixel(over)[1], r: 9, fill: "none", stroke: "var(--ink)", "stroke-width": 2, "data-over": name(over) })] : []),
    ...placeNames(order, (place) => (place === over ? "asked" : styles.get(place) ?? "other"), name, pixel, frame, arrows.flatMap(([from, to]) => along(pixel(from), pixel(to)))),
  ];
}

/** A line with a head, from one point to another. @param {[number, number]} from @param {[number, number]} to @param {string} label */
function arrow([x, y], [right, down], label) {
  const length = Math.hypot(right - x, down - y) || 1, [dx, dy] = [(right - x) / length, (down - y) / length];
  const [tipX, tipY] = [right - 8 * dx, down - 8 * dy];    // before the dot
  const head = [-1, 1].map((side) => `M${tipX} ${tipY}L${tipX - 10 * dx - 5 * side * dy} ${tipY - 10 * dy + 5 * side * dx}`).join("");
  return svg("path", { class: "map-arrow", "data-arrow": label, d: `M${x} ${y}L${tipX} ${tipY}${head}`, fill: "none", stroke: "var(--hue4)", "stroke-width": 2.5 }, svg("title", {}, label));
}

/** Boxes along a line. @param {[number, number]} from @param {[number, number]} to @returns {Box[]} */
function along([x, y], [right, down]) {
  const count = Math.ceil(Math.hypot(right - x, down - y) / 8);
  return Array.from({ length: count + 1 }, (_, place) => [x + ((right - x) * place) / (count || 1), y + ((down - y) * place) / (count || 1)]).map(([at, height]) => [at - 3, height - 3, at + 3, height + 3]);
}

/** Names in this order, each above, right of, left of or below its point, where it covers no other name; else it has none.
 * @param {number[]} order @param {(place: number) => keyof typeof STYLES} styleOf @param {(place: number) => string} name @param {(place: number) => [number, number]} pixel
 * @param {import("chainrule/axes").Frame} frame @param {Box[]} covered where no name may be @returns {SVGElement[]} */
function placeNames(order, styleOf, name, pixel, frame, covered) {
  const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d")), family = getComputedStyle(document.body).fontFamily;
  const taken = [...covered];
  const made = [];
  for (const place of order) {
    if (made.length >= NAMES) break;
    const style = styleOf(place), { color, radius, size } = STYLES[style], text = name(place), [x, y] = pixel(place);
    pen.font = `${size}px ${family}`;
    const half = pen.measureText(text).width / 2 + 2, away = radius + 2;
    const middles = [[x, y - away - size / 2], [x + half + away, y], [x - half - away, y], [x, y + away + size / 2]];
    const boxes = middles.map(([cx, cy]) => /** @type {Box} */ ([cx - half, cy - size * 0.6, cx + half, cy + size * 0.6]));
    const found = boxes.findIndex((box) => box[0] >= frame.left && box[2] <= frame.right && box[1] >= frame.top && box[3] <= frame.bottom && !taken.some((other) => overlap(box, other)));
    if (found < 0) continue;
    taken.push(boxes[found]);
    made.push(svg("text", { class: "map-name", x: middles[found][0], y: middles[found][1] + size * 0.35, "text-anchor": "middle", style: `fill:${color};font-size:${size}px` }, text));
  }
  return made;
}

/** @param {Box} one @param {Box} other */
const overlap = (one, other) => one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
