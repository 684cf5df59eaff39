// @ts-check
/** Light or dark: as JupyterLab or the system is, unless the reader has chosen with the page's button. Paper is light. */
import { remember } from "chainrule/state";

const dark = matchMedia("(prefers-color-scheme: dark)"), paper = matchMedia("print");
const chosen = remember("page");

/** The body of the notebook that frames this page; null: there is none, or it may not be read. */
function notebook() {
  try {
    return parent === window ? null : parent.document.body;
  } catch {
    return null;
  }
}

/** Applies the choice; modules that paint observe the attribute. */
export function dress() {
  const { jpThemeLight: light } = notebook()?.dataset ?? {};    // "true" or "false" in JupyterLab
  const otherwise = light === undefined ? dark.matches : light === "false";
  document.documentElement.dataset.theme = paper.matches ? "light" : chosen.get("theme", otherwise ? "dark" : "light");
}

for (const one of [dark, paper]) one.addEventListener("change", dress);
const framing = notebook();
if (framing) new MutationObserver(dress).observe(framing, { attributeFilter: ["data-jp-theme-light"] });
document.getElementById("theme")?.addEventListener("click", () => {
  chosen.set("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  dress();
});
dress();
