// @ts-check
/** What each kind generates after the same prompt. */
import { html } from "chainrule/draw";

/** @param {Element} element @param {{ kind: string, idea: string, prompt: string, sample: string }[]} samples */
export function render(element, samples) {
  element.append(html("div", { class: "strips" }, ...samples.map(({ kind, idea, prompt, sample }) =>
    html("section", { class: "strip", "data-kind": kind }, html("h3", { title: idea }, kind),
      html("p", { class: "text" }, html("span", { class: "prompt" }, prompt), sample)))));
}
