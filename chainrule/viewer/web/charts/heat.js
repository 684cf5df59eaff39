// @ts-check
/** A map of weights: rows attend to columns, coloured by the square root of the weight. Pointer and arrow keys go from cell to cell. */
import { html } from "chainrule/draw";
import { colour, keepPainted, paintedToFit, picture, shortened, stretch } from "chainrule/paint";

/** @typedef {{ text: string, own?: boolean }} Label `own`: the model generated it */
/** @typedef {{ rows: Label[], columns: Label[], weight: (row: number, column: number) => number }} Weights NaN: masked */
/** @typedef {{ row: number, column: number }} Cell */
/** @typedef {{ title: string, pick: (cell: Cell | null) => void, height?: number, top?: number, most?: number }} Choices
 *   `height` of a row and `top` above the first, where something stands beside the map; `most`: pixels of a column */
/** @typedef {{ left: number, top: number, width: number, height: number }} Frame where the cells begin, and one cell */

const READABLE = 8;     // pixels of a cell from which it has a label
const LABEL = 108;      // pixels for a label, at most

/** @param {Choices} choices */
export function makeHeat({ title, pick, height, top, most = 30 }) {
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
  const choose = (/** @type {Cell} */ cell) => {
    const within = (/** @type {number} */ place, /** @type {Label[]} */ labels) => Math.min(labels.length - 1, Math.max(0, place));
    pick({ row: within(cell.row, weights.rows), column: within(cell.column, weights.columns) });
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - frame.left, event.clientY - box.top - frame.top];
    if (x >= 0 && y >= 0) choose({ row: Math.floor(y / frame.height), column: Math.floor(x / frame.width) });
  });
  canvas.addEventListener("pointerleave", () => pick(null));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") pick(null);
    const { row, column } = chosen;
    /** @type {Record<string, Cell>} */
    const moves = {
      ArrowUp: { row: row - 1, column }, ArrowDown: { row: row + 1, column }, ArrowLeft: { row, column: column - 1 },
      ArrowRight: { row, column: column + 1 }, Home: { row, column: 0 }, End: { row, column: weights.columns.length - 1 },
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    choose(moves[event.key]);
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
  brush.font = font(12);
  const longest = (/** @type {Label[]} */ labels) => Math.min(LABEL, Math.max(0, ...labels.map(({ text }) => brush.measureText(text).width)) + 10);
  const left = longest(rows);
  const fitting = Math.floor((available - left) / Math.max(columns.length, 1));
  if (!height && fitting < READABLE) {
    const width = Math.max(1, Math.min(READABLE, (available - 3) / Math.max(columns.length, 1)));
    return { left: 1, top: 1, width, height: width };
  }
  const width = Math.max(height ? 14 : READABLE, Math.min(most, fitting));
  return { left, top: top ?? longest(columns), width, height: height ?? width };
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
  if (frame.left > 1) label(brush, rows, columns, frame);
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

/** @param {import("chainrule/paint").Brush} brush @param {Label[]} rows @param {Label[]} columns @param {Frame} frame */
function label(brush, rows, columns, frame) {
  brush.font = font(frame.width);
  brush.textBaseline = "middle";
  brush.textAlign = "right";
  rows.forEach(({ text, own }, row) => {
    brush.fillStyle = colour(own ? "--hue2" : "--ink");
    brush.fillText(shortened(brush, text, frame.left - 8), frame.left - 5, frame.top + (row + 0.5) * frame.height);
  });
  brush.textAlign = "left";
  columns.forEach(({ text, own }, column) => {
    brush.save();
    brush.translate(frame.left + (column + 0.5) * frame.width, frame.top - 5);
    brush.rotate(-Math.PI / 2);
    brush.fillStyle = colour(own ? "--hue2" : "--ink");
    brush.fillText(shortened(brush, text, frame.top - 8), 0, 0);
    brush.restore();
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
const font = (cell) => `${Math.min(13, Math.max(9, cell + 1))}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace`;
