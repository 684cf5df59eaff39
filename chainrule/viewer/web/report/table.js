// @ts-check
/** A plain table: names on the left, numbers on the right, words where there are words. */
import { html, scrolling, short } from "chainrule/draw";

/** @param {Element} element @param {{ columns: string[], rows: (string | number | null)[][] }} data */
export function render(element, { columns, rows }) {
  const words = (/** @type {number} */ place) => rows.some((row) => typeof row[place] === "string");
  const head = html("tr", {}, ...columns.map((name, place) => html("th", { scope: "col", class: words(place) && "words" }, name)));
  const body = rows.map(([name, ...rest]) =>
    html("tr", {}, html("th", { scope: "row" }, name), ...rest.map((value) => cell(value))));
  element.append(scrolling(`table: ${columns.join(", ")}`,
    html("table", {}, html("thead", {}, head), html("tbody", {}, ...body))));
}

/** @param {string | number | null} value */
function cell(value) {
  if (typeof value === "string") return html("td", { class: "words" }, value);
  return html("td", { title: value ?? "" }, short(value));
}
