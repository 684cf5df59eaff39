// @ts-check
/** The page of `chainrule prefer`: a prompt, two answers, a click or a key; the next pair is there before it is needed. */
import { html } from "chainrule/draw";
import { showFigures, showTuning } from "chainrule/figures";
import { complaint } from "chainrule/panel";
import { render } from "chainrule/preferences";
import { ask, makeSaver, newId } from "chainrule/saving";
import { dress } from "chainrule/theme";

/** @typedef {{ text: string, tokens: number, ended: boolean }} Answer */
/** @typedef {{ id: string, prompt: string | { role: string, content: string }[], answers: Answer[], compares: boolean }} Pair */
/** @typedef {import("chainrule/figures").State} State */

const RATER = "chainrule-prefer-rater";
const POLL = 1000;     // milliseconds between questions while a tuning runs
const SIDES = ["left", "right"];
const ARROWS = ["←", "→"];

/** @param {string} name @returns {any} */
const part = (name) => document.getElementById(name);
/** @type {{ methods: string[] }} */
const about = JSON.parse(part("about").textContent);

let rater = localStorage.getItem(RATER) ?? "";
let mode = "prefer";
/** @type {Pair | null} */
let shown = null;
/** @type {Pair[]} */
let ready = [];
/** Pairs of a request that was sent before the rater or the mode changed are not shown. */
let turn = 0, polling = 0, filling = false;
/** @type {State | null} */
let state = null;

/** @param {string} [line] */
const problem = (line) => part("problem").replaceChildren(...(line ? [complaint(line)] : []));

const saver = makeSaver({
  waiting: (count) => { part("saved").textContent = count ? `${count} not saved yet` : "all saved"; },
  failed: (line) => problem(line),
  answered(item, answer) {
    problem();
    if (item.path === "/api/undo") return back(answer.pair);
    show(answer);
  },
});

/** Ids of pairs that this page has, or has clicked on and not saved yet. */
const held = () => [...(shown ? [shown] : []), ...ready].map(({ id }) => id).concat(saver.items.map(({ body }) => body.pair ?? "").filter(Boolean));

/** Fetches pairs until enough are ready. */
async function fill() {
  if (!rater || filling) return;
  filling = true;
  const asked = turn;
  if (!shown) part("which").textContent = "Two answers are being drawn.";
  const { answer, error } = await ask("/api/pairs", { rater, have: held(), mode });
  filling = false;
  if (asked !== turn) return fill();
  if (error) problem(error);
  const pairs = /** @type {Pair[]} */ (answer?.pairs ?? []);
  ready.push(...pairs.filter(({ id }) => !held().includes(id)));
  if (!shown) next();
  else settle();
}

function next() {
  shown = ready.shift() ?? null;
  draw();
  if (shown && ready.length < 2) fill();
}

/** Shows the pair, or why there is none. */
function draw() {
  const none = !shown;
  for (const name of ["tie", "skip"]) part(name).disabled = none;
  part("more").hidden = !(none && mode === "prefer" && state?.prompts);
  part("leave").hidden = mode === "prefer";
  part("question").textContent = mode === "compare" ? "Old or new model: which answer is better?" : "Which answer is better?";
  part("prompt").replaceChildren(...(shown ? words(shown.prompt) : []));
  part("answers").replaceChildren(...(shown ? shown.answers.map(card) : []));
  part("which").textContent = shown ? (mode === "compare" ? "One answer is the old model’s, one the new one’s; which is which is not shown." : "") : empty();
  settle();
}

const settle = () => { document.documentElement.dataset.drawn = "true"; };

function empty() {
  if (!rater) return "Write your name above to begin.";
  if (mode === "compare") return "All comparisons are made; the result is below.";
  if (state && !state.prompts) {
    part("typing").open = true;
    return "There are no prompts yet: type one below.";
  }
  return "All pairs are rated. Tune now, type a prompt, or go on with another round.";
}

/** @param {Pair["prompt"]} prompt */
function words(prompt) {
  if (typeof prompt === "string") return [html("p", {}, prompt)];
  return prompt.flatMap(({ role, content }) => [html("p", { class: "prefer-role" }, role), html("p", {}, content)]);
}

/** @param {Answer} answer @param {number} place */
function card(answer, place) {
  const side = SIDES[place];
  const pick = (/** @type {Event} */ event) => {
    if (!getSelection()?.toString() || event.target instanceof HTMLButtonElement) choose(side);
  };
  return html("article", { class: "prefer-answer", "data-side": side, "aria-label": `${side} answer`, click: pick },
    html("h2", {}, `${side} answer`), html("p", { class: "prefer-text" }, answer.text),
    answer.ended ? null : html("p", { class: "prefer-cut" }, `cut after ${answer.tokens} tokens`),
    html("button", { type: "button" }, "this one is better", html("kbd", {}, ARROWS[place])));
}

/** @param {string} choice left, right, tie or skip */
function choose(choice) {
  if (!shown || !rater) return;
  saver.push("/api/click", { rater, id: newId(), pair: shown.id, choice });
  next();
}

function undo() {
  if (rater) saver.push("/api/undo", { rater, id: newId() });
}

/** The pair whose click was withdrawn is shown again. @param {Pair | null} pair */
function back(pair) {
  if (!pair) return problem("There is no click of yours to undo.");
  if (pair.compares !== (mode === "compare")) enter(pair.compares ? "compare" : "prefer");
  if (shown) ready.unshift(shown);
  shown = pair;
  ready = ready.filter(({ id }) => id !== pair.id);
  draw();
  refresh();
}

/** @param {string} other */
function enter(other) {
  mode = other;
  [shown, ready, turn] = [null, [], turn + 1];
}

/** @param {State} now */
function show(now) {
  const before = state;
  state = now;
  const all = now.mine + now.waiting;
  part("progress").textContent = rater && all ? `${now.mine} of ${all} pairs rated, answers of ${now.run}` : `answers of ${now.run}`;
  showFigures(part("figures"), now);
  showTuning(part("tuned"), now);
  const running = now.tune.state === "running";
  part("start").disabled = running;
  part("cancel").hidden = !running;
  part("after").hidden = !now.comparison;
  if (now.comparison) part("adopt").disabled = now.comparison.new === now.run;
  if (now.tune.charts.length && JSON.stringify(before?.tune.charts) !== JSON.stringify(now.tune.charts)) render(part("curves"), { models: [{ name: now.tune.method, ...now.tune }] });
  if (!shown && ready.length === 0) draw();
  clearTimeout(polling);
  if (running) polling = setTimeout(refresh, POLL);
}

async function refresh() {
  const { answer, error } = await ask(`/api/state?rater=${encodeURIComponent(rater)}`);
  if (error) return problem(error);
  show(answer);
}

/** A request that is not a click. @param {string} path @param {object} [more] */
async function act(path, more = {}) {
  if (!rater) return problem("Write your name first.");
  problem();
  const { error } = await ask(path, { rater, ...more });
  if (error) return problem(error);
  await refresh();
}

addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement) return;
  /** @type {Record<string, () => void>} */
  const keys = { ArrowLeft: () => choose("left"), ArrowRight: () => choose("right"), "=": () => choose("tie"), s: () => choose("skip"), u: undo };
  if (!keys[key]) return;
  event.preventDefault();
  keys[key]();
});

part("rater").value = rater;
part("rater").addEventListener("change", () => {
  rater = part("rater").value.trim();
  localStorage.setItem(RATER, rater);
  enter(mode);
  draw();
  refresh().then(fill);
});
part("rater").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") part("rater").blur(); });
part("tie").addEventListener("click", () => choose("tie"));
part("skip").addEventListener("click", () => choose("skip"));
part("undo").addEventListener("click", undo);
part("more").addEventListener("click", () => act("/api/more").then(fill));
part("typed").addEventListener("submit", async (/** @type {Event} */ event) => {
  event.preventDefault();
  await act("/api/prompt", { id: newId(), prompt: part("text").value });
  if (part("problem").textContent) return;
  part("text").value = "";
  enter("prefer");
  draw();
  fill();
});
part("method").append(...about.methods.map((name) => html("option", { value: name }, name)));
part("tune").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  act("/api/tune", { method: part("method").value, lora: part("lora").checked, settings: part("settings").value });
});
part("cancel").addEventListener("click", () => act("/api/cancel"));
part("compare").addEventListener("click", () => { enter("compare"); draw(); fill(); part("question").scrollIntoView(); });
part("leave").addEventListener("click", () => { enter("prefer"); draw(); fill(); });
part("adopt").addEventListener("click", () => act("/api/policy").then(() => { enter("prefer"); draw(); fill(); }));

dress();
saver.start();
await refresh();
if (rater) await fill();
else {
  draw();
  part("rater").focus();
}
