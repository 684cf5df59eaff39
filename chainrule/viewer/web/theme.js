// @ts-check
/** Light or dark: as the system is, unless the reader has chosen with the page's button. */
import { remember } from "chainrule/state";

const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = remember("page");

/** Applies the choice; modules that paint observe the attribute. */
export function dress() {
  document.documentElement.dataset.theme = chosen.get("theme", dark.matches ? "dark" : "light");
}

dark.addEventListener("change", dress);
document.getElementById("theme")?.addEventListener("click", () => {
  chosen.set("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  dress();
});
dress();
