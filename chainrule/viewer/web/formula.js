// @ts-check
/** Formulas with numbers: they are shown rounded, and each has its exact value in its title. */
import { html } from "chainrule/draw";

/** @typedef {import("chainrule/draw").Child} Child */

/** Enough digits to calculate with. @param {number} value @param {number} [kept] */
export function digits(value, kept = 5) {
  if (Number.isInteger(value)) return String(value).replace("-", "−");
  const [mantissa, power] = value.toExponential(kept - 1).split("e");
  const plain = Math.abs(Number(power)) < 4;
  return (plain ? String(Number(value.toPrecision(kept))) : `${Number(mantissa)}·10${raised(power)}`).replace("-", "−");
}

/** @param {string} power */
const raised = (power) => [...power.replace("+", "")].map((letter) => (letter === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(letter)])).join("");

/** @param {number} value @param {string} [kind] */
export const number = (value, kind = "") => html("span", { class: kind, title: value, "data-value": value }, digits(value));

/** The result of a formula. @param {number} value @param {string} [kind] */
export const result = (value, kind = "") => html("b", { class: `result ${kind}`, title: value, "data-value": value }, digits(value));

/** A fraction. @param {Child} above @param {Child} below */
export const over = (above, below) =>
  html("span", { class: "formula-over" }, html("span", {}, above), html("span", { class: "formula-under" }, below));

/** A letter with a subscript. @param {Child} letter @param {...Child} index */
export const low = (letter, ...index) => html("span", { class: "formula" }, letter, html("sub", {}, ...index));

/** Symbols in which `_t` and `_{s,t}` are subscripts. @param {string} text @returns {HTMLElement} */
export function symbols(text) {
  const parts = text.split(/_(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(.))/u);    // text, braced or not, text, …
  return html("span", { class: "formula" }, ...parts.flatMap((part, place) =>
    (part === undefined ? [] : [place % 3 === 0 ? part : html("sub", {}, symbols(part))])));
}
