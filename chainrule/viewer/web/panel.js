// @ts-check
/** One view in its panel: drawn by its module, or a line that says why it is not.
 *
 * The picture comes first. A view gives one of its elements the class `picture`; what it appends before that one (dials,
 * formula, readout) is placed beside the picture, or below it on a narrow screen. */
import { html } from "chainrule/draw";
import { showInput } from "chainrule/input";

/** What a view may ask of the server that serves it. `current`: is what is drawn of the text as it is now?
 * @typedef {{ ask(options: Record<string, string>): Promise<any>, write(text: string): void, text(): string, current(): boolean }} Live */
/** @typedef {((data: any) => void) | null} Update shows other data in what is drawn already */

/** Draws a view, and gives what can update it, if it can be updated.
 * @param {Element} place @param {string} module @param {any} data @param {import("chainrule/state").State} state
 * @param {Live | null} live @param {string} [note] what it shows, in a sentence @returns {Promise<Update>} */
export async function show(place, module, data, state, live, note = "") {
  const failed = (/** @type {unknown} */ error) => {
    console.error(error);
    place.replaceChildren(complaint(`This view could not be drawn: ${error}`));
  };
  try {
    const { render } = await import(`chainrule/${module}`);
    const body = html("div", { class: "panel" }), input = html("div", { class: "input" });
    const given = showInput(input, data, state, live);
    place.replaceChildren(input, body);
    const update = await render(body, data, state, live);
    arrange(body, note);
    showOmitted(place, data);
    return typeof update === "function" ? (data) => { showOmitted(place, data); given(data); try { update(data); } catch (error) { failed(error); } } : null;
  } catch (error) {
    failed(error);
    return null;
  }
}

/** Once what is drawn is painted too: charts that fit their place are painted in the frame in which their width is known. @returns {Promise<void>} */
export const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

/** @param {string} line */
export const complaint = (line) => html("p", { class: "error", role: "alert" }, line);

/** The picture, and what belongs to it, in one column; the note and the dials in another.
 * @param {HTMLElement} body @param {string} note */
function arrange(body, note) {
  const picture = body.querySelector(":scope > .picture"), about = note ? [html("p", { class: "note" }, note)] : [];
  if (!picture) return void body.prepend(...about);
  const every = [...body.childNodes], at = every.indexOf(picture);
  body.classList.add("beside");
  body.replaceChildren(html("div", { class: "shown" }, ...every.slice(at)), html("div", { class: "dials" }, ...about, ...every.slice(0, at)));
}

/** How much of a long text is not shown. @param {any} data */
function omitted(data) {
  const { left_out: count = 0, left_out_of: units = "tokens" } = data ?? {};
  return count > 0 ? [html("p", { class: "note left-out" }, `The first ${count.toLocaleString("en")} ${units} of the text are left out.`)] : [];
}

/** @param {Element} place @param {any} data */
function showOmitted(place, data) {
  place.querySelector(".left-out")?.remove();
  (place.querySelector(".dials") ?? place).prepend(...omitted(data));
}
