// @ts-check
/** Curves of preference tuning and reinforcement learning, with what is wrong with them. The charts are ready SVG. */
import { html } from "chainrule/draw";

/** @typedef {{ title: string, svg: string }} Chart */
/** @typedef {{ trouble: string, sentence: string }} Finding */
/** @typedef {{ name: string, charts: Chart[], findings: Finding[] }} Model */
/** @typedef {{ models: Model[] }} Data */

const GRID = "display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem 2rem";

/** @param {Element} element @param {Data} data */
export function render(element, data) {
  const shown = html("div", { class: "picture" });
  element.append(shown);
  const draw = (/** @type {Data} */ { models }) => shown.replaceChildren(
    ...models.flatMap((model) => [...(models.length > 1 ? [html("h3", {}, model.name)] : []), ...parts(model)]));
  draw(data);
  return draw;
}

/** @param {Model} model */
function parts({ name, charts, findings }) {
  const said = findings.map(({ trouble, sentence }) => html("p", { class: "finding" }, html("b", {}, `${trouble}: `), sentence));
  if (!said.length) said.push(html("p", { class: "note" }, "No curve looks wrong."));
  return [...said, html("div", { style: GRID }, ...charts.map((chart) => picture(name, chart)))];
}

/** @param {string} name @param {Chart} chart */
function picture(name, { title, svg }) {
  const figure = html("figure", { style: "margin: 0" });
  figure.innerHTML = svg;
  const drawn = /** @type {SVGElement} */ (figure.firstElementChild);
  drawn.setAttribute("class", "chart");    // text in the page's ink, larger on a phone, where the longest names pass the edge
  drawn.style.overflow = "visible";
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", `${title}, by step: ${name}`);
  return figure;
}
