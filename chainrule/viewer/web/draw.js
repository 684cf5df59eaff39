// @ts-check
/** Helpers of all views: elements, number formats and colours. */

/** @typedef {Record<string, string | number | boolean | null | undefined | EventListener>} Attributes */
/** @typedef {Node | string | number | null | undefined} Child */

/** @param {Element} made @param {Attributes} attributes @param {Child[]} children */
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value != null && value !== false) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child != null).map((child) => (child instanceof Node ? child : String(child))));
}

/** An HTML element. A function among the attributes listens to the event of its name.
 * @param {string} name @param {Attributes} [attributes] @param {...Child} children @returns {HTMLElement} */
export function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  fill(made, attributes, children);
  return made;
}

/** An SVG element.
 * @param {string} name @param {Attributes} [attributes] @param {...Child} children @returns {SVGElement} */
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  fill(made, attributes, children);
  return made;
}

/** With a minus sign, not a hyphen, and none before zero. @param {number | null | undefined} value @param {number} [digits] */
export const fixed = (value, digits = 3) => (value == null ? "–" : signed(value.toFixed(digits)));

/** @param {string} digits */
const signed = (digits) => digits.replace("-", Number(digits) === 0 ? "" : "−");

/** White space made visible. @param {string} text */
export const visible = (text) => text.replaceAll("\n", "↵").replaceAll(" ", "·").replaceAll("\t", "⇥");

/** 1234567 -> 1.23M. @param {number | null | undefined} value */
export function short(value) {
  if (value == null) return "–";
  for (const [scale, letter] of /** @type {[number, string][]} */ ([[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]))
    if (Math.abs(value) >= scale) return signed(String(Number((value / scale).toPrecision(3)))) + letter;
  return signed(String(Number(value.toPrecision(3))));
}

/** The colour of a kind; grey if it has none. @param {number | null | undefined} color */
export const hue = (color) => (color == null ? "var(--soft)" : `var(--hue${color})`);

/** A box that scrolls if its content is wider, also by keyboard: where a control within it does not take the focus.
 * @param {string} label @param {...Child} children */
export const scrolling = (label, ...children) => html("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, ...children);

let names = 0;

/** A name that nothing else on this page has: a file shows a view several times. @param {string} part of it */
export const unique = (part) => `${part.replaceAll(" ", "-")}-${++names}`;

/** A group of radio buttons.
 * @param {string} title @param {Record<string, string>} options value -> label @param {string} chosen
 * @param {(value: string) => void} onchange */
export function choices(title, options, chosen, onchange) {
  const name = unique(`choice-${title}`);    // or the radio buttons of all sections would be one group
  return html("fieldset", { class: "choices" }, html("legend", {}, title),
    ...Object.entries(options).map(([value, label]) => html("label", { class: "choice" },
      html("input", { type: "radio", name, value, checked: value === chosen, change: () => onchange(value) }), label)));
}

/** A token with its white space: words stand apart. @param {string} token */
export const spaced = (token) => (token.startsWith("·") ? ` ${token.slice(1)}` : token.replaceAll("·", " "));

/**
 * A token of a text, whose children are its tokens, is chosen by the pointer or by the arrow keys.
 * @param {Element} text @param {() => number} at @param {(place: number) => void} show
 */
export const pointAtTokens = (text, at, show) => {
  text.addEventListener("pointerover", (event) => { const place = [...text.children].indexOf(/** @type {Element} */ (event.target)); if (place >= 0) show(place); });
  text.addEventListener("keydown", (event) => {
    const pressed = /** @type {KeyboardEvent} */ (event), count = text.children.length;
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -count, End: count }[pressed.key];
    if (step === undefined || !count) return;
    event.preventDefault();
    show(at() + step);
  });
};
