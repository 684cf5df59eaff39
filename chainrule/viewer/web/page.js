// @ts-check
/** Draws the views of a page from disk. Their state is in the address, so a link shows the same. */
import { complaint, show } from "chainrule/panel";
import { remember } from "chainrule/state";
import { dress } from "chainrule/theme";

/** JSON from base64 of what zlib compressed. @param {string} deflated */
function inflate(deflated) {
  const bytes = Uint8Array.from(atob(deflated), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

/** @typedef {{ name: string, module: string, note: string, data?: any, deflated?: string, error?: string }} Panel `deflated`: the data, compressed */

dress();
/** @type {Panel[]} */
const panels = JSON.parse(document.getElementById("panels")?.textContent ?? "[]");
for (const { name, module, note, data, deflated, error } of panels) {
  const place = /** @type {Element} */ (document.querySelector(`#${name} .view`));
  if (error) place.append(complaint(error));
  else await show(place, module, deflated ? await inflate(deflated) : data, remember(name), null, note);
}
if (location.protocol === "about:")    // a page in a frame: a link would refer to the outer page
  document.querySelector("nav")?.addEventListener("click", (event) => {
    const place = /** @type {Element} */ (event.target).getAttribute("href");
    if (!place) return;
    event.preventDefault();
    document.querySelector(place)?.scrollIntoView();
  });
document.documentElement.dataset.drawn = "true";
