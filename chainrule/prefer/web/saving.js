// @ts-check
/** Clicks on their way to the disk: kept in the browser until the server says that they are saved, and sent in order.
 *
 * A click has an id, so the server takes it once, however often it is sent. One that cannot be saved (a full disk, a
 * server that does not answer) is sent again until it can; a reload of the page does not lose it. */

/** @typedef {{ path: string, body: Record<string, any> }} Item */
/** @typedef {{ answered(item: Item, answer: any): void, waiting(count: number): void, failed(line: string, lost: boolean): void }} Listener */

const KEY = "chainrule-prefer-unsaved";
const PAUSE = 1500;    // milliseconds between attempts

/** @returns {Item[]} */
function read() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
}

/** An id that no other click has. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The server's answer, its status, and the reason where there is no answer.
 * @param {string} path @param {object} [body] @returns {Promise<{ status: number, answer: any, error: string }>} */
export async function ask(path, body) {
  try {
    const headers = { "content-type": "application/json" };
    const response = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : {});
    const answer = await response.json();
    return { status: response.status, answer, error: answer.error ?? "" };
  } catch {
    return { status: 0, answer: null, error: "The server does not answer. Is chainrule prefer still running?" };
  }
}

/** @param {Listener} listener */
export function makeSaver(listener) {
  const items = read();
  let sending = false;

  function keep() {
    localStorage.setItem(KEY, JSON.stringify(items));
    listener.waiting(items.length);
  }

  async function send() {
    if (sending) return;
    sending = true;
    while (items.length) {
      const { status, answer, error } = await ask(items[0].path, items[0].body);
      const later = status === 0 || status >= 500;
      if (error) listener.failed(error, !later);
      if (later) {
        await new Promise((done) => setTimeout(done, PAUSE));
        continue;
      }
      const item = /** @type {Item} */ (items.shift());
      keep();
      if (!error) listener.answered(item, answer);
    }
    sending = false;
  }

  return {
    items,
    /** @param {string} path @param {Record<string, any>} body */
    push(path, body) {
      items.push({ path, body });
      keep();
      send();
    },
    start() {
      listener.waiting(items.length);
      send();
    },
  };
}
