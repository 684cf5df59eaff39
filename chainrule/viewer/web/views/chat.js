// @ts-check
/** A conversation with a model: the answer streams in; undo, another answer, temperature, save. */
import { html } from "chainrule/draw";
import { stream } from "chainrule/chat_stream";

/** @typedef {{ role: "system" | "user" | "assistant", content: string }} Message */
/** @typedef {{ run: string, path: string, live: boolean, template: boolean }} Data */

const NAMES = { user: "you", assistant: "model", system: "instruction" };
/** Conversations of this page, by run: another view does not end them. @type {Map<string, Message[]>} */
const kept = new Map();
let seed = 1;    // each answer has its own random numbers

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state */
export function render(element, { run, path, live, template }, state) {
  if (!live) {
    const line = "An answer needs a server, and this page is a file: ";
    element.append(html("p", {}, line, html("code", {}, `chainrule look ${path} --view chat`), " opens a live page, ", html("code", {}, `chainrule chat ${path}`), " a conversation in the terminal."));
    return;
  }
  if (!kept.has(run)) kept.set(run, []);
  const messages = () => kept.get(run) ?? [];
  /** @type {AbortController | null} */
  let writing = null;

  const log = html("div", { class: "chat-log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const status = html("output", { class: "chat-status", role: "status" });
  const box = /** @type {HTMLTextAreaElement} */ (html("textarea", { rows: "2", "aria-label": "Your message", placeholder: "Your message" }));
  const system = /** @type {HTMLInputElement} */ (html("input", { type: "text", value: state.get("system", ""), placeholder: "none",
    change: () => state.set("system", system.value) }));
  const temperature = /** @type {HTMLInputElement} */ (html("input", { type: "number", min: "0", max: "10", step: "0.1", value: state.get("temperature", "0.7"),
    change: () => state.set("temperature", temperature.value) }));
  const button = (/** @type {string} */ name, /** @type {() => void} */ click) => /** @type {HTMLButtonElement} */ (html("button", { type: "button", click }, name));
  const send = /** @type {HTMLButtonElement} */ (html("button", { type: "submit" }, "send"));
  const stop = button("stop", () => writing?.abort());
  const undo = button("undo", () => { takeBack(); draw("The last message is taken back."); box.focus(); });
  const again = button("another answer", () => { messages().pop(); answer(); });
  const fresh = button("new conversation", () => { kept.set(run, []); draw("A new conversation."); box.focus(); });
  const save = button("save", download);

  /** The last message of the user, and its answer, are taken back; the message can be changed and sent again. */
  function takeBack() {
    const all = messages();
    while (all.length && all[all.length - 1].role !== "user") all.pop();
    box.value = all.pop()?.content ?? "";
  }

  /** @param {string} [line] what is said of it */
  function draw(line = "") {
    log.replaceChildren(...messages().map(item));
    log.setAttribute("aria-busy", String(writing !== null));
    status.textContent = line;
    send.disabled = writing !== null;
    stop.disabled = writing === null;
    for (const one of [undo, again, fresh, save]) one.disabled = writing !== null || !messages().length;
    log.scrollTop = log.scrollHeight;
  }

  /** Draws an answer to the last message. */
  async function answer() {
    /** @type {Message} */
    const made = { role: "assistant", content: "" };
    const asked = [...(system.value.trim() ? [{ role: "system", content: system.value }] : []), ...messages()];
    writing = new AbortController();
    messages().push(made);
    draw("The model is writing.");
    const body = { run, messages: asked, temperature: Number(temperature.value) || 0, seed };
    seed += 1;
    const place = log.lastElementChild?.querySelector(".chat-text");
    const end = await stream("/api/chat", body, writing.signal, (piece) => {
      made.content += piece;
      if (place) place.textContent = made.content;
      log.scrollTop = log.scrollHeight;
    });
    writing = null;
    if (end.error && !made.content) {
      messages().pop();
      takeBack();
    }
    draw(end.error ?? said(end));
  }

  /** The conversation as a file, of one line. */
  function download() {
    const first = system.value.trim() ? [{ role: "system", content: system.value }] : [];
    const line = JSON.stringify({ messages: [...first, ...messages()] });
    const link = html("a", { href: URL.createObjectURL(new Blob([`${line}\n`], { type: "application/x-ndjson" })), download: "chat.jsonl" });
    /** @type {HTMLAnchorElement} */ (link).click();
    draw("Saved as chat.jsonl.");
  }

  const form = html("form", { class: "chat-form", submit: (event) => {
    event.preventDefault();
    const content = box.value.trim();
    if (!content || writing) return;
    messages().push({ role: "user", content });
    box.value = "";
    answer();
  } }, box, html("div", { class: "chat-buttons" }, send, stop, undo, again, fresh, save));
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    /** @type {HTMLFormElement} */ (form).requestSubmit();
  });
  const plain = html("p", { class: "note" }, "This run has no chat template: messages are written as plain text, and the model continues them.");
  element.append(...(template ? [] : [plain]),
    html("div", { class: "choices" }, html("label", {}, "temperature ", temperature), html("label", { class: "chat-system" }, "instruction ", system)),
    html("div", { class: "picture" }, log, status, form));
  draw();
}

/** @param {Message} message */
function item({ role, content }) {
  return html("div", { class: `chat-message chat-${role}` }, html("span", { class: "chat-who" }, NAMES[role]), html("span", { class: "chat-text" }, content));
}

/** How an answer ended, where that is not its own end. @param {import("chainrule/chat_stream").End} end */
function said({ finish, dropped, context }) {
  const notes = [];
  if (dropped) notes.push(`The context of ${context} tokens is full: the first ${dropped} messages are no longer read.`);
  if (finish === "length") notes.push("Stopped at the longest answer.");
  if (finish === "context") notes.push(`Stopped: the context of ${context} tokens is full.`);
  if (finish === "stopped") notes.push("Stopped.");
  return notes.join(" ");
}
