// @ts-check
/** Canvases: as sharp as the screen, in the colours of the page, and painted again when light becomes dark. */

/** @typedef {CanvasRenderingContext2D} Brush */

/** What is painted, and how. @type {Map<HTMLCanvasElement, () => void>} */
const painted = new Map();

new MutationObserver(() => {
  for (const [canvas, paint] of painted)
    if (canvas.isConnected) paint();
    else painted.delete(canvas);
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });

/** Paints a canvas, now and whenever the colours of the page change.
 * @param {HTMLCanvasElement} canvas @param {() => void} paint */
export function keepPainted(canvas, paint) {
  painted.set(canvas, paint);
  paint();
}

/** Paints a canvas whenever the width of an element has changed, and once it has one.
 * @param {HTMLElement} element @param {HTMLCanvasElement} canvas @param {(width: number) => void} fit @param {() => void} paint */
export function paintedToFit(element, canvas, fit, paint) {
  let width = 0;
  new ResizeObserver(() => {
    if (width === element.clientWidth) return;
    width = element.clientWidth;
    fit(width);
    keepPainted(canvas, paint);
  }).observe(element);
}

/** A clean canvas of so many pixels of the page, and what to paint it with.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @returns {Brush} */
export function stretch(canvas, width, height) {
  const sharp = Math.min(devicePixelRatio || 1, 8192 / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * sharp));
  canvas.height = Math.max(1, Math.round(height * sharp));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const brush = /** @type {Brush} */ (canvas.getContext("2d"));
  brush.scale(canvas.width / Math.max(width, 1), canvas.height / Math.max(height, 1));
  return brush;
}

/** A colour of the page, as `--hot` has it. @param {string} name */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Shares from 0 to 1 as a picture of one pixel each: the more, the hotter. NaN is what cannot be.
 * @param {number} width @param {number} height @param {(row: number, column: number) => number} share */
export function picture(width, height, share) {
  const [red, green, blue] = colour("--hot").split(" ").map(Number);
  const pixels = new ImageData(width, height);
  for (let row = 0, at = 0; row < height; row++)
    for (let column = 0; column < width; column++, at += 4) {
      const value = share(row, column);
      if (Number.isNaN(value)) pixels.data.set([128, 128, 128, 40], at);
      else pixels.data.set([red, green, blue, Math.round(255 * Math.min(1, value))], at);
    }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d")?.putImageData(pixels, 0, 0);
  return canvas;
}

/** The text, or as much of its beginning as fits into a width. @param {Brush} brush @param {string} text @param {number} width */
export function shortened(brush, text, width) {
  if (brush.measureText(text).width <= width) return text;
  let kept = text.slice(0, 40);
  while (kept && brush.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
