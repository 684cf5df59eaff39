// @ts-check
/** All heads of all layers as small maps on one canvas; a layer is a row. Click, or arrow keys, choose one. */
import { html } from "chainrule/draw";
import { colour, keepPainted, paintedToFit, picture, stretch } from "chainrule/paint";

/** @typedef {{ layer: number, head: number }} Place from 1 */

const [GAP, LEFT, TOP, LEAST, MOST] = [4, 30, 20, 20, 132];    // pixels; a map is from LEAST to MOST wide

/** @param {(layer: number, head: number) => void} pick */
export function makeOverview(pick) {
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { tabindex: 0, role: "application" }));
  const element = html("div", { class: "scroll overview" }, canvas);
  /** @type {{ shape: number[], values: ArrayLike<number> }} */
  let maps = { shape: [0, 0, 1, 1], values: [] };
  /** @type {Set<string> | null} */
  let framed = null;
  let chosen = { layer: 1, head: 1 };
  /** @type {Map<string, string>} */
  let names = new Map();
  let width = 0, size = LEAST;

  const paint = () => {
    size = Math.max(LEAST, Math.min(MOST, Math.floor((width - LEFT) / maps.shape[1]) - GAP));
    draw(canvas, maps, framed, chosen, size, names);
  };
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const layer = 1 + Math.floor((event.clientY - box.top - TOP) / (size + GAP)), head = 1 + Math.floor((event.clientX - box.left - LEFT) / (size + GAP));
    if (layer >= 1 && head >= 1 && layer <= maps.shape[0] && head <= maps.shape[1]) pick(layer, head);
  });
  canvas.addEventListener("keydown", (event) => {
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!moves[event.key]) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const within = (/** @type {number} */ place, /** @type {number} */ most) => Math.min(most, Math.max(1, place));
    pick(within(chosen.layer + down, maps.shape[0]), within(chosen.head + right, maps.shape[1]));
  });
  paintedToFit(element, canvas, (now) => { width = now; }, paint);
  return {
    element,
    /** @param {{ shape: number[], values: ArrayLike<number> }} other (L, H, height, width) @param {Set<string> | null} marked those with a frame, as `1.2` @param {Place} now
     * @param {Map<string, string>} [named] names of heads, by places as `1.2` */
    show(other, marked, now, named = new Map()) {
      [maps, framed, chosen, names] = [other, marked, now, named];
      canvas.setAttribute("aria-label", `all heads, small; chosen: layer ${now.layer}, head ${now.head}; arrow keys choose another`);
      if (width) keepPainted(canvas, paint);
    },
  };
}

/** @param {HTMLCanvasElement} canvas @param {{ shape: number[], values: ArrayLike<number> }} maps @param {Set<string> | null} framed @param {Place} chosen @param {number} size
 * @param {Map<string, string>} names */
function draw(canvas, { shape: [layers, heads, height, width], values }, framed, chosen, size, names) {
  const brush = stretch(canvas, LEFT + heads * (size + GAP), TOP + layers * (size + GAP));
  const all = picture(width, layers * heads * height, (row, column) => values[row * width + column] / 255);
  brush.font = "12px system-ui, sans-serif";
  [brush.textAlign, brush.textBaseline, brush.imageSmoothingEnabled] = ["center", "middle", size < width];
  for (let head = 1; head <= heads; head++) label(brush, head, LEFT + (head - 1) * (size + GAP) + size / 2, TOP / 2);
  for (let layer = 1; layer <= layers; layer++) {
    const y = TOP + (layer - 1) * (size + GAP);
    label(brush, layer, LEFT / 2, y + size / 2);
    for (let head = 1; head <= heads; head++) {
      const x = LEFT + (head - 1) * (size + GAP);
      brush.fillStyle = colour("--panel");
      brush.fillRect(x, y, size, size);
      brush.drawImage(all, 0, ((layer - 1) * heads + head - 1) * height, width, height, x, y, size, size);
      frame(brush, x, y, size, layer === chosen.layer && head === chosen.head, framed !== null && framed.size < layers * heads && framed.has(`${layer}.${head}`));
      title(brush, names.get(`${layer}.${head}`) ?? "", x, y, size);
    }
  }
}

/** @param {import("chainrule/paint").Brush} brush @param {number} number @param {number} x @param {number} y */
function label(brush, number, x, y) {
  brush.fillStyle = colour("--soft");
  brush.fillText(String(number), x, y);
}

/** The name of a head at the top of its map, where a causal pattern is empty; one that does not fit is left out.
 * @param {import("chainrule/paint").Brush} brush @param {string} name @param {number} x @param {number} y @param {number} size */
function title(brush, name, x, y, size) {
  brush.font = "10px system-ui, sans-serif";
  if (name && brush.measureText(name).width < size - 4) {
    brush.fillStyle = colour("--ink");
    brush.fillText(name, x + size / 2, y + 9);
  }
  brush.font = "12px system-ui, sans-serif";
}

/** @param {import("chainrule/paint").Brush} brush @param {number} x @param {number} y @param {number} size @param {boolean} chosen @param {boolean} marked */
function frame(brush, x, y, size, chosen, marked) {
  if (!chosen && !marked) return;
  brush.strokeStyle = colour(chosen ? "--focus" : "--soft");
  brush.lineWidth = chosen ? 3 : 1;
  brush.strokeRect(x, y, size, size);
}
