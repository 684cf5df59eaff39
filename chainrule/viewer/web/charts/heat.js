// @ts-check
/** A map of weights: rows attend to columns, coloured by the square root of the weight. Pointer and arrow keys go from cell to cell, a click pins one. */
import { html } from "chainrule/draw";
import { Pin } from "chainrule/pin";
import { colour, keepPainted, paintedToFit, picture, shortened, stretch } from "chainrule/paint";

/** @typedef {{ text: string, own?: boolean }} Label `own`: the model generated it */
/** @typedef {{ rows: Label[], columns: Label[], weight: (row: number, column: number) => number }} Weights NaN: masked */
/** @typedef {{ row: number, column: number }} Cell */
/** @typedef {{ title: string, pick: (cell: Cell | null) => void, height?: number, top?: number, most?: number, pin?: Pin }} Choices
 *   `height` of a row and `top` above the first, where something stands beside the map; `most`: pixels of a column */
/** @typedef {{ left: number, top: number, width: number, height: number }} Frame where the cells begin, and one cell */

const LEGIBLE = 12;     // pixels from one line of text to the next: of smaller cells only some have a label, and the row and column pointed at
const SHORT = 18;       // pixels of a name that is not turned above its column,
const MANY = 0.2;       // unless more than this share of the names is longer
const SMALLEST = 8;     // pixels of a cell, unless it has to be smaller to fit
const LABEL = 108;      // pixels for a label, at most,
const RARE = 56;        // or fewer where only some labels are long: a map of letters needs no margin for the name of its boundary

/** @param {Choices} choices */
export function makeHeat({ title, pick, height, top, most = 30, pin = new Pin() }) {
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { tabindex: 0, role: "application", "aria-label": title }));
  const element = html("div", { class: "scroll heat" }, canvas);
  /** @type {Weights} */
  let weights = { rows: [], columns: [], weight: () => 0 };
  /** @type {Frame} */
  let frame = { left: 0, top: 0, width: 1, height: 1 };
  /** @type {Cell} */
  let chosen = { row: -1, column: -1 };
  let available = 0;

  const paint = () => {
    frame = framed(canvas, weights, available, height, top, most);
    draw(canvas, weights, frame, chosen);
  };
  const within = (/** @type {Cell} */ cell) => {
    const one = (/** @type {number} */ place, /** @type {Label[]} */ labels) => Math.min(labels.length - 1, Math.max(0, place));
    return { row: one(cell.row, weights.rows), column: one(cell.column, weights.columns) };
  };
  const at = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - frame.left, event.clientY - box.top - frame.top];
    return x >= 0 && y >= 0 ? within({ row: Math.floor(y / frame.height), column: Math.floor(x / frame.width) }) : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = at(event);
    if (cell && pin.follows(event)) pick(cell);
  });
  canvas.addEventListener("click", (event) => {
    const cell = at(event);
    if (!cell) return;
    pin.toggle(cell);
    pick(cell);
  });
  canvas.addEventListener("pointerleave", (event) => { if (pin.follows(event)) pick(null); });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { pin.free(); pick(null); }
    const { row, column } = chosen;
    /** @type {Record<string, Cell>} */
    const moves = {
      ArrowUp: { row: row - 1, column }, ArrowDown: { row: row + 1, column }, ArrowLeft: { row, column: column - 1 },
      ArrowRight: { row, column: column + 1 }, Home: { row, column: 0 }, End: { row, column: weights.columns.length - 1 },
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    const cell = within(moves[event.key]);
    pin.move(cell);
    pick(cell);
  });
  paintedToFit(element, canvas, (now) => { available = now; }, paint);
  return {
    element,
    show(/** @type {Weights} */ other) { weights = other; chosen = { row: -1, column: -1 }; if (available) keepPainted(canvas, paint); },
    mark(/** @type {Cell} */ cell) { chosen = cell; if (available) draw(canvas, weights, frame, chosen); },
  };
}

/** Where everything goes. @param {HTMLCanvasElement} canvas @param {Weights} weights @param {number} available @param {number | undefined} height
 * @param {number | undefined} top @param {number} most @returns {Frame} */
function framed(canvas, { rows, columns }, available, height, top, most) {
  const brush = /** @type {import("chainrule/paint").Brush} */ (canvas.getContext("2d"));
  brush.font = font(LABEL);
  const longest = (/** @type {Label[]} */ labels) => {
    const widths = labels.map(({ text }) => brush.measureText(text).width + 10);
    return Math.min(widths.filter((width) => width > RARE).length > MANY * widths.length ? LABEL : RARE, Math.max(0, ...widths));
  };
  const named = [...rows, ...columns].some(({ text }) => text), left = named ? longest(rows) : 1;
  const turned = longest(columns);
  const fitting = (available - left - 3) / Math.max(columns.length, 1);
  const width = height ? Math.max(14, Math.min(most, Math.floor(fitting))) : Math.max(1, Math.min(most, fitting < SMALLEST ? fitting : Math.floor(fitting)));
  const above = turning(brush, columns, width).turned.some(Boolean) ? turned : 20;
  return { left, top: top ?? (named ? above : 1), width, height: height ?? width };
}

/** Which names above the columns are turned: the long ones, or all if many are long; and the pixels that they need from one to the next.
 * @param {import("chainrule/paint").Brush} brush @param {Label[]} columns @param {number} cell pixels */
function turning(brush, columns, cell) {
  brush.font = font(cell);
  const widths = columns.map(({ text }) => brush.measureText(text).width), most = Math.max(SHORT, cell - 3);
  const few = widths.filter((width) => width > most).length <= MANY * columns.length;
  return { turned: widths.map((width) => !few || width > most), apart: few ? Math.max(0, ...widths.filter((width) => width <= most)) + 3 : LEGIBLE };
}

/** @param {HTMLCanvasElement} canvas @param {Weights} weights @param {Frame} frame @param {Cell} chosen */
function draw(canvas, { rows, columns, weight }, frame, chosen) {
  const [width, height] = [frame.width * columns.length, frame.height * rows.length];
  const brush = stretch(canvas, frame.left + width + 1, frame.top + height + 1);
  brush.imageSmoothingEnabled = false;
  brush.fillStyle = colour("--panel");
  brush.fillRect(frame.left, frame.top, width, height);
  brush.drawImage(heated(canvas, weight, rows.length, columns.length), frame.left, frame.top, width, height);
  brush.strokeStyle = colour("--line");
  brush.strokeRect(frame.left - 0.5, frame.top - 0.5, width + 1, height + 1);
  if (frame.left > 1) label(brush, rows, columns, frame, chosen);
  if (chosen.row >= 0) outline(brush, frame, chosen, width, height);
}

/** The picture of a map is made once, however often its frame is drawn. @type {WeakMap<HTMLCanvasElement, { weight: Function, hot: string, made: HTMLCanvasElement }>} */
const made = new WeakMap();

/** @param {HTMLCanvasElement} canvas @param {(row: number, column: number) => number} weight @param {number} rows @param {number} columns */
function heated(canvas, weight, rows, columns) {
  const before = made.get(canvas), hot = colour("--hot");
  if (before?.weight === weight && before.hot === hot) return before.made;
  const now = picture(Math.max(columns, 1), Math.max(rows, 1), (row, column) => Math.sqrt(weight(row, column)));
  made.set(canvas, { weight, hot, made: now });
  return now;
}

/** Names of rows and columns: as many as are legible, and always those of the chosen cell.
 * @param {import("chainrule/paint").Brush} brush @param {Label[]} rows @param {Label[]} columns @param {Frame} frame @param {Cell} chosen */
function label(brush, rows, columns, frame, chosen) {
  const { turned, apart } = turning(brush, columns, frame.width);
  brush.textBaseline = "middle";
  each(brush, columns, frame.width, apart, chosen.column, (text, place) => {
    brush.save();
    brush.textAlign = turned[place] ? "left" : "center";
    brush.translate(frame.left + (place + 0.5) * frame.width, frame.top - (turned[place] ? 5 : 10));
    if (turned[place]) brush.rotate(-Math.PI / 2);
    brush.fillText(turned[place] ? shortened(brush, text, frame.top - 8) : text, 0, 0);
    brush.restore();
  });
  brush.textAlign = "right";
  each(brush, rows, frame.height, LEGIBLE, chosen.row, (text, place) =>
    brush.fillText(shortened(brush, text, frame.left - 8), frame.left - 5, frame.top + (place + 0.5) * frame.height));
}

/** Every so many names, and the chosen one in bold, for which its neighbours make room. @param {import("chainrule/paint").Brush} brush
 * @param {Label[]} labels @param {number} cell pixels @param {number} apart pixels @param {number} chosen @param {(text: string, place: number) => void} write */
function each(brush, labels, cell, apart, chosen, write) {
  const every = Math.ceil(apart / cell);
  labels.forEach(({ text, own }, place) => {
    const hidden = place % every || (chosen >= 0 && Math.abs(place - chosen) * cell < apart);
    if (place !== chosen && hidden) return;
    brush.fillStyle = colour(own ? "--hue2" : "--ink");
    brush.font = place === chosen ? `bold ${font(cell)}` : font(cell);
    write(text, place);
  });
}

/** @param {import("chainrule/paint").Brush} brush @param {Frame} frame @param {Cell} chosen @param {number} width @param {number} height */
function outline(brush, frame, { row, column }, width, height) {
  brush.strokeStyle = colour("--focus");
  brush.lineWidth = 1.5;
  brush.strokeRect(frame.left, frame.top + row * frame.height, width, frame.height);
  if (column < 0) return;
  brush.strokeRect(frame.left + column * frame.width, frame.top, frame.width, height);
  brush.lineWidth = 3;
  brush.strokeStyle = colour("--ink");
  brush.strokeRect(frame.left + column * frame.width, frame.top + row * frame.height, frame.width, frame.height);
}

/** @param {number} cell pixels */
const font = (cell) => `${Math.min(13, Math.max(11, cell - 1))}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace`;
