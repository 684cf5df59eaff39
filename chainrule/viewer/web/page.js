// @ts-check
/** Draws the views of a page from disk. Their state is in the address, so a link shows the same. */
import { byNumber } from "chainrule/arrays";
import { complaint, painted, show } from "chainrule/panel";
import { remember } from "chainrule/state";
import { dress } from "chainrule/theme";

/** @typedef {{ name: string, module: string, note: string, data?: any, deflated?: string, error?: string }} Panel `deflated`: the data, compressed */
/** @typedef {(text: string) => Response} Inflate from base64 of what zlib compressed */

/** JSON, a zero, and the bytes of the arrays in it. @param {Uint8Array} bytes */
function read(bytes) {
  const end = bytes.indexOf(0);
  return JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)), (_, value) => (typeof value?.at === "number" && value.dtype ? byNumber(value, bytes.subarray(end + 1)) : value));
}

/** @param {Inflate} inflate */
export async function draw(inflate) {
  dress();
  /** @type {Panel[]} */
  const panels = JSON.parse(document.getElementById("panels")?.textContent ?? "[]");
  for (const { name, module, note, data, deflated, error } of panels) {
    const place = /** @type {Element} */ (document.querySelector(`#${name} .view`));
    if (error) place.append(complaint(error));
    else await show(place, module, deflated ? read(new Uint8Array(await inflate(deflated).arrayBuffer())) : data, remember(name), null, note);
  }
  if (location.protocol === "about:")    // a page in a frame: a link would refer to the outer page
    document.querySelector("nav")?.addEventListener("click", (event) => {
      const place = /** @type {Element} */ (event.target).getAttribute("href");
      if (!place) return;
      event.preventDefault();
      document.querySelector(place)?.scrollIntoView();
    });
  await painted();
  document.documentElement.dataset.drawn = "true";
}
