// @ts-check
/** What a reader has chosen, kept in the address: `#surprise.one=gpt&curves.x=seconds`. */

/** @typedef {{ get(name: string, otherwise: string): string, set(name: string, value: string): void }} State */

function address() {
  const hash = location.hash.slice(1);
  return new URLSearchParams(hash.includes("=") ? hash : "");
}

/** The state of one view; without `=` the address names a place in the page, and nothing was chosen.
 * @param {string} view @returns {State} */
export function remember(view) {
  return {
    get: (name, otherwise) => address().get(`${view}.${name}`) ?? otherwise,
    set(name, value) {
      const all = address();
      all.set(`${view}.${name}`, value);
      history.replaceState(null, "", `#${all}`);
    },
  };
}
