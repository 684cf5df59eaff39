// @ts-check
/** The live page: the reader chooses runs, a text and a view; the server sends the data, and the view draws it.
 *
 * All choices are in the address. Typed text is sent after a short pause; an answer that arrives after the next request
 * is dropped. */
import { choices, html, short } from "chainrule/draw";
import { complaint, painted, show } from "chainrule/panel";
import { remember } from "chainrule/state";
import { dress } from "chainrule/theme";

/** @typedef {{ name: string, title: string, note: string, several: boolean, reads: boolean, needs: string, group: string }} View */
/** @typedef {{ name: string, hue: number, kind?: string, task?: string, parameters?: number, views?: string[], error?: string }} Run */

const PAUSE = 250;    // milliseconds without typing after which a request is sent
const SIGN = 200;     // milliseconds of waiting after which “computing” is shown
const FEW = 3;        // up to so many runs are all chosen at first; of more only the last two
const TYPED = "textarea, select, input:not([type=checkbox], [type=radio], [type=range])";    // where a key writes

/** @param {string} name */
const part = (name) => /** @type {HTMLElement} */ (document.getElementById(name));
/** @type {{ text: string, views: View[], first: string | null }} */
const about = JSON.parse(part("about").textContent ?? "");
const page = remember("page");
const area = /** @type {HTMLTextAreaElement} */ (part("text"));
const place = /** @type {HTMLElement} */ (document.querySelector("main .view"));

/** @type {Run[]} */
let runs = [];
let requests = 0, latest = 0, typing = 0;
/** What is drawn: which view of which runs, and how to update it. @type {{ key: string, update: import("chainrule/panel").Update } | null} */
let drawn = null;
/** @type {AbortController | null} */
let question = null;
/** The text of what is drawn. @type {string | null} */
let shown = null;

/** The server's answer, or null after an error, which is then shown.
 * @param {string} path @param {object} [body] @param {AbortSignal} [signal] @returns {Promise<any>} */
async function ask(path, body, signal) {
  requests += 1;
  setTimeout(() => { if (requests) part("busy").textContent = "computing"; }, SIGN);
  try {
    const headers = { "content-type": "application/json" };
    const answer = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body), signal } : { signal });
    const value = await answer.json();
    if (!value.error) return value;
    problem(value.error);
  } catch (error) {
    if (!signal?.aborted) problem(`The server does not answer (${error}). Is chainrule look still running?`);
  } finally {
    requests -= 1;
    if (!requests) part("busy").textContent = "";
  }
  return null;
}

/** @param {string} [line] */
const problem = (line) => part("problem").replaceChildren(...(line ? [complaint(line)] : []));

/** By the address, where an empty list is a choice too; else some that the view fits. */
function chosenRuns() {
  const able = runs.filter((run) => !run.error).map((run) => run.name), listed = page.get("runs", "*");
  const asked = listed.split(",").map(decodeURIComponent).filter((name) => able.includes(name));
  if (asked.length || listed === "") return asked;
  const fit = fitted(page.get("view", about.first ?? "")), some = fit.length ? fit : able;
  return some.length > FEW ? some.slice(-2) : some;
}

/** All runs that a view fits. @param {string} name */
const fitted = (name) => runs.filter((run) => run.views?.includes(name)).map((run) => run.name);

/** The chosen runs that a view fits. @param {View} view */
const fitting = (view) => chosenRuns().filter((name) => fitted(view.name).includes(name));

function chosenView() {
  const named = page.get("view", about.first ?? "");
  return about.views.find((view) => view.name === named) ?? about.views.find((view) => fitting(view).length) ?? about.views[0];
}

/** What a view needs, instead of the view; and a way to it. @param {View} view */
function unfit(view) {
  const others = fitted(view.name).slice(0, FEW), line = chosenRuns().length ? `This view needs ${view.needs}. ` : "Choose a model. ";
  const take = html("button", { type: "button", click: () => open(view) }, `use ${others.join(", ")}`);
  return [html("p", { class: "error", role: "status" }, line, ...(others.length ? [take] : []))];
}

/** Shows a view, of the chosen runs that it fits; where it fits none of them, of others. @param {View} view */
function open(view) {
  const runs = fitting(view).length ? {} : { runs: fitted(view.name).slice(0, FEW).map(encodeURIComponent).join(",") };
  page.visit({ view: view.name, ...(runs.runs ? runs : {}) });
  scrollTo({ top: 0, behavior: "instant" });
  return refresh();
}

/** Shows what is chosen now. */
async function refresh() {
  clearTimeout(typing);
  delete document.documentElement.dataset.drawn;
  const number = ++latest;
  question?.abort();
  question = new AbortController();
  const view = chosenView(), fit = fitting(view), state = remember(view.name);
  const names = view.several ? fit : fit.filter((name, number) => name === (fit.includes(state.get("run", "")) ? state.get("run", "") : fit[0]));
  const key = JSON.stringify([view.name, names]);
  dressPage(view, fit, names);
  if (drawn?.key !== key) place.replaceChildren();
  if (!names.length) return settle(...unfit(view));
  const options = (/** @type {Record<string, string>} */ more = {}) => ({ runs: names, text: area.value, options: { ...state.every(), ...more } });
  const path = `/api/views/${view.name}`, asked = area.value;
  const answer = await ask(path, options(), question.signal);
  if (number !== latest) return;
  shown = asked;
  if (!answer) return settle();
  problem();
  const live = {
    ask: async (/** @type {Record<string, string>} */ more) => {
      const asked = latest, found = await ask(path, options(more));
      if (found && asked === latest) problem();
      return asked === latest ? found?.data ?? null : null;
    },
    write, text: () => area.value, current: () => area.value === shown,
  };
  if (drawn?.key === key && drawn.update) drawn.update(answer.data);
  else {
    const own = html("div");    // so that a view whose module loads late cannot draw over the next
    place.replaceChildren(own);
    const update = await show(own, view.name, answer.data, state, live, view.note);
    if (number !== latest) return;
    drawn = { key, update };
  }
  done();
}

/** @param {...Element} lines instead of a view */
function settle(...lines) {
  drawn = null;
  place.replaceChildren(...lines);
  done();
}

/** Says that what was asked for last is drawn, once it is painted. */
async function done() {
  const number = latest;
  await painted();
  if (number === latest) document.documentElement.dataset.drawn = "true";
}

/** @param {View} view @param {string[]} fit @param {string[]} names those of them that are shown */
function dressPage(view, fit, names) {
  document.title = `${view.title}: ${chosenRuns().join(", ")}`;
  part("title").textContent = view.title;
  part("written").hidden = !view.reads;
  place.parentElement?.setAttribute("id", view.name);
  const options = Object.fromEntries(fit.map((name) => [name, name]));
  part("which").replaceChildren(...(view.several || fit.length < 2 ? [] : [choices("model", options, names[0], (name) => {
    remember(view.name).visit({ run: name });
    refresh().then(() => part("which").querySelector("input:checked")).then((input) => /** @type {HTMLElement} */ (input)?.focus());
  })]));
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (part("views").querySelectorAll("a"))) {
    const one = /** @type {View} */ (about.views.find(({ name }) => name === link.dataset.view));
    const fits = fitted(one.name).length > 0;
    link.href = page.link({ view: one.name });
    link.classList.toggle("live-unfit", !fits);
    link.title = fits ? one.note : `This view needs ${one.needs}.`;
    if (one === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (one === view) reveal(link, part("views"));
  }
  for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (part("runs").querySelectorAll("input"))) box.checked = chosenRuns().includes(box.value);
}

/** Scrolls a list, not the page, to one of its links that is scrolled away, as on a phone. @param {HTMLElement} link @param {HTMLElement} list */
function reveal(link, list) {
  const [inner, outer] = [link, list].map((one) => one.getBoundingClientRect());
  if (inner.left >= outer.left && inner.right <= outer.right && inner.top >= outer.top && inner.bottom <= outer.bottom) return;
  list.scrollBy({ left: inner.left + inner.width / 2 - outer.left - outer.width / 2, top: inner.top + inner.height / 2 - outer.top - outer.height / 2, behavior: "instant" });
}

/** Another text, as if it had been typed. @param {string} text */
function write(text) {
  area.value = text;
  showEnd();
  page.set("text", text);
  return refresh();
}

/** The end of the text is what models continue, so that line is shown. */
function showEnd() {
  area.scrollTop = area.scrollHeight;
}

/** @param {Run} run */
function chip(run) {
  const facts = run.error ? "cannot be loaded" : `${run.kind}${run.task === "lm" ? "" : `, ${run.task}`}, ${short(run.parameters)} parameters`;
  return html("label", { class: "chip", title: run.error ?? facts, "data-model": run.name },
    html("input", { type: "checkbox", value: run.name, disabled: Boolean(run.error), change: pick }), run.name, html("span", { class: "unseen" }, `, ${facts}`));
}

/** The colours of the models, for all that has `data-model`. */
const dyes = () => html("style", {}, runs.map((run) => `[data-model="${CSS.escape(run.name)}"] { --model: var(--hue${run.hue}); }`).join("\n"));

function pick() {
  const boxes = /** @type {HTMLInputElement[]} */ ([...part("runs").querySelectorAll("input:checked")]);
  page.visit({ runs: boxes.map(({ value }) => encodeURIComponent(value)).join(",") });
  refresh();
}

/** @param {View} view */
function tab(view) {
  return html("a", { "data-view": view.name, click: (event) => {
    const { ctrlKey, metaKey, shiftKey } = /** @type {MouseEvent} */ (event);
    if (ctrlKey || metaKey || shiftKey) return;    // another window, by the link
    event.preventDefault();
    open(view);
  } }, view.title);
}

/** The links to the views, under the names of their groups. */
const rail = () => about.views.flatMap((view, place) =>
  [...(view.group === about.views[place - 1]?.group ? [] : [html("p", { class: "rail-group" }, view.group)]), tab(view)]);

/** The picture alone, on the full screen where the browser allows it; and back. */
function fill() {
  const full = document.body.classList.toggle("alone");
  if (full) document.documentElement.requestFullscreen?.().catch(() => {});
  else if (document.fullscreenElement) document.exitFullscreen();
}

dress();
area.value = page.get("text", about.text);
showEnd();
area.addEventListener("blur", showEnd);
addEventListener("fullscreenchange", () => { if (!document.fullscreenElement) document.body.classList.remove("alone"); });
addEventListener("keydown", (event) => {
  const { key, target, altKey, ctrlKey, metaKey } = event;
  if (key === "Escape" && target === area) area.blur();
  else if (key === "Escape" && !document.fullscreenElement) document.body.classList.remove("alone");
  if (key === "f" && !altKey && !ctrlKey && !metaKey && !(/** @type {Element} */ (target).matches(TYPED))) fill();
});
part("full").addEventListener("click", fill);
part("skip").addEventListener("click", (event) => { event.preventDefault(); part("main").focus(); });
area.addEventListener("input", () => {
  clearTimeout(typing);
  page.set("text", area.value);
  typing = setTimeout(refresh, PAUSE);
});
addEventListener("popstate", () => {
  area.value = page.get("text", about.text);
  showEnd();
  dress();
  drawn = null;
  refresh();
});
part("views").append(...rail());
runs = (await ask("/api/runs")) ?? [];
part("runs").append(...runs.map(chip));
document.head.append(dyes());
await refresh();
const broken = runs.find((run) => run.error);
if (broken && !part("problem").textContent) problem(broken.error);
