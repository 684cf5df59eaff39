// @ts-check
/** One view in its panel: drawn by its module, or a line that says why it is not. */
import { html } from "chainrule/draw";

/** What a view may ask of the server that serves it.
 * @typedef {{ ask(options: Record<string, string>): Promise<any>, write(text: string): void, text(): string }} Live */
/** @typedef {((data: any) => void) | null} Update shows other data in what is drawn already */

/** Draws a view, and gives what can update it, if it can be updated.
 * @param {Element} place @param {string} module @param {any} data @param {import("chainrule/state").State} state
 * @param {Live | null} live @returns {Promise<Update>} */
export async function show(place, module, data, state, live) {
  const failed = (/** @type {unknown} */ error) => {
    console.error(error);
    place.replaceChildren(complaint(`This view could not be drawn: ${error}`));
  };
  try {
    const { render } = await import(`chainrule/${module}`);
    const body = html("div");
    place.replaceChildren(...omitted(data), body);
    const update = await render(body, data, state, live);
    return typeof update === "function" ? (data) => { showOmitted(place, data); try { update(data); } catch (error) { failed(error); } } : null;
  } catch (error) {
    failed(error);
    return null;
  }
}

/** @param {string} line */
export const complaint = (line) => html("p", { class: "error", role: "alert" }, line);

/** How much of a long text is not shown. @param {any} data */
function omitted(data) {
  const { left_out: count = 0, left_out_of: units = "tokens" } = data ?? {};
  return count > 0 ? [html("p", { class: "note left-out" }, `The first ${count.toLocaleString("en")} ${units} of the text are left out.`)] : [];
}

/** @param {Element} place @param {any} data */
function showOmitted(place, data) {
  place.querySelector(":scope > .left-out")?.remove();
  place.prepend(...omitted(data));
}
