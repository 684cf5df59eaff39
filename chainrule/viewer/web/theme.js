// @ts-check
/** Light or dark: as the system is, unless the reader has said otherwise by the page's button. */
import { remember } from "chainrule/state";

const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = remember("page");

/** Makes the page what was chosen; modules that paint hear of it by the attribute. */
export function dress() {
  document.documentElement.dataset.theme = chosen.get("theme", dark.matches ? "dark" : "light");
}

dark.addEventListener("change", dress);
document.getElementById("theme")?.addEventListener("click", () => {
  chosen.set("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  dress();
});
dress();
