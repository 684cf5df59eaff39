// @ts-check
/** Charts by Plotly, in the colours and the font of the page, and again in others when light becomes dark.
 *
 * In a file Plotly is there; the live page fetches it from its own server when it is first needed. */
import { html } from "chainrule/draw";

/** @typedef {Record<string, any>} Values of Plotly; a colour may be a variable of the page, as in `rgb(var(--hot) / 0.5)` */

const CONFIG = { responsive: true, displaylogo: false };
/** @type {Promise<any> | undefined} */
let coming;

/** What is drawn, and of what. @type {Map<HTMLElement, { traces: Values[], layout: Values }>} */
const drawn = new Map();

function plotly() {
  const here = /** @type {any} */ (window);
  coming ??= here.Plotly ? Promise.resolve(here.Plotly) : new Promise((resolve, reject) => {
    const failed = () => { coming = undefined; reject(new Error("plotly.js could not be loaded from the server")); };
    document.head.append(html("script", { src: "plotly.js", load: () => resolve(here.Plotly), error: failed }));
  });
  return coming;
}

/** Draws a chart in an element, or changes the one that is there.
 * @param {HTMLElement} element @param {Values[]} traces @param {Values} [layout] */
export async function plot(element, traces, layout = {}) {
  const Plotly = await plotly();
  drawn.set(element, { traces, layout });
  await Plotly.react(element, dressed(traces), merged(house(), dressed(layout)), CONFIG);
}

new MutationObserver(() => {
  for (const [element, { traces, layout }] of drawn)
    if (element.isConnected) plot(element, traces, layout);
    else drawn.delete(element);
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });

/** The layout of every chart of the page. @returns {Values} */
function house() {
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
  const body = getComputedStyle(document.body);
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 50, r: 16, t: 24, b: 44 },
    font: { family: body.fontFamily, size: Math.min(16, parseFloat(body.fontSize)), color: colour("--ink") },
    colorway: [0, 1, 2, 3, 4, 5].map((place) => colour(`--hue${place}`)),
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
    xaxis: axis, yaxis: axis, modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--ink") },
  };
}

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The same values, each variable of the page by the colour it stands for now. @param {any} value @returns {any} */
function dressed(value) {
  if (typeof value === "string") return value.includes("var(--") ? spelled(value) : value;
  if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(dressed);
  if (value?.constructor !== Object) return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, dressed(part)]));
}

/** `rgb(var(--hot) / 0.5)` as Plotly reads it: `rgba(213,94,0,0.5)`. @param {string} value */
function spelled(value) {
  const plain = value.replace(/var\((--[a-z0-9]+)\)/g, (_, name) => colour(name));
  return plain.replace(/rgb\((\d+) (\d+) (\d+)(?: \/ ([\d.]+))?\)/g, (_, r, g, b, a) => `rgba(${r},${g},${b},${a ?? 1})`);
}

/** @param {Values} one @param {Values} other which wins @returns {Values} */
function merged(one, other) {
  const both = { ...one };
  for (const [name, value] of Object.entries(other))
    both[name] = value?.constructor === Object && one[name]?.constructor === Object ? merged(one[name], value) : value;
  return both;
}
