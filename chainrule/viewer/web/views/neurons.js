// @ts-check
/** A text coloured by one unit, a feature of the text beside it, and the units that correlate most with each feature. */
import { fixed, html, svg, visible } from "chainrule/draw";
import { unpack } from "chainrule/arrays";
import { renew } from "chainrule/renew";

/** @typedef {import("chainrule/arrays").Packed} Packed */
/** @typedef {{ group: number, unit: number, r: number }} Found */
/** @typedef {{ name: string, title: string, values: Packed, best: Found[] }} Feature */
/** @typedef {{ name: string, layer: number, units: number }} Group */
/** @typedef {{ model: string, left_out: number, tokens: string[], groups: Group[], features: Feature[], n: number, units: number,
 *   random: number | null, sent: [number, number][], values: Packed }} Data */
/** @typedef {{ ask(options: Record<string, string>): Promise<Data | null> }} Live */
/** @typedef {{ group: number, unit: number, feature: number }} Chosen */
/** @typedef {ArrayLike<number>} Values one a token */

const CLEAR = 0.5;               // of correlations: the first feature with such a unit is shown at first
const STEP = { n: 1, p: -1 };    // keys, wherever the focus is in the view

/** @param {Element} element @param {Data} data @param {import("chainrule/state").State} state @param {Live | null} live */
export function render(element, data, state, live) {
  const known = remembered(data);
  const features = data.features.map((feature) => unpack(feature.values).values);
  const place = html("div", { class: "picture" });
  const controls = html("div", { class: "choices" });
  const table = html("div", { class: "scroll" });
  const readout = html("output", { class: "readout", "aria-live": "polite" });

  const choose = async (/** @type {Partial<Chosen>} */ change) => {
    const next = { ...chosen(data, state, known, live), ...change };
    if (live && !known.has(key(next))) {
      const more = await live.ask({ group: String(next.group), unit: String(next.unit) });
      if (!more) return;
      for (const [name, values] of remembered(more)) known.set(name, values);
    }
    for (const [name, value] of Object.entries(next)) state.set(name, String(value));
    draw();
  };
  const draw = () => {
    const now = chosen(data, state, known, live);
    renew(controls, ...pickers(data, known, live, now, choose));
    renew(table, found(data, now, choose));
    const values = known.get(key(now));
    if (!values) return void choose({});
    renew(place, ...picture(data, values, features[now.feature], now, readout));
  };
  element.addEventListener("keydown", (event) => {
    const { key: pressed, target, altKey, ctrlKey, metaKey } = /** @type {KeyboardEvent} */ (event);
    const step = STEP[/** @type {keyof typeof STEP} */ (pressed)];
    if (step === undefined || altKey || ctrlKey || metaKey || /** @type {Element} */ (target).matches("input, select")) return;
    choose({ unit: beside(data, known, live, chosen(data, state, known, live), step) });
  });
  element.append(controls, readout, place, html("h3", {}, "Units that follow a feature"), explained(data), table);
  if (!live && known.size < data.units) element.append(html("p", { class: "note" },
    `This page holds the values of ${known.size.toLocaleString("en")} of ${data.units.toLocaleString("en")} units. Open it with `, html("code", {}, "chainrule look RUN"), " to see them all."));
  draw();
}

/** The key of a unit's values. @param {{ group: number, unit: number }} chosen */
const key = ({ group, unit }) => `${group}.${unit}`;

/** The values of the units that came. @param {Data} data @returns {Map<string, Values>} */
function remembered(data) {
  const { shape, values } = unpack(data.values);
  return new Map(data.sent.map(([group, unit], row) => [key({ group, unit }), values.subarray(row * shape[1], (row + 1) * shape[1])]));
}

/** The chosen unit and feature: from the address, else the unit with the clearest correlation.
 * @param {Data} data @param {import("chainrule/state").State} state @param {Map<string, Values>} known @param {Live | null} live @returns {Chosen} */
function chosen(data, state, known, live) {
  const best = data.features.map((feature) => Math.abs(feature.best[0]?.r ?? 0));
  const within = (/** @type {string} */ name, /** @type {number} */ otherwise, /** @type {number} */ size) => {
    const value = Number(state.get(name, String(otherwise)));
    return Number.isInteger(value) && value >= 0 && value < size ? value : otherwise;
  };
  const clear = best.findIndex((r) => r > CLEAR);
  const feature = within("feature", clear >= 0 ? clear : best.indexOf(Math.max(...best)), data.features.length);
  const first = data.features[feature].best[0] ?? { group: 0, unit: 0 };
  const group = within("group", first.group, data.groups.length);
  const unit = within("unit", group === first.group ? first.unit : 0, data.groups[group].units);
  return live || known.has(key({ group, unit })) ? { group, unit, feature } : { group: first.group, unit: first.unit, feature };
}

/** The units of a group that can be seen here. @param {Data} data @param {Map<string, Values>} known @param {Live | null} live @param {number} group */
function within(data, known, live, group) {
  const every = Array.from({ length: data.groups[group].units }, (_, unit) => unit);
  return live ? every : every.filter((unit) => known.has(key({ group, unit })));
}

/** The previous or next unit. @param {Data} data @param {Map<string, Values>} known @param {Live | null} live @param {Chosen} now @param {number} step */
function beside(data, known, live, now, step) {
  const units = within(data, known, live, now.group);
  return units[(units.indexOf(now.unit) + step + units.length) % units.length];
}

/** @param {Data} data @param {Map<string, Values>} known @param {Live | null} live @param {Chosen} now @param {(change: Partial<Chosen>) => void} choose */
function pickers(data, known, live, now, choose) {
  const group = data.groups[now.group];
  const seen = [...data.groups.keys()].filter((place) => within(data, known, live, place).length > 0);
  const names = [...new Set(seen.map((place) => data.groups[place].name))];
  const layers = seen.filter((place) => data.groups[place].name === group.name);
  const first = (/** @type {number} */ place) => {
    const units = within(data, known, live, place);
    return choose({ group: place, unit: units.includes(now.unit) ? now.unit : units[0] });
  };
  const near = (/** @type {string} */ name) => seen.find((place) => data.groups[place].name === name && data.groups[place].layer === group.layer)
    ?? seen.find((place) => data.groups[place].name === name) ?? now.group;
  const unit = html("input", { class: "neurons-unit", type: "number", min: 0, max: group.units - 1, value: now.unit, "aria-label": `unit, 0 to ${group.units - 1}`,
    change: (event) => {
      const units = within(data, known, live, now.group);
      const wanted = Number(/** @type {HTMLInputElement} */ (event.target).value);
      choose({ unit: units.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best), units[0]) });
    } });
  return [
    select("show", "tap", names.map((name) => [name, name]), group.name, (name) => first(near(name))),
    select("layer", "layer", layers.map((place) => [String(place), String(data.groups[place].layer)]), String(now.group), (place) => first(Number(place))),
    html("label", {}, "unit ", unit),
    html("button", { type: "button", "data-step": -1, title: "previous unit (key p)", click: () => choose({ unit: beside(data, known, live, now, -1) }) }, "‹ previous"),
    html("button", { type: "button", "data-step": 1, title: "next unit (key n)", click: () => choose({ unit: beside(data, known, live, now, 1) }) }, "next ›"),
    select("compare with", "feature", data.features.map((feature, place) => [String(place), feature.title]), String(now.feature), (place) => choose({ feature: Number(place) })),
  ];
}

/** @param {string} label @param {string} name @param {[string, string][]} options value and what is shown @param {string} chosen @param {(value: string) => void} onchange */
function select(label, name, options, chosen, onchange) {
  return html("label", {}, `${label} `, html("select", { "data-which": name, "aria-label": name, change: (event) => onchange(/** @type {HTMLSelectElement} */ (event.target).value) },
    ...options.map(([value, shown]) => html("option", { value, selected: value === chosen }, shown))));
}

/** The text, and the unit and the feature along it. @param {Data} data @param {Values} values @param {Values} feature @param {Chosen} now @param {HTMLElement} readout */
function picture(data, values, feature, now, readout) {
  const [most, top] = [largest(values), largest(feature)];
  const title = data.features[now.feature].title;
  const tokens = data.tokens.map((token, place) => spot(token, place, values[place] / most, feature[place] / top, values[place]));
  const text = html("p", { class: "text neurons-text", tabindex: 0, role: "group", "aria-label": "the text, token by token" }, ...tokens);
  const cursors = [0, 1].map(() => svg("line", { class: "cursor", y1: 0, y2: 2, visibility: "hidden" }));
  let at = -1;
  const mark = (/** @type {number} */ place) => {
    tokens[at]?.classList.remove("chosen");
    at = Math.min(tokens.length - 1, Math.max(0, place));
    tokens[at].classList.add("chosen");
    for (const cursor of cursors) for (const [name, value] of [["x1", at + 0.5], ["x2", at + 0.5], ["visibility", "visible"]]) cursor.setAttribute(String(name), String(value));
    readout.replaceChildren(html("b", {}, `“${visible(data.tokens[at])}”`), html("span", { "data-value": values[at] }, `${named(data, now)} ${fixed(values[at], 3)}, `),
      html("span", { "data-feature": feature[at] }, `${title} ${rounded(feature[at])}`));
  };
  readout.replaceChildren(html("b", {}, named(data, now)), "Point at a token, or focus the text and use the arrow keys; the keys n and p go to the next and the previous unit.");
  follow(text, tokens, mark, () => at);
  const strips = [strip(values, most, "unit", cursors[0]), strip(feature, top, "feature", cursors[1])];
  for (const one of strips) one.addEventListener("pointermove", (event) => {
    const box = one.getBoundingClientRect();
    mark(Math.floor((/** @type {PointerEvent} */ (event).clientX - box.left) / box.width * tokens.length));
  });
  return [
    html("p", { class: "scale" }, ...legend(values, most), html("span", {}, `· line below a token: ${title}`)),
    text,
    html("p", { class: "neurons-label" }, `${named(data, now)}, token by token`), strips[0],
    html("p", { class: "neurons-label" }, `${title}, 0 to ${rounded(largest(feature, 0))}`), strips[1],
  ];
}

/** @param {number} value */
const rounded = (value) => String(Number(value.toFixed(2))).replace("-", "−");

/** @param {Values} values */
const signed = (values) => Array.from(values).some((value) => value < 0);

/** What the colours mean. @param {Values} values @param {number} most */
const legend = (values, most) => [signed(values) ? fixed(-most, 2) : "0", html("i", { class: signed(values) ? "both" : "rise" }), fixed(most, 2)];

/** @param {Data} data @param {{ group: number, unit: number }} chosen */
function named(data, { group, unit }) {
  const { name, layer } = data.groups[group];
  return `${name} ${data.groups.some((one) => one.layer > 1) ? `of layer ${layer}, ` : ""}unit ${unit}`;
}

/** @param {Values} values @param {number} [least] */
const largest = (values, least = 1e-9) => Array.from(values).reduce((most, value) => Math.max(most, Math.abs(value)), least);

/** @param {string} token @param {number} place @param {number} share of the unit's largest value @param {number} feature of the feature's largest value @param {number} value */
function spot(token, place, share, feature, value) {
  const tint = share < 0 ? "--tint:var(--cold);" : "";
  return html("span", { class: place ? "token" : "token end", "data-value": value, style: `${tint}--heat:${Math.abs(share).toFixed(3)};--feature:${Math.abs(feature).toFixed(3)}` },
    place ? token.replaceAll("\n", "↵\n") : `${token} `);
}

/** Pointer and arrow keys. @param {HTMLElement} text @param {HTMLElement[]} tokens @param {(place: number) => void} mark @param {() => number} at */
function follow(text, tokens, mark, at) {
  text.addEventListener("pointerover", (event) => {
    const place = tokens.indexOf(/** @type {HTMLElement} */ (event.target));
    if (place >= 0) mark(place);
  });
  text.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -20, ArrowDown: 20, Home: -tokens.length, End: tokens.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    mark(at() + step);
    tokens[at()].scrollIntoView({ block: "nearest" });
  });
}

/** Values as bars from zero, negative ones downward. @param {Values} values @param {number} most @param {"unit" | "feature"} kind @param {SVGElement} cursor */
function strip(values, most, kind, cursor) {
  const bars = (/** @type {number} */ sign) => Array.from(values, (value, place) => (value * sign > 0 ? `M${place} 1V${(1 - value / most).toFixed(4)}h1V1z` : "")).join("");
  const drawn = kind === "feature" ? [svg("path", { class: "feature", d: bars(1) })] : [svg("path", { class: "hot", d: bars(1) }), svg("path", { class: "cold", d: bars(-1) })];
  return svg("svg", { class: "neurons-strip", "data-strip": kind, viewBox: `0 0 ${values.length} ${signed(values) ? 2 : 1}`, preserveAspectRatio: "none", "aria-hidden": true },
    svg("line", { class: "zero", x1: 0, x2: values.length, y1: 1, y2: 1 }), ...drawn, cursor);
}

/** What the correlations are over, and what unrelated units would reach. @param {Data} data */
function explained(data) {
  const over = `Pearson's r over ${data.n.toLocaleString("en")} tokens, of all ${data.units.toLocaleString("en")} units.`;
  const random = data.random == null ? "" : ` If no unit had to do with a feature, the best would still reach about ${fixed(Math.min(1, data.random), 2)} at random, and more if neighbouring tokens are similar.`;
  return html("p", { class: "note" }, over, random);
}

/** @param {Data} data @param {Chosen} now @param {(change: Partial<Chosen>) => void} choose */
function found(data, now, choose) {
  const rows = data.features.map((feature, place) => html("tr", {}, html("th", { scope: "row" }, feature.title), html("td", {},
    ...feature.best.map((one) => html("button", { type: "button", "data-r": one.r, "data-unit": key(one), "data-feature": feature.name,
      "aria-pressed": String(one.group === now.group && one.unit === now.unit && place === now.feature),
      click: () => choose({ group: one.group, unit: one.unit, feature: place }) }, `${named(data, one)} `, html("span", { class: "sign" }, (one.r < 0 ? "−" : "+") + fixed(Math.abs(one.r), 3)))),
    feature.best.length ? null : "constant in this text")));
  return html("table", { class: "neurons-found" }, html("tbody", {}, ...rows));
}
