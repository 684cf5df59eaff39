// @ts-check
/** What a reader has chosen, kept in the address: `#surprise.one=gpt&curves.x=seconds`. */

/** @typedef {{ get(name: string, otherwise: string): string, set(name: string, value: string): void,
 *   visit(choices: Record<string, string>): void, link(choices: Record<string, string>): string,
 *   every(): Record<string, string> }} State */

const BURST = 50;      // writes of the address that may follow at once: browsers limit their rate
const PAUSE = 100;     // milliseconds for each further one
const LONGEST = 30000; // characters of an address that can still be shared; a longer one is not written

let chosen = new URLSearchParams(read() ?? "");
let budget = BURST, paid = performance.now(), waiting = 0;

/** Without `=` the address is a section of the page and has no choices. */
function read() {
  const hash = location.hash.slice(1);
  return hash.includes("=") || hash === "" ? hash : null;
}

addEventListener("popstate", () => { chosen = new URLSearchParams(read() ?? chosen); });

/** Writes the address, now or soon. */
function write() {
  const now = performance.now();
  [budget, paid] = [Math.min(BURST, budget + (now - paid) / PAUSE), now];
  if (budget < 1) {
    waiting ||= setTimeout(() => { waiting = 0; write(); }, PAUSE);
    return;
  }
  budget -= 1;
  put("replaceState");
}

/** A page in a frame has no address of its own: there the choices are only kept in memory.
 * @param {"replaceState" | "pushState"} how */
function put(how) {
  const hash = `#${chosen}`;
  if (location.protocol !== "about:" && hash.length <= LONGEST) history[how](null, "", hash);
}

/** @param {string} view @param {Record<string, string>} choices */
function together(view, choices) {
  const all = new URLSearchParams(chosen);
  for (const [name, value] of Object.entries(choices)) all.set(`${view}.${name}`, value);
  return all;
}

/** The state of one view. @param {string} view @returns {State} */
export function remember(view) {
  return {
    get: (name, otherwise) => chosen.get(`${view}.${name}`) ?? otherwise,
    set(name, value) {
      chosen = together(view, { [name]: value });
      write();
    },
    /** The same, with an entry in the browser's history. */
    visit(choices) {
      put("replaceState");
      chosen = together(view, choices);
      put("pushState");
    },
    link: (choices) => `#${together(view, choices)}`,
    every() {
      const own = [...chosen].filter(([name]) => name.startsWith(`${view}.`));
      return Object.fromEntries(own.map(([name, value]) => [name.slice(view.length + 1), value]));
    },
  };
}
