// @ts-check
/** Finds the views of this page and lets each draw itself. Their state is in the address, so a link shows the same. */
import { remember } from "chainrule/state";

/** @typedef {{ name: string, module: string, data: any }} View */

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = remember("page");

function dress() {
  document.documentElement.dataset.theme = theme.get("theme", dark.matches ? "dark" : "light");
}

dark.addEventListener("change", dress);
document.getElementById("theme")?.addEventListener("click", () => {
  theme.set("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  dress();
});
dress();

/** @type {View[]} */
const views = JSON.parse(document.getElementById("views")?.textContent ?? "[]");
for (const { name, module, data } of views) {
  const { render } = await import(`chainrule/${module}`);
  render(document.querySelector(`#${name} .view`), data, remember(name));
}
document.documentElement.dataset.drawn = "true";
