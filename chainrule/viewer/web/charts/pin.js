// @ts-check
/** A choice that follows the pointer until a click or a tap pins it; Escape, or another click on it, frees it.
 *
 * Several charts may share one pin. A finger has left as soon as it is lifted, so its leaving changes nothing. */
export class Pin {
  constructor() {
    /** What is pinned. @type {string | null} */
    this.held = null;
  }

  /** Whether the choice follows a pointer that moves, or leaves. @param {PointerEvent} event */
  follows(event) {
    return this.held === null && !(event.type === "pointerleave" && event.pointerType === "touch");
  }

  /** After a click. @param {object} choice */
  toggle(choice) {
    const held = JSON.stringify(choice);
    this.held = this.held === held ? null : held;
  }

  /** After a key: what is pinned moves along. @param {object} choice */
  move(choice) {
    if (this.held !== null) this.held = JSON.stringify(choice);
  }

  free() {
    this.held = null;
  }
}
