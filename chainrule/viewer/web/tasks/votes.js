// @ts-check
/** The votes of a text's tokens for a class: the probabilities as it is read, without each token, and by the gradient. */
import { choices, fixed, html, pointAtTokens, scrolling, spaced } from "chainrule/draw";
import { unpack } from "chainrule/arrays";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ name: string, classes: string[], reward: boolean, truth: string | null, tokens: string[], apart: boolean, whole: Packed, prefixes: Packed, without: Packed,
 *   gradient: number[][] | null }} Data */
/** @typedef {keyof typeof MODES} Mode */

const MODES = { without: "left out", prefixes: "as it is read", gradient: "gradient" };
const LEAST = 0.05;    // the colour is full at the largest vote, and at no less than this

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, data, state) {
  const controls = html("div", { class: "choices" }), verdict = html("div", { class: "votes-verdict" });
  const readout = html("output", { class: "readout", "aria-live": "polite" }), scale = html("span", { class: "scale" });
  const text = html("p", { class: `text${data.apart ? " votes-text" : ""}`, tabindex: 0, role: "group", "aria-label": "the text, token by token; arrow keys choose a token" });
  const table = scrolling("the tokens that matter most");
  let votes = new Votes(data), at = -1;
  const mode = () => /** @type {Mode} */ (state.get("mode", "without") in votes.modes ? state.get("mode", "without") : "without");
  const number = () => { const place = data.classes.indexOf(state.get("class", "")); return place < 0 ? votes.best : place; };

  const show = (/** @type {number} */ place) => {
    text.querySelector(".chosen")?.classList.remove("chosen");
    at = Math.min(data.tokens.length - 1, Math.max(0, place));
    text.children[at]?.classList.add("chosen");
    readout.replaceChildren(html("b", {}, `“${data.tokens[at]}”`), votes.said(mode(), at, number()));
    for (const row of table.querySelectorAll("tr[data-at]")) row.classList.toggle("votes-now", Number(/** @type {HTMLElement} */ (row).dataset.at) === at);
    bars(at);
  };
  const bars = (/** @type {number} */ place) => {
    const shown = mode() === "prefixes" && place >= 0 ? { values: votes.row("prefixes", place + 1), when: `after “${data.tokens[place]}”` }
      : mode() === "without" && place >= 0 ? { values: votes.row("without", place), when: `without “${data.tokens[place]}”` } : { values: votes.all, when: "of the whole text" };
    verdict.replaceChildren(...votes.bars(shown.values, shown.when, number(), pick));
  };
  const pick = (/** @type {number} */ chosen) => { state.set("class", data.classes[chosen]); draw(); };
  const draw = () => {
    const now = mode(), chosen = number();
    controls.replaceChildren(choices("show", votes.modes, now, (value) => { state.set("mode", value); draw(); }), scale);
    const full = now === "gradient" ? votes.most(chosen) : Math.max(LEAST, ...data.tokens.map((_, place) => Math.abs(votes.vote(now, place, chosen))));
    scale.replaceChildren(...(now === "gradient" ? ["0", html("i", { class: "rise" }), full.toPrecision(2)]
      : [`−${full.toPrecision(2)} against ${data.classes[chosen]}`, html("i", { class: "both" }), `for ${data.classes[chosen]} +${full.toPrecision(2)}`]));
    text.replaceChildren(...data.tokens.map((token, place) => {
      const vote = votes.vote(now, place, chosen);
      return html("span", { class: "token", "data-vote": vote, style: `--heat:${Math.min(1, Math.abs(vote) / full).toFixed(3)}${vote < 0 ? ";--tint:var(--cold)" : ""}` }, spaced(token));
    }));
    table.replaceChildren(votes.table(chosen));
    bars(-1);
    at = -1;
    readout.replaceChildren(data.tokens.length ? "Point at a token, or focus the text and use the arrow keys." : "The text is empty.");
  };
  pointAtTokens(text, () => at, show);
  element.append(controls, readout, html("div", { class: "picture" }, verdict, text), table);
  draw();
  return (/** @type {Data} */ other) => { data = other; votes = new Votes(data); draw(); };
}

class Votes {
  /** @param {Data} data */
  constructor(data) {
    this.data = data;
    this.count = data.classes.length;
    this.arrays = { whole: unpack(data.whole).values, prefixes: unpack(data.prefixes).values, without: unpack(data.without).values };
    this.all = Array.from(this.arrays.whole);
    this.best = this.all.indexOf(Math.max(...this.all));
    /** @type {Record<string, string>} */
    this.modes = Object.fromEntries(Object.entries(MODES).filter(([name]) => name !== "gradient" || data.gradient));
  }

  /** @param {"prefixes" | "without"} name @param {number} place */
  row(name, place) { return Array.from(this.arrays[name].slice(place * this.count, (place + 1) * this.count)); }

  /** How a token speaks for a class. @param {Mode} mode @param {number} place @param {number} number of the class */
  vote(mode, place, number) {
    if (mode === "gradient") return this.data.gradient?.[number][place] ?? 0;
    if (mode === "without") return this.all[number] - this.row("without", place)[number];
    const [before, after] = [this.row("prefixes", place)[number], this.row("prefixes", place + 1)[number]];
    return this.data.reward ? after - before : Math.exp(after) - Math.exp(before);
  }

  /** @param {number} number */
  most(number) { return Math.max(1e-30, ...(this.data.gradient?.[number] ?? [])); }

  /** @param {Mode} mode @param {number} place @param {number} number */
  said(mode, place, number) {
    const name = this.data.classes[number], vote = this.vote(mode, place, number), sign = vote < 0 ? "−" : "+", size = Math.abs(vote);
    if (mode === "gradient") return `|∂ log p(${name}) / ∂x| = ${size.toPrecision(3)}`;
    if (mode === "without") return this.data.reward ? `reward ${sign}${fixed(size, 4)} by this token` : `log p(${name}) ${sign}${fixed(size, 4)} nats by this token`;
    const after = this.row("prefixes", place + 1)[number];
    return this.data.reward ? `reward ${fixed(after, 4)} after it, ${sign}${fixed(size, 4)}` : `p(${name}) = ${fixed(Math.exp(after), 4)} after it, ${sign}${fixed(size, 4)}`;
  }

  /** A bar for each class. @param {number[]} values @param {string} when @param {number} chosen @param {(number: number) => void} pick */
  bars(values, when, chosen, pick) {
    const { classes, reward, truth } = this.data;
    if (reward) return [html("p", { class: "votes-reward" }, "reward ", html("b", { "data-value": values[0] }, fixed(values[0], 4)), ` ${when}`)];
    const order = values.map((_, place) => place).sort((one, other) => values[other] - values[one] || one - other).slice(0, 12);
    return [html("p", { class: "note" }, `p(class) ${when}. Choose a class to see the votes for it.`), html("ul", { class: "votes-classes" }, ...order.map((place) => html("li", {},
      html("button", { type: "button", class: "votes-class", "aria-pressed": String(place === chosen), "data-class": classes[place], "data-p": Math.exp(values[place]), click: () => pick(place) },
        html("span", {}, classes[place], truth === classes[place] ? html("small", {}, " true") : null), html("i", { style: `--p:${Math.exp(values[place]).toFixed(5)}` }),
        html("span", { class: "votes-p" }, fixed(Math.exp(values[place]), 4))))))];
  }

  /** The tokens with the strongest votes, for and against. @param {number} number */
  table(number) {
    const order = this.data.tokens.map((_, place) => place).sort((one, other) => Math.abs(this.vote("without", other, number)) - Math.abs(this.vote("without", one, number))).slice(0, 10);
    const name = this.data.classes[number], what = this.data.reward ? "reward" : `p(${name})`;
    const value = (/** @type {number} */ log) => fixed(this.data.reward ? log : Math.exp(log), 4);
    if (!order.length) return html("p");
    return html("table", { class: "votes-table" }, html("caption", {}, `The tokens without which ${what} changes most`),
      html("thead", {}, html("tr", {}, ...["token", "its vote", `${what} without it`, `${what} after it is read`, ...(this.data.gradient ? ["gradient"] : [])].map((title) => html("th", { scope: "col" }, title)))),
      html("tbody", {}, ...order.map((place) => { const vote = this.vote("without", place, number); return html("tr", { "data-at": place }, html("th", { scope: "row" }, this.data.tokens[place]),
        html("td", {}, `${vote < 0 ? "−" : "+"}${fixed(Math.abs(vote), 4)}`), html("td", {}, value(this.row("without", place)[number])), html("td", {}, value(this.row("prefixes", place + 1)[number])),
        this.data.gradient ? html("td", {}, this.data.gradient[number][place].toPrecision(3)) : null); })));
  }
}
