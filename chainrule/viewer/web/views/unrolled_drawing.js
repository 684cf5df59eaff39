// @ts-check
/** All vectors of a tiny network. In time: a column a token, a vector downward. In depth: a block a node, a row a token. */
import { svg } from "chainrule/draw";

/** @typedef {import("chainrule/unrolled").Data} Data */
/** @typedef {import("chainrule/unrolled").Node} Node */
/** @typedef {import("chainrule/unrolled").Place} Place */
/** Where the upper left corner of a number is, and the box of one node (in time: of one token's vector).
 * @typedef {{ x: (time: number, index: number) => number, y: (time: number, index: number) => number, left: number, top: number }} Spot */

const [WIDE, HIGH] = [42, 18];       // pixels of a number
const [NAMES, GAP] = [128, 34];      // pixels of the names at the left, and between vectors

/** @param {Data} data @param {Place} place @param {(chosen: Place) => void} choose */
export function drawing(data, place, choose) {
  const spots = data.order === "time" ? inTime(data) : inDepth(data);
  const [width, height] = size(data, spots);
  return svg("svg", { class: "unrolled-network", width, height, "aria-hidden": true },
    arrowhead(), ...edges(data, spots, place), ...data.nodes.flatMap((node, number) => drawNode(data, node, number, spots[number], place, choose)));
}

/** @param {Data} data @returns {Spot[]} */
function inTime(data) {
  let top = 30;
  return data.nodes.map((node) => {
    const here = top;
    top += node.values[0].length * HIGH + GAP;
    return { left: NAMES, top: here, x: (time) => NAMES + time * (WIDE + GAP), y: (_, index) => here + index * HIGH };
  });
}

/** Nodes of one band stand side by side. @param {Data} data @returns {Spot[]} */
function inDepth(data) {
  let [left, top, band] = [46, 34, 0];
  return data.nodes.map((node) => {
    if (node.band !== band) [left, top, band] = [46, top + data.tokens.length * HIGH + GAP + 26, node.band];
    const [x, y] = [left, top];
    left += node.values[0].length * WIDE + 68;
    return { left: x, top: y, x: (_, index) => x + index * WIDE, y: (time) => y + time * HIGH };
  });
}

/** @param {Data} data @param {Spot[]} spots */
function size(data, spots) {
  const last = data.tokens.length - 1;
  const corners = data.nodes.map((node, number) => [spots[number].x(last, node.values[0].length - 1), spots[number].y(last, node.values[0].length - 1)]);
  return [Math.max(...corners.map(([x]) => x)) + WIDE + 14, Math.max(...corners.map(([, y]) => y)) + HIGH + 12];
}

/** @param {Data} data @param {Node} node @param {number} number @param {Spot} spot @param {Place} place @param {(chosen: Place) => void} choose */
function drawNode(data, node, number, spot, place, choose) {
  const later = (/** @type {number} */ time) => (data.order === "depth" || time === place.time ? number > place.node : time > place.time);
  const now = (/** @type {number} */ time) => number === place.node && (data.order === "depth" || time === place.time);
  const columns = node.values.map((vector, time) => svg("g", { "data-node": node.id, "data-time": time,
    class: ["unrolled-vector", later(time) && "later", now(time) && "now", isUsed(data, node, time, place) && "used"].filter(Boolean).join(" ") }, ...vector.map((value, index) => cell(node, value, spot, { node: number, time, index }, place, choose))));
  return [...names(data, node, spot, number === place.node), ...columns];
}

/** Whether the chosen number is computed from this vector. @param {Data} data @param {Node} node @param {number} time @param {Place} place */
const isUsed = (data, node, time, place) => data.nodes[place.node].of.some(({ id, when }) => id === node.id && (
  when === "all" ? (data.nodes[place.node].rule === "mix" ? time <= place.time : time === place.index) : time === place.time - Number(when === "before")));

/** @param {Node} node @param {number | null} value @param {Spot} spot @param {Place} here @param {Place} place @param {(chosen: Place) => void} choose */
function cell(node, value, spot, here, place, choose) {
  const [x, y] = [spot.x(here.time, here.index), spot.y(here.time, here.index)];
  const chosen = here.node === place.node && here.time === place.time && here.index === place.index;
  const made = svg("g", { class: `unrolled-cell${chosen ? " chosen" : ""}`, "data-value": value ?? "-Infinity", "data-index": here.index },
    svg("rect", { x, y, width: WIDE, height: HIGH, ...tint(node, value) }),
    svg("text", { x: x + WIDE / 2, y: y + HIGH - 5, "text-anchor": "middle" }, written(value)),
    svg("title", {}, `${node.symbol}: ${value ?? "−∞"}`));
  made.addEventListener("click", () => choose(here));
  return made;
}

/** Blue below zero, orange above; stronger further from zero. @param {Node} node @param {number | null} value */
function tint(node, value) {
  if (value == null) return { class: "unrolled-masked" };
  const strength = node.rule === "softmax" ? value : Math.min(1, Math.abs(value) / 2);
  return { class: value < 0 ? "unrolled-cold" : "unrolled-hot", "fill-opacity": (0.75 * strength).toFixed(3) };
}

/** Short enough for a cell. @param {number | null} value */
export const written = (value) => (value == null ? "−∞" : (Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toFixed(2)).replace(/^-(0\.00)$/, "$1").replace("-", "−"));

/** The node's symbol and name; labels of its numbers, if they have some: words of the vocabulary, or tokens.
 * @param {Data} data @param {Node} node @param {Spot} spot @param {boolean} now */
function* names(data, node, spot, now) {
  const labels = node.labels === "vocab" ? data.vocab : node.labels === "tokens" ? data.tokens : null;
  const kind = `unrolled-symbol${now ? " now-name" : ""}`;
  const short = (/** @type {string} */ text) => [...text].slice(0, 6).join("");
  if (data.order === "time") {
    yield svg("text", { class: kind, x: 2, y: spot.top + 13 }, node.symbol, svg("tspan", { class: "unrolled-name", x: 2, dy: 15 }, node.name));
    for (const [index, label] of (labels ?? []).entries()) yield svg("text", { class: "unrolled-label", x: NAMES - 6, y: spot.y(0, index) + 13, "text-anchor": "end" }, short(label));
    if (node.rule === "lookup") for (const [time, token] of data.tokens.entries())
      yield svg("text", { class: "unrolled-token", x: spot.x(time, 0) + WIDE / 2, y: spot.top - 10, "text-anchor": "middle" }, short(token));
  } else {
    yield svg("text", { class: kind, x: spot.left, y: spot.top - (labels ? 17 : 6) }, node.symbol, svg("tspan", { class: "unrolled-name" }, `  ${node.name}`));
    for (const [index, label] of (labels ?? []).entries()) yield svg("text", { class: "unrolled-label", x: spot.x(0, index) + WIDE / 2, y: spot.top - 4, "text-anchor": "middle" }, short(label));
    for (const [time, token] of data.tokens.entries()) yield svg("text", { class: "unrolled-label", x: spot.left - 5, y: spot.y(time, 0) + 13, "text-anchor": "end" }, short(token));
  }
}

const arrowhead = () => svg("marker", { id: "unrolled-head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
  svg("path", { d: "M0 0L8 4L0 8z", class: "unrolled-arrowhead" }));

/** From the inputs to each vector. Those of the current step are strong. @param {Data} data @param {Spot[]} spots @param {Place} place */
function* edges(data, spots, place) {
  const numbers = new Map(data.nodes.map((node, number) => [node.id, number]));
  for (const [number, node] of data.nodes.entries()) for (const input of node.of) {
    const from = numbers.get(input.id) ?? 0;
    for (const time of data.order === "time" ? data.tokens.keys() : [place.time]) {
      const before = input.when === "before" ? time - 1 : time;
      if (before < 0) continue;
      const now = number === place.node && (data.order === "depth" || time === place.time);
      yield svg("path", { class: `unrolled-edge${now ? " now-edge" : ""}`, "marker-end": now ? "url(#unrolled-head)" : null,
        d: data.order === "time" ? lineInTime(data, spots, from, number, before, time) : lineInDepth(data, spots, from, number) });
    }
  }
}

/** @param {Data} data @param {Spot[]} spots @param {number} from @param {number} to @param {number} before @param {number} time */
function lineInTime(data, spots, from, to, before, time) {
  const tall = data.nodes[from].values[0].length * HIGH;
  if (before === time && from < to) {
    const [x, y, end] = [spots[from].x(time, 0) + WIDE / 2, spots[from].top + tall, spots[to].top];
    return to === from + 1 ? `M${x} ${y}L${x} ${end}` : `M${x + WIDE / 2} ${y - 6}C${x + 38} ${y + 10} ${x + 38} ${end - 14} ${x + 12} ${end}`;
  }
  const [x, y] = [spots[from].x(before, 0) + WIDE, spots[from].top + tall / 2];
  const [x2, y2] = [spots[to].x(time, 0), spots[to].top + (data.nodes[to].values[0].length * HIGH) / 2];
  return `M${x} ${y}C${x + GAP / 2} ${y} ${x2 - GAP / 2} ${y2} ${x2} ${y2}`;
}

/** @param {Data} data @param {Spot[]} spots @param {number} from @param {number} to */
function lineInDepth(data, spots, from, to) {
  const [one, other] = [spots[from], spots[to]], tall = data.tokens.length * HIGH;
  const wide = (/** @type {number} */ number) => data.nodes[number].values[0].length * WIDE;
  if (one.top === other.top) {
    const y = one.top + tall / 2;
    if (to === from + 1) return `M${one.left + wide(from)} ${y}L${other.left - 40} ${y}`;
    const low = one.top + tall + 14;
    return `M${one.left + wide(from) / 2} ${one.top + tall}C${one.left + wide(from) / 2} ${low + 8} ${other.left + wide(to) / 2} ${low + 8} ${other.left + wide(to) / 2} ${one.top + tall}`;
  }
  const [x, y, x2, y2] = [one.left + wide(from) / 2, one.top + tall, other.left + wide(to) / 2, other.top - 32];
  return `M${x} ${y}C${x} ${y + 26} ${x2} ${y2 - 26} ${x2} ${y2}`;
}
