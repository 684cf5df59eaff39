// @ts-check
/** The tree of a beam search: a row for each token, with the hypotheses that were kept, the most probable at the left. */
import { fixed, svg } from "chainrule/draw";

/** @typedef {{ shown: string, end: boolean, parent: number, log_prob: number, own: number }} Node */
/** @typedef {{ step: number, place: number, text: string }} End of a text that is finished */

export const ROW = 38;     // pixels of a row, and those above the first: the map beside has the same
export const TOP = 96;
const [WIDE, HIGH, LEFT] = [98, 28, 8];
const [LETTERS, ACROSS] = [10, WIDE - 12];

/** @param {Node[][]} rows @param {End[]} ends that can be chosen @param {number} chosen which of them is bold @param {(end: number) => void} pick */
export function tree(rows, ends, chosen, pick) {
  const most = Math.max(1, ...rows.map((row) => row.length));
  const width = LEFT + most * WIDE, height = TOP + rows.length * ROW;
  const bold = path(rows, ends[chosen]);
  const made = svg("svg", { class: "tree", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "hypotheses that the beam kept" });
  made.append(svg("circle", { class: "tree-start", cx: x(0), cy: TOP - 20, r: 5 }));
  const edges = rows.flatMap((row, step) => row.map((node, place) => edge(node, step, place, bold.has(`${step}.${place}`))));
  const nodes = rows.flatMap((row, step) => row.map((node, place) => {
    const end = ends.findIndex((one) => one.step === step && one.place === place);
    return drawn(node, step, place, bold.has(`${step}.${place}`), end, end === chosen, pick, ends[end]?.text);
  }));
  edges.sort((one, other) => Number(one.classList.contains("bold")) - Number(other.classList.contains("bold")));
  made.append(...edges, ...nodes);
  return made;
}

/** @param {number} place */
const x = (place) => LEFT + place * WIDE + ACROSS / 2;
/** @param {number} step */
const y = (step) => TOP + (step + 0.5) * ROW;

/** Where a text goes through the tree. @param {Node[][]} rows @param {End | undefined} end */
function path(rows, end) {
  const places = new Set();
  for (let step = end?.step ?? -1, place = end?.place ?? 0; step >= 0; step--) {
    places.add(`${step}.${place}`);
    place = rows[step][place].parent;
  }
  return places;
}

/** @param {Node} node @param {number} step @param {number} place @param {boolean} bold */
function edge(node, step, place, bold) {
  const [fromX, fromY, toX, toY] = step ? [x(node.parent), y(step - 1) + HIGH / 2, x(place), y(step) - HIGH / 2] : [x(0), TOP - 16, x(place), y(0) - HIGH / 2];
  const middle = (fromY + toY) / 2;
  return svg("path", { class: bold ? "tree-edge bold" : "tree-edge", d: `M${fromX} ${fromY}C${fromX} ${middle} ${toX} ${middle} ${toX} ${toY}` });
}

/** @param {Node} node @param {number} step @param {number} place @param {boolean} bold @param {number} end its number among the texts, or -1
 * @param {boolean} chosen @param {(end: number) => void} pick @param {string | undefined} text */
function drawn(node, step, place, bold, end, chosen, pick, text) {
  const shown = node.shown.length > LETTERS ? `${node.shown.slice(0, LETTERS - 1)}…` : node.shown;
  const clickable = end < 0 ? {} : { tabindex: 0, role: "button", "aria-pressed": String(chosen), "aria-label": `end ${fixed(node.log_prob, 2)}: ${text}`, click: () => pick(end),
    keydown: (/** @type {Event} */ event) => {
      if (!["Enter", " "].includes(/** @type {KeyboardEvent} */ (event).key)) return;
      event.preventDefault();
      pick(end);
    } };
  return svg("g", { class: `tree-node${bold ? " bold" : ""}${node.end ? " end" : ""}${end < 0 ? "" : " can"}`, "data-step": step, "data-place": place, "data-log-prob": node.log_prob,
    transform: `translate(${x(place) - ACROSS / 2} ${y(step) - HIGH / 2})`, ...clickable },
    svg("title", {}, `${node.shown}: log p ${node.own} here, ${node.log_prob} from the start`),
    svg("rect", { width: ACROSS, height: HIGH, rx: node.end ? HIGH / 2 : 4 }),
    svg("text", { x: ACROSS / 2, y: 12, "text-anchor": "middle" }, node.end ? "end" : shown),
    svg("text", { class: "small", x: ACROSS / 2, y: 24, "text-anchor": "middle" }, fixed(node.log_prob, 2)));
}
