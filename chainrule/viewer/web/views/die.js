// @ts-check
/** The weighted die of each model: tokens by their probability, and the settings of sampling.
 *
 * p = softmax(β y) with β = 1 / temperature, over the faces that pass every cut. All log-probabilities are here, so the
 * sliders change the bars without a request. */
import { fixed, html, visible } from "chainrule/draw";
import { unpack } from "chainrule/arrays";

/** @typedef {{ temperature: number, "top-k": number, "top-p": number, "min-p": number }} Dials */
/** @typedef {[shown: string, spelled: string | null]} Face */
/** @typedef {{ log_probs: import("chainrule/arrays").Packed, faces: Face[], left_out: number }} Die */
/** @typedef {{ models: string[], text: string, pieces: string[], dice: Record<string, Die[]> }} Data
 * of a file: dice by `pieces read:faces taken`; of a live page: one for the text as it is */

const TAIL = 80;    // characters of the text, and pieces written here, that are shown with visible white space
const FIRST = matchMedia("(max-width: 40rem)").matches ? 10 : 20;    // faces that are drawn at first
const steps = (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ by) =>
  Array.from({ length: Math.round((to - from) / by) + 1 }, (_, place) => Number((from + place * by).toFixed(4)));

/** The values of a slider, its initial one, and what it does. @type {Record<string, { stops: number[], start: number, idea: string }>} */
const DIALS = {
  temperature: { stops: [...steps(0, 2, 0.05), 2.5, 3, 4, 5, 10, Infinity], start: 1, idea: "1/β: 0 keeps only the most probable face, ∞ makes all equally probable" },
  "top-k": { stops: [...steps(1, 10, 1), 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10000, Infinity], start: Infinity, idea: "only the k most probable faces" },
  "top-p": { stops: [0.01, 0.02, ...steps(0.05, 0.95, 0.05), 0.98, 0.99, 0.999, 1], start: 1, idea: "only the smallest set of faces with this total probability" },
  "min-p": { stops: [0, 0.001, 0.002, 0.005, 0.01, 0.02, ...steps(0.05, 1, 0.05)], start: 0, idea: "only faces with at least this fraction of the largest probability" },
};

/** The probabilities of a die, as chainrule/inference/sampling.py has them: the cuts apply to the model's own, and a face must pass
 * them all; then the temperature applies. @param {ArrayLike<number>} logProbs in descending order @param {Dials} dials
 * @returns {number[]} */
export function weigh(logProbs, dials) {
  const own = Array.from(logProbs, (value) => Math.exp(value));
  if (dials.temperature === 0) return own.map((_, place) => (place === 0 ? 1 : 0));
  let before = 0;    // total probability of the faces before this one
  const weights = own.map((p, place) => {
    const kept = place < dials["top-k"] && (dials["top-p"] >= 1 || before < dials["top-p"]) && p >= dials["min-p"] * own[0];
    before += p;
    if (!kept) return 0;
    return dials.temperature === Infinity ? 1 : Math.exp((logProbs[place] - logProbs[0]) / dials.temperature);
  });
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}

/** @param {HTMLElement} element @param {Data} data @param {import("chainrule/state").State} state
 * @param {import("chainrule/panel").Live | null} live */
export function render(element, data, state, live) {
  const readout = html("output", { class: "readout", "aria-live": "polite" });
  const formula = html("p", { class: "die-formula" });
  const place = new Place(data, state, live);
  const queue = new Queue(() => place.current);
  const columns = data.models.map((name) => new Column(name, queue, write));
  const dials = () => /** @type {Dials} */ (Object.fromEntries(Object.keys(DIALS).map((name) => [name, setting(state, name)])));

  /** @param {Face} face @param {string} [drawn] by what roll it was drawn */
  function write([shown, spelled], drawn = "") {
    if (spelled === null) readout.textContent = `${drawn}${shown} adds no text: it is the end, or a part of a character.`;
    else readout.textContent = place.write(spelled) ? drawn : `${drawn}${shown}: what follows is not in this file; open the live page with chainrule look RUN to continue.`;
    if (!live) draw();
  }

  function draw() {
    const now = dials(), beta = now.temperature === 0 ? "∞" : `${Number((1 / now.temperature).toPrecision(3))}`;
    formula.textContent = `p = softmax(β y),  β = 1 / temperature = ${beta}`;
    const dice = place.dice().map((die) => ({ ...die, logProbs: /** @type {Float32Array} */ (unpack(die.log_probs).values) }));
    const all = dice.map((die) => weigh(die.logProbs, now));
    const most = Math.max(...all.map((probs) => probs[0] || 0), ...dice.map((die) => Math.exp(die.logProbs[0]) || 0));
    dice.forEach((die, number) => columns[number].draw(die, all[number], most));
    place.showWritten();
  }

  const controls = html("div", { class: "die-dials" }, ...Object.keys(DIALS).map((name) => dial(name, state, draw)),
    html("button", { type: "button", class: "die-reset", click: () => reset(controls) }, "reset"));
  const text = live ? place.text : place.strip(() => { readout.textContent = ""; draw(); });
  element.append(controls, formula, readout, html("div", { class: "picture" }, text, html("div", { class: "die-models" }, ...columns.map((column) => column.element))));
  draw();
  return (/** @type {Data} */ other) => {
    place.data = other;
    draw();
    queue.proceed();
  };
}

/** Rolls and chosen faces, in order. They wait until the dice are those of the text as it is: no roll draws from an older die. */
class Queue {
  /** @param {() => boolean} current whether the dice follow the text */
  constructor(current) {
    this.current = current;
    /** @type {(() => void)[]} */
    this.waiting = [];
  }

  /** @param {() => void} act */
  add(act) {
    this.waiting.push(act);
    this.proceed();
  }

  proceed() {
    while (this.waiting.length && this.current()) this.waiting.shift()?.();
  }

  /** A key that is held down rolls as fast as dice come, and no longer than it is held. @param {KeyboardEvent} event */
  hold(event) {
    if (event.repeat && (this.waiting.length || !this.current())) event.preventDefault();
  }
}

/** Where in the text the dice are. */
class Place {
  /** @param {Data} data @param {import("chainrule/state").State} state @param {import("chainrule/panel").Live | null} live */
  constructor(data, state, live) {
    this.data = data;
    this.state = state;
    this.live = live;
    this.text = html("p", { class: "text die-text" });
    /** What faces and rolls have added to the text of a live page. @type {string[]} */
    this.written = [];
  }

  /** Whether the dice are those of the text as it is now. */
  get current() {
    return this.live ? this.live.current() : true;
  }

  get read() {
    const asked = Number(this.state.get("read", String(this.data.pieces.length)));
    return this.data.dice[`${asked}:`] ? asked : this.data.pieces.length;
  }

  get taken() {
    const taken = this.state.get("taken", "");
    return this.data.dice[`${this.read}:${taken}`] ? taken : "";
  }

  dice() {
    return this.live ? this.data.dice["0:"] : this.data.dice[`${this.read}:${this.taken}`];
  }

  /** Appends a face to the text; false if this file does not contain what follows. @param {string} spelled */
  write(spelled) {
    if (this.live) {
      this.written.push(spelled);
      this.live.write(this.live.text() + spelled);
      return true;
    }
    const next = this.taken === "" && spelled === this.data.pieces[this.read];
    const [read, taken] = next ? [this.read + 1, ""] : [this.read, this.taken + spelled];
    if (!this.data.dice[`${read}:${taken}`]) return false;
    this.go(read, taken);
    return true;
  }

  /** @param {number} read @param {string} [taken] */
  go(read, taken = "") {
    this.state.set("read", String(read));
    this.state.set("taken", taken);
    this.mark();
  }

  /** The end of a live page's text with what was written here, white space made visible. */
  showWritten() {
    if (!this.live) return;
    const text = this.live.text();
    if (!text.endsWith(this.written.join(""))) this.written = [];    // it was changed by hand
    const before = text.slice(0, text.length - this.written.join("").length), some = this.written.slice(-TAIL);
    this.text.hidden = !this.written.length;
    this.text.replaceChildren(html("span", { class: "end" }, marked(before.slice(-TAIL))), ...(some.length < this.written.length ? ["…"] : []),
      ...some.map((piece, number) => html("span", { class: number === some.length - 1 ? "die-drawn die-last" : "die-drawn" }, marked(piece))),
      html("small", { class: "end" }, "  · space, ↵ line break"));
  }

  /** The text of a file, token by token: a click goes there. @param {() => void} moved */
  strip(moved) {
    const known = (/** @type {number} */ place) => place >= 0 && place <= this.data.pieces.length && this.data.dice[`${place}:`];
    const go = (/** @type {number} */ place) => { if (known(place)) { this.go(place); moved(); } };
    const pieces = this.data.pieces.map((piece, place) => html("span", { class: "die-piece", click: () => go(place + 1) }, piece.replaceAll("\n", "↵\n")));
    this.text.append(html("span", { class: "end" }, this.data.text), ...pieces, html("b", { class: "die-taken" }));
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "group");
    this.text.setAttribute("aria-label", "the text; the arrow keys move back and forward in it");
    this.text.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step !== undefined) { event.preventDefault(); go(this.read + step); }
    });
    this.mark();
    return this.text;
  }

  mark() {
    [...this.text.querySelectorAll(".die-piece")].forEach((piece, place) => piece.classList.toggle("die-unread", place >= this.read));
    const taken = this.text.querySelector(".die-taken");
    if (taken) taken.textContent = this.taken;
    this.text.querySelectorAll(".die-piece")[this.read - 1]?.after(.../** @type {Node[]} */ (taken ? [taken] : []));
  }
}

/** @param {string} text */
const marked = (text) => visible(text).replaceAll("↵", "↵\n");

/** One model's die. */
class Column {
  /** @param {string} name @param {Queue} queue @param {(face: Face, drawn?: string) => void} write */
  constructor(name, queue, write) {
    this.name = name;
    this.queue = queue;
    this.shown = FIRST;
    /** @type {{ faces: Face[], probs: number[], logProbs: Float32Array, most: number, left_out: number } | null} */
    this.now = null;
    this.write = write;
    this.list = html("ol", { class: "die-faces", keydown: (event) => this.move(/** @type {KeyboardEvent} */ (event)) });
    this.sum = html("p", { class: "note die-sum" });
    this.more = html("button", { type: "button", class: "die-more", click: () => { this.shown *= 2; this.fill(); } }, "more faces");
    this.facts = html("span", { class: "die-facts" });
    const roll = html("button", { type: "button", class: "die-roll", click: () => this.queue.add(() => this.roll()),
      keydown: (event) => this.queue.hold(/** @type {KeyboardEvent} */ (event)) }, "roll");
    this.element = html("section", { class: "strip", "data-model": name }, html("h3", {}, name), html("p", { class: "die-head" }, roll, this.facts), this.list, this.sum, this.more);
  }

  /** @param {Die & { logProbs: Float32Array }} die @param {number[]} probs @param {number} most of any face of any die */
  draw({ faces, logProbs, left_out }, probs, most) {
    this.now = { faces, probs, logProbs, most, left_out };
    this.fill();
  }

  fill() {
    if (!this.now) return;
    const { faces, probs, logProbs, most, left_out } = this.now;
    const count = Math.min(this.shown, faces.length);
    while (this.list.childElementCount > count) this.list.lastElementChild?.remove();
    while (this.list.childElementCount < count) this.list.append(this.row(this.list.childElementCount));
    [...this.list.children].forEach((row, place) => paint(row, faces[place], probs[place], Math.exp(logProbs[place]), most));
    const rest = probs.slice(count).reduce((sum, p) => sum + p, 0);
    this.sum.textContent = probs.length > count ? `and ${(probs.length - count).toLocaleString("en")} more faces, in total ${percent(rest)}` : "";
    this.more.hidden = count >= faces.length;
    this.facts.textContent = possible(logProbs) ? `${uncertainty(probs)}${left_out ? `; the first ${left_out.toLocaleString("en")} tokens are beyond the model’s context` : ""}` : "The model gives no token a probability here.";
  }

  /** @param {number} place */
  row(place) {
    const choose = () => {
      const face = this.now?.faces[place];    // as it is seen now, whatever rolls come first
      if (face) this.queue.add(() => this.write(face));
    };
    return html("li", {}, html("button", { type: "button", class: "die-face", click: choose },
      html("span", { class: "die-name" }), html("span", { class: "die-bar", "aria-hidden": true }), html("span", { class: "die-p" })));
  }

  roll() {
    if (!this.now || !possible(this.now.logProbs)) return;
    const { faces, probs } = this.now;
    let point = Math.random(), place = 0;
    while (place < probs.length - 1 && point >= probs[place]) point -= probs[place++];
    while (probs[place] === 0) place -= 1;                   // rounding may go past the last face
    const face = faces[place] ?? ["a face without a name", null];
    this.write(face, `${this.name} rolled “${face[0]}”, which had ${percent(probs[place])}. `);
  }

  /** @param {KeyboardEvent} event */
  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const faces = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll(".die-face")]);
    faces[faces.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + step]?.focus();
  }
}

/** @param {ArrayLike<number>} logProbs */
const possible = (logProbs) => logProbs[0] > -Infinity;

/** One face: the bar is its share of the die, the frame the model's own probability.
 * @param {Element} row @param {Face} face @param {number} p @param {number} own @param {number} most */
function paint(row, [shown, spelled], p, own, most) {
  const button = /** @type {HTMLElement} */ (row.firstElementChild);
  const [name, bar, number] = /** @type {HTMLElement[]} */ ([...button.children]);
  button.classList.toggle("die-cut", p === 0);
  button.classList.toggle("die-mute", spelled === null);
  Object.assign(button.dataset, { p, own });
  button.title = `the model’s own probability: ${own}`;
  bar.style.setProperty("--p", String(p / most || 0));
  bar.style.setProperty("--own", String(own / most || 0));
  name.textContent = shown;
  number.textContent = p === 0 ? "cut off" : percent(p);
}

/** @param {number} p */
const percent = (p) => (p > 0 && p < 5e-7 ? "< 0.0001 %" : `${fixed(100 * p, p < 0.001 && p > 0 ? 4 : 2)} %`);

/** How uncertain the die is. @param {number[]} probs */
function uncertainty(probs) {
  const bits = Math.max(0, -probs.reduce((sum, p) => sum + (p > 0 ? p * Math.log2(p) : 0), 0));
  const left = probs.filter((p) => p > 0).length;
  return `${left === 1 ? "one possible token" : `${left.toLocaleString("en")} possible tokens`}; as uncertain as a fair die with ${fixed(2 ** bits, 1)} sides (${fixed(bits, 2)} bits)`;
}

/** @param {import("chainrule/state").State} state @param {string} name */
function setting(state, name) {
  const text = state.get(name, "");
  const value = text === "inf" ? Infinity : text === "" ? NaN : Number(text);
  return value >= 0 ? value : DIALS[name].start;
}

/** @param {string} name @param {import("chainrule/state").State} state @param {() => void} draw */
function dial(name, state, draw) {
  const { stops, start, idea } = DIALS[name];
  const spoken = () => { const value = setting(state, name); return value === Infinity ? (name === "top-k" ? "all" : "∞") : String(value); };
  const nearest = stops.reduce((best, stop, place) => (Math.abs(stop - setting(state, name)) < Math.abs(stops[best] - setting(state, name)) || stop === setting(state, name) ? place : best), 0);
  const number = html("output", { class: "die-value" }, spoken());
  const slider = /** @type {HTMLInputElement} */ (html("input", { type: "range", name, min: 0, max: stops.length - 1, value: nearest, "aria-label": `${name}: ${idea}`, "data-start": stops.indexOf(start), input: () => {
    state.set(name, stops[Number(slider.value)] === Infinity ? "inf" : String(stops[Number(slider.value)]));
    number.textContent = spoken();
    slider.setAttribute("aria-valuetext", spoken());
    draw();
  } }));
  slider.setAttribute("aria-valuetext", spoken());
  return html("label", { class: "die-dial", title: idea }, name, number, slider);
}

/** @param {Element} controls */
function reset(controls) {
  for (const slider of /** @type {NodeListOf<HTMLInputElement>} */ (controls.querySelectorAll("input"))) {
    slider.value = /** @type {string} */ (slider.dataset.start);
    slider.dispatchEvent(new Event("input"));
  }
}
