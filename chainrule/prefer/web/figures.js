// @ts-check
/** The numbers below the answers: progress, ties, raters and their agreement, left and right, and the tuning. */
import { fixed, html } from "chainrule/draw";
import { complaint } from "chainrule/panel";

/** @typedef {{ count: number, of: number, share: number | null, low: number, high: number }} Share */
/** @typedef {{ pairs: number, raters: string[], raw: Share, measure: string, value: number | null }} Agreement */
/** @typedef {{ state: string, method: string, out: string, error: string, step: number, steps: number | null, seconds: number, pairs: number, charts: any[], findings: any[] }} Tune */
/** @typedef {{ old: string, new: string, held_out: boolean, prompts: number, items: number, equal: number, ties: number, wins: Share, tokens: number[] | null, waiting: number }} Comparison */
/** @typedef {{ run: string, out: string, prompts: number, choices: number, ties: number, mine: number, waiting: number,
 *   raters: Record<string, number>, left: Share, agreement: Agreement, tune: Tune, comparison: Comparison | null }} State */

/** @param {number} share */
const percent = (share) => `${Math.round(100 * share)} %`;

/** “62 % (8 of 13; 95 % interval 36 to 82 %)” @param {Share} share */
function said(share) {
  if (share.share == null) return "–";
  return `${percent(share.share)} (${share.count} of ${share.of}; 95 % interval ${Math.round(100 * share.low)} to ${percent(share.high)})`;
}

/** @param {Element} place @param {State} state */
export function showFigures(place, state) {
  const raters = Object.entries(state.raters).map(([name, count]) => `${name}: ${count}`).join(", ") || "–";
  const { agreement } = state;
  const biased = state.left.of >= 10 && (state.left.low > 0.5 || state.left.high < 0.5);
  const rows = {
    "pairs in the file": `${state.choices}, in ${state.out}`,
    "no difference": `${state.ties}`,
    "clicks by rater": raters,
    "the left answer was chosen": said(state.left) + (biased ? ": a bias to one side, since the order is random" : ""),
    "agreement of raters": agreement.pairs ? `${said(agreement.raw)} on ${agreement.pairs} shared pairs` : "no pair has two raters yet",
    ...(agreement.pairs ? { [agreement.measure]: fixed(agreement.value, 2) } : {}),
  };
  const list = html("dl", { class: "prefer-figures" }, ...Object.entries(rows).flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
  const open = /** @type {HTMLDetailsElement | null} */ (place.querySelector("details"))?.open;
  place.replaceChildren(list, html("details", { open: Boolean(open) }, html("summary", {}, "What kappa and alpha are"),
    html("p", { class: "note" }, "Cohen’s kappa = (Po − Pe) / (1 − Pe): Po is the share of shared pairs on which two raters agree, Pe the share that they would agree on if each chose at random with the frequencies of their own answers. Krippendorff’s alpha = 1 − Do / De, for more than two raters: Do is the share of differing ratings of the same pair, De of any two ratings. 1: always agree; 0: as often as at random."),
    html("p", { class: "note" }, "Intervals of shares are Wilson’s.")));
}

/** @param {Element} place @param {State} state */
export function showTuning(place, { tune, comparison }) {
  const parts = [];
  if (tune.state === "running") {
    parts.push(html("p", {}, `${tune.method} on ${tune.pairs} pairs: step ${tune.step}${tune.steps ? ` of ${tune.steps}` : ""}, ${Math.round(tune.seconds)} s`),
      html("progress", { "aria-label": "steps of tuning", max: tune.steps ?? 1, value: tune.steps ? tune.step : null }));
  }
  if (tune.state === "failed") parts.push(complaint(`The tuning failed: ${tune.error}`));
  if (tune.state === "cancelled") parts.push(html("p", {}, "The tuning was cancelled. The model that answers is the one before."));
  if (tune.state === "done") parts.push(html("p", {}, `${tune.out}: tuned by ${tune.method} on ${tune.pairs} pairs in ${Math.round(tune.seconds)} s.`));
  if (comparison) parts.push(...showComparison(comparison));
  place.replaceChildren(...parts);
}

/** @param {Comparison} result */
function showComparison(result) {
  const { wins } = result, where = result.held_out ? "held-out prompts" : "prompts that it was trained on (there are no others: this shows the fit, not more)";
  const lines = [];
  if (wins.of) {
    const verdict = wins.low > 0.5 ? "Clicking helped." : wins.high < 0.5 ? "Clicking made it worse." : "That is not yet different from half.";
    lines.push(html("p", { class: "prefer-result" }, `The new model wins ${said(wins)} of the comparisons on ${where}. ${verdict}`));
  }
  const more = [`${result.waiting} to compare`, `${result.ties} without a difference`, `${result.equal} of ${result.items} with equal answers`];
  if (result.tokens) more.push(`mean length ${result.tokens[0]} tokens before, ${result.tokens[1]} after`);
  lines.push(html("p", { class: "note" }, `Old against new: ${more.join("; ")}.`));
  return lines;
}
