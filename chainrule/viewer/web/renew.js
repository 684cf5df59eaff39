// @ts-check
/** Replaces the children of an element; the focus stays at the same position, if it still exists.
 *
 * @param {Element} place @param {...(Node | string)} children */
export function renew(place, ...children) {
  /** @type {Element | null} */
  let at = place.contains(document.activeElement) ? document.activeElement : null;
  const way = [];
  for (; at && at !== place; at = at.parentElement) way.unshift([...(at.parentElement?.children ?? [])].indexOf(at));
  place.replaceChildren(...children);
  if (!way.length) return;
  const found = way.reduce((/** @type {Element | undefined} */ one, index) => one?.children[index], place);
  /** @type {HTMLElement | undefined} */ (found)?.focus({ preventScroll: true });
}
