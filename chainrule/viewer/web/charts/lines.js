// @ts-check
/** Weights as lines between two columns of tokens: queries at the left, keys at the right.
 *
 * Tokens are elements; lines are painted on a canvas as high as what is seen, so that a thousand tokens scroll smoothly. */
import { fixed, html } from "chainrule/draw";
import { Pin } from "chainrule/pin";
import { colour, keepPainted, stretch } from "chainrule/paint";

/** @typedef {import("chainrule/heat").Weights} Weights */
/** @typedef {{ side: "rows" | "columns", place: number }} Spot the chosen token */
/** @typedef {{ row: number, column: number, weight: number }} Line */

const MOST = 20000;    // lines that are drawn at once: the heaviest

/** @param {(spot: Spot | null) => void} pick null: none of them @param {Pin} [pin] */
export function makeLines(pick, pin = new Pin()) {
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { "aria-hidden": true }));
  const sides = { rows: column("rows", "tokens that attend"), columns: column("columns", "tokens that are attended to") };
  const middle = html("div", { class: "lines-middle" }, canvas);
  const element = html("div", { class: "lines tall" }, sides.rows, middle, sides.columns);
  /** @type {Weights} */
  let weights = { rows: [], columns: [], weight: () => 0 };
  /** @type {Line[]} */
  let every = [];
  /** @type {Spot | null} */
  let spot = null;

  const paint = () => {
    if (!element.isConnected) return;
    const brush = stretch(canvas, middle.clientWidth, Math.min(element.clientHeight, element.scrollHeight));
    const lines = spot ? [...of(weights, spot)] : every;
    const most = spot ? Math.max(...lines.map(({ weight }) => weight), 1e-9) : 1;    // of one token, its heaviest is full
    drawLines(brush, lines, most, middle.clientWidth, height(sides.rows), element.scrollTop, element.clientHeight);
  };
  let asked = 0;
  const soon = () => { asked ||= requestAnimationFrame(() => { asked = 0; paint(); }); };
  for (const side of /** @type {("rows" | "columns")[]} */ (["rows", "columns"])) follow(sides[side], side, () => spot, pick, pin);
  element.addEventListener("pointerleave", (event) => { if (pin.follows(event)) pick(null); });
  element.addEventListener("scroll", soon);
  new ResizeObserver(soon).observe(element);
  return {
    element,
    /** @param {Weights} other @param {number} least weight of a line */
    show(other, least) {
      weights = other;
      every = heaviest(weights, least);
      spot = null;
      for (const side of /** @type {("rows" | "columns")[]} */ (["rows", "columns"])) sides[side].replaceChildren(...weights[side].map(token));
      sides.rows.parentElement?.classList.toggle("lines-many", weights.rows.length > 40);
      keepPainted(canvas, paint);
      return every.length;
    },
    /** @param {Spot | null} other */
    mark(other) {
      spot = other;
      tell(sides, weights, spot);
      paint();
    },
  };
}

/** @param {string} side @param {string} label */
const column = (side, label) => html("ol", { class: `lines-${side}`, tabindex: 0, "aria-label": `${label}; arrow keys go from one to the next` });

/** @param {import("chainrule/heat").Label} label */
const token = ({ text, own }) => html("li", { class: own ? "own" : "" }, html("span", { title: text }, text), html("small"));

/** Of one token, in pixels and parts of them: a thousand of them add up. @param {HTMLElement} side */
const height = (side) => (side.lastElementChild?.getBoundingClientRect().height ?? 20);

/** Lines of at least some weight; of too many, the heaviest. @param {Weights} weights @param {number} least @returns {Line[]} */
function heaviest({ rows, columns, weight }, least) {
  const lines = [];
  for (let row = 0; row < rows.length; row++)
    for (let column = 0; column < columns.length; column++) {
      const value = weight(row, column);
      if (value >= least && value > 0) lines.push({ row, column, weight: value });
    }
  lines.sort((one, other) => one.weight - other.weight);    // the heaviest are painted last
  return lines.slice(-MOST);
}

/** All lines of one token. @param {Weights} weights @param {Spot} spot */
function* of({ rows, columns, weight }, { side, place }) {
  const size = side === "rows" ? columns.length : rows.length;
  for (let other = 0; other < size; other++) {
    const [row, column] = side === "rows" ? [place, other] : [other, place];
    if (weight(row, column) > 0) yield { row, column, weight: weight(row, column) };
  }
}

/** @param {import("chainrule/paint").Brush} brush @param {Line[]} lines @param {number} most weight of the fullest line @param {number} width
 * @param {number} each pixels of a token @param {number} top pixels that are scrolled by @param {number} seen pixels */
function drawLines(brush, lines, most, width, each, top, seen) {
  brush.strokeStyle = `rgb(${colour("--hot")})`;
  for (const { row, column, weight } of lines) {
    const [from, to] = [(row + 0.5) * each - top, (column + 0.5) * each - top];
    if (Math.max(from, to) < 0 || Math.min(from, to) > seen) continue;
    brush.globalAlpha = Math.max(0.03, 0.9 * (weight / most));
    brush.lineWidth = 1 + 2 * (weight / most);
    brush.beginPath();
    brush.moveTo(0, from);
    brush.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to);
    brush.stroke();
  }
}

/** The weights of a token as numbers beside the others. @param {Record<"rows" | "columns", HTMLElement>} sides @param {Weights} weights @param {Spot | null} spot */
function tell(sides, { weight }, spot) {
  for (const [side, list] of Object.entries(sides)) {
    let place = 0;
    for (const item of /** @type {Iterable<HTMLElement>} */ (/** @type {unknown} */ (list.children))) {
      const here = place++;
      const value = !spot || spot.side === side ? null : side === "columns" ? weight(spot.place, here) : weight(here, spot.place);
      const known = value != null && !Number.isNaN(value);
      item.classList.toggle("chosen", spot?.side === side && spot.place === here);
      item.style.setProperty("--heat", known ? Math.sqrt(value).toFixed(3) : "0");
      if (known) item.dataset.weight = String(value);
      else delete item.dataset.weight;
      /** @type {HTMLElement} */ (item.lastElementChild).textContent = known ? fixed(value) : "";
    }
  }
}

/** @param {HTMLElement} list @param {"rows" | "columns"} side @param {() => Spot | null} spot @param {(spot: Spot | null) => void} pick @param {Pin} pin */
function follow(list, side, spot, pick, pin) {
  const at = (/** @type {Event} */ event) => [...list.children].indexOf(/** @type {Element} */ (/** @type {Element} */ (event.target).closest("li")));
  list.addEventListener("pointerover", (event) => {
    const place = at(event);
    if (place >= 0 && pin.follows(event)) pick({ side, place });
  });
  list.addEventListener("click", (event) => {
    const place = at(event);
    if (place < 0) return;
    pin.toggle({ side, place });
    pick({ side, place });
  });
  list.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { pin.free(); pick(null); }
    const now = spot(), at = now?.side === side ? now.place : -1, last = list.children.length - 1;
    /** @type {Record<string, number>} */
    const moves = { ArrowUp: at - 1, ArrowDown: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: last };
    if (moves[event.key] === undefined) return;
    event.preventDefault();
    const place = Math.min(last, Math.max(0, moves[event.key]));
    list.children[place]?.scrollIntoView({ block: "nearest" });
    pin.move({ side, place });
    pick({ side, place });
  });
}
