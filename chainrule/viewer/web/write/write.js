// @ts-check
/** Models continue one text in columns, side by side, as it streams in; each token is coloured by its bits. */
import { fixed, html, visible } from "chainrule/draw";
import { stream } from "chainrule/chat_stream";

/** @typedef {[text: string, bits: number | null, tokens: number]} Piece the text "" is the end */
/** @typedef {{ models: string[], prompt: string, tokens: number, seed?: number, written: Piece[][] | null }} Data `written`: in a file; null: on a live page */
/** @typedef {import("chainrule/panel").Live} Live */

const HOT = 12;     // bits at which the colour is full, as in Surprise
/** What can be set, its initial value and its bounds. */
const SETTINGS = /** @type {const} */ ({
  tokens: { label: "tokens", start: null, bounds: { min: 1, max: 65536, step: 1 } },
  temperature: { label: "temperature", start: "1", bounds: { min: 0, max: 10, step: 0.1 } },
  top_p: { label: "top-p", start: "1", bounds: { min: 0.01, max: 1, step: 0.01 } },
  seed: { label: "seed", start: "1", bounds: { min: 0, max: 2 ** 53, step: 1 } },
});

/** @param {HTMLElement} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  const readout = html("output", { class: "readout", "aria-live": "polite" }, "Point at a token to see its bits.");
  const columns = data.models.map((name) => new Column(name, data.prompt, readout, live));
  const place = html("div", { class: "strips write-columns picture" }, ...columns.map((column) => column.element));
  if (!live) {
    element.append(html("p", { class: "note" }, `${data.tokens} tokens of each model, at temperature 1, seed ${data.seed}. The live page, chainrule look RUN, writes more, with any settings.`), scale(), readout, place);
    data.written?.forEach((pieces, number) => { pieces.forEach((piece) => columns[number].add(piece)); columns[number].close({}); });
    return;
  }
  /** @type {AbortController | null} */
  let writing = null;
  const fields = Object.fromEntries(Object.entries(SETTINGS).map(([name, { start, bounds }]) => {
    const input = /** @type {HTMLInputElement} */ (html("input", { type: "number", class: "write-number", name, ...bounds, value: state.get(name, start ?? String(data.tokens)),
      change: () => state.set(name, input.value) }));
    return [name, input];
  }));
  const button = (/** @type {string} */ name, /** @type {() => void} */ click) => /** @type {HTMLButtonElement} */ (html("button", { type: "button", click }, name));
  const begin = button("write on", () => write());
  const another = button("next seed", () => { fields.seed.value = String(Number(fields.seed.value) + 1); state.set("seed", fields.seed.value); write(); });
  const stop = button("stop", () => writing?.abort());
  const show = () => {
    begin.disabled = another.disabled = writing !== null;
    stop.disabled = writing === null;
    place.setAttribute("aria-busy", String(writing !== null));
  };

  /** All models at the same time, until each has its tokens; typing another text, or leaving the view, stops them. */
  async function write() {
    if (Object.values(fields).some((field) => !field.reportValidity())) return;
    const prompt = live?.text() ?? "", control = writing = new AbortController();
    const asked = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, Number(field.value)]));
    show();
    stop.focus();
    await Promise.all(columns.map(async (column) => {
      column.clear(prompt);
      const end = await stream("/api/write", { run: column.name, text: prompt, ...asked }, control.signal, (piece) => {
        if (!place.isConnected || live?.text() !== prompt) control.abort();
        else column.add(piece);
      });
      column.close(end);
    }));
    if (writing !== control) return;
    const focused = document.activeElement === stop;
    writing = null;
    show();
    if (focused) begin.focus();
  }

  element.append(html("div", { class: "choices" }, begin, stop, another,
    ...Object.entries(SETTINGS).map(([name, { label }]) => html("label", {}, `${label} `, fields[name])), scale()), readout, place);
  show();
  return (/** @type {Data} */ other) => {
    writing?.abort();
    for (const column of columns) column.clear(other.prompt);
  };
}

/** What the colours mean. */
const scale = () => html("span", { class: "scale" }, "0 bits", html("i", { class: "rise" }), `${HOT} or more`);

/** What one model writes. */
class Column {
  /** @param {string} name @param {string} prompt @param {HTMLElement} readout @param {Live | null} live */
  constructor(name, prompt, readout, live) {
    this.name = name;
    this.written = "";
    this.bits = this.count = this.frame = 0;
    /** Tokens that are drawn with the next frame: a fast model writes thousands a second. @type {HTMLElement[]} */
    this.waiting = [];
    this.facts = html("p", { class: "note write-facts" });
    this.text = html("p", { class: "text write-text", tabindex: 0, role: "group", "aria-label": `${name}, token by token` });
    this.take = /** @type {HTMLButtonElement} */ (html("button", { type: "button", click: () => live?.write(live.text() + this.written) }, "take this text"));
    this.take.title = "append it to the text";
    this.element = html("section", { class: "strip", "data-model": name }, html("h3", {}, name), this.facts, this.text, ...(live ? [this.take] : []));
    this.text.addEventListener("pointerover", (event) => {
      const { text, bits } = /** @type {HTMLElement} */ (event.target).dataset;
      if (text === undefined) return;
      const cost = bits === undefined ? "impossible, though it was drawn" : `${fixed(Number(bits))} bits, p = ${fixed(2 ** -Number(bits), 4)}`;
      readout.replaceChildren(html("b", {}, text ? `“${visible(text)}” ` : "the end "), `${name} ${cost}`);
    });
    this.clear(prompt);
  }

  /** @param {string} prompt */
  clear(prompt) {
    [this.written, this.bits, this.count, this.waiting] = ["", 0, 0, []];
    this.facts.textContent = "";
    this.take.disabled = true;
    this.text.replaceChildren(html("span", { class: "end" }, prompt.slice(-200).replaceAll("\n", "↵\n")));
  }

  /** @param {Piece} piece */
  add([text, bits, tokens]) {
    const heat = Math.min(1, (bits ?? Infinity) / HOT);
    this.waiting.push(html("span", { class: text ? "token" : "token end", "data-text": text, "data-bits": bits, style: `--heat:${heat.toFixed(3)}` }, text ? text.replaceAll("\n", "↵\n") : "⏹"));
    this.written += text;
    this.bits += bits ?? Infinity;
    this.count += tokens;
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.draw(""); });
  }

  /** Appends what waits, and scrolls along if the reader is at the end. @param {string} line how it ended */
  draw(line) {
    const below = this.text.scrollTop + this.text.clientHeight > this.text.scrollHeight - 30;
    this.text.append(...this.waiting.splice(0));
    if (below) this.text.scrollTop = this.text.scrollHeight;
    this.said(line);
  }

  /** @param {string} line */
  said(line) {
    const mean = this.count ? `${this.count.toLocaleString("en")} ${this.count === 1 ? "token" : "tokens"}, ${Number.isFinite(this.bits) ? fixed(this.bits / this.count, 2) : "infinitely many"} bits each` : "";
    this.facts.textContent = [mean, line].filter(Boolean).join("; ");
  }

  /** @param {import("chainrule/chat_stream").End} end */
  close({ finish, error }) {
    this.take.disabled = !this.written;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.draw(error ?? (finish === "stopped" ? "stopped" : finish === "stop" ? "it ended the text" : ""));
  }
}
