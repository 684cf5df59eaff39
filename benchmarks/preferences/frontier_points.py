"""Points of reward against KL, and their frontier: pairs by reward, best-of-n, the table and the picture.

    python benchmarks/preferences/frontier_points.py POINTS.jsonl [--svg FILE]     the table, and the picture

The points are JSON lines of frontier.py: method, seed, reward and KL of a policy. The frontier of a method is the
reward that it reaches within a budget of KL. Shapes: P prompts, K answers to each.
"""

import argparse
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import numpy as np

from chainrule.inference.statistics import Score, bootstrap
from chainrule.viewer.line_chart import Curve, line_chart

PREFIX = 2, 8                                    # tokens of a prompt, least and most
BUDGETS = 0.5, 1, 2.5, 5, 10, 15                 # of KL, in nats: columns of the table
STEP, MOST = 0.25, 15.0                          # of KL: between two points of a curve, and at the right end
REFERENCE, BEST_OF, BEST_OF_LEARNED = "reference", "best of n", "best of n, learned reward"
ORDER = "DPO", "IPO", "KTO", "SFT on chosen", "PPO", "PPO, true reward", "GRPO", BEST_OF, BEST_OF_LEARNED

Points: TypeAlias = Sequence[Mapping[str, Any]]


def prompts_of(texts: Sequence[str], tokenizer: Any, count: int, seed: int) -> list[str]:
    """The first tokens of some texts, in random order; those that would be read as other tokens are left out."""
    generator, prompts = random.Random(seed), list[str]()
    for text in generator.sample(list(texts), len(texts)):
        ids = tokenizer.encode(text[:200])[: generator.randint(*PREFIX)].tolist()
        prompt = tokenizer.decode(ids)
        if prompt.strip() and tokenizer.encode(prompt).tolist() == ids:
            prompts.append(prompt)
        if len(prompts) == count:
            return prompts
    raise ValueError(f"{len(texts)} texts give only {len(prompts)} of {count} prompts")


def pair_up(prompt: str, answers: Sequence[str], rewards: Sequence[float]) -> list[dict[str, Any]]:
    """The first answer against the second, the third against the fourth, …: each is in one pair at most.

    The one with the higher reward is chosen. Of two equal answers, or two equal rewards, there is no pair.
    """
    pairs = []
    for place in range(0, len(answers) - 1, 2):
        two = sorted(zip(rewards[place : place + 2], answers[place : place + 2]))
        (low, worse), (high, better) = two
        if low < high and worse.strip() and better.strip() and worse != better:
            pairs.append({"prompt": prompt, "chosen": better, "rejected": worse,
                          "chosen_reward": round(high, 6), "rejected_reward": round(low, 6)})
    return pairs


def best_of_n(truth: Any, by: Any, n: int) -> Any:
    """(P, K), (P, K) -> (P,): the expected true reward of the answer that is best by `by`, among n of the K drawn.

    The answer of rank i (from 1, the worst) is the best of C(i-1, n-1) of the C(K, n) subsets.
    """
    ranked = np.take_along_axis(truth, by.argsort(1, kind="stable"), 1)
    count = truth.shape[1]
    return ranked @ np.array([math.comb(rank, n - 1) / math.comb(count, n) for rank in range(count)])


def mean_score(numbers: Any) -> Score:
    """With an interval by bootstrap over the prompts."""
    return bootstrap(lambda weights: float(weights @ numbers / weights.sum()), len(numbers))


def read_rows(results: Path) -> list[dict[str, Any]]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines() if line.startswith("{")]


def by_method(rows: Points) -> dict[str, Points]:
    """Points of each; of a training that was begun again, the last ones."""
    last = {json.dumps([row[name] for name in ("method", "settings", "seed", "step")]): row
            for row in rows if row["event"] == "point"}
    points = list(last.values())
    made = {name: [row for row in points if row["method"] == name] for name in ORDER}
    return {name: some for name, some in made.items() if some}


def frontier(points: Points, budget: float) -> Score | None:
    """The reward of the best point within the budget of KL: mean, lowest and highest over the seeds.

    Points are noisy, and the best of many looks better than it is. So it is chosen by its reward on one half of the
    test prompts, and counted by that on the other half; the mean of both ways is taken. None: a seed has no point.
    """
    rewards = []
    for seed in sorted({point["seed"] for point in points}):
        within = [point["halves"] for point in points if point["seed"] == seed and point["kl"] <= budget]
        if not within:
            return None
        rewards.append(mean(max(within, key=lambda halves: halves[one])[1 - one] for one in (0, 1)))
    return Score(mean(rewards), min(rewards), max(rewards)) if rewards else None


def table(rows: Points) -> list[str]:
    """Markdown: the reward within each budget, and the point with the highest reward."""
    lines = [f"| method | {' | '.join(f'KL ≤ {budget:g}' for budget in BUDGETS)} | highest reward | seeds | points |",
             f"|---|{'---|' * (len(BUDGETS) + 3)}"]
    for name, points in by_method(rows).items():
        best = max(points, key=lambda point: point["reward"])
        cells = [_cell(frontier(points, budget)) for budget in BUDGETS]
        highest = "{reward:.3f} at KL {kl:.1f}".format(**best)
        seeds = len({point["seed"] for point in points})
        lines.append(f"| {' | '.join([name, *cells, highest, str(seeds), str(len(points))])} |")
    return lines


def _cell(score: Score | None) -> str:
    if score is None:
        return "–"
    return f"{score.value:.3f}" + (f" ({score.low:.3f}–{score.high:.3f})" if score.high > score.low else "")


def picture(rows: Points) -> str:
    """The frontiers of all methods as SVG, with the range of the seeds, and the points that they are made of."""
    curves, dots = {}, {}
    for name, points in by_method(rows).items():
        shown = [point for point in points if point["seed"] in near(points)]
        if name != BEST_OF_LEARNED and (curve := curve_of(name, shown)):
            seeds, of = len(near(points)), len({point["seed"] for point in points})
            name += f", {seeds} of {of} seeds" if seeds < of else ""
            curves[name] = curve
            dots[name] = [(point["kl"], point["reward"]) for point in points if 0 <= point["kl"] <= MOST]
    ticks = {float(place): f"{place:g}" for place in range(0, math.ceil(MOST) + 1, 5)}
    return line_chart(curves, x="KL from the reference, nats per answer", y="true reward: p(positive)", ticks=ticks,
                      points=dots)


def near(points: Points) -> set[int]:
    """Seeds with a point in the picture."""
    return {point["seed"] for point in points if point["kl"] <= MOST}


def curve_of(name: str, points: Points) -> Curve:
    if name == BEST_OF and points:
        return [(point["kl"], Score(point["reward"], *point["reward_interval"])) for point in points]
    if not points:
        return []
    last = min(MOST, max(point["kl"] for point in points) + STEP)
    reached = [(float(budget), frontier(points, float(budget))) for budget in np.arange(STEP, last + STEP / 2, STEP)]
    return [(budget, score) for budget, score in reached if score is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("points", type=Path, nargs="+")
    parser.add_argument("--svg", type=Path, help="file for the picture")
    args = parser.parse_args()
    rows = [row for file in args.points for row in read_rows(file)]
    if not by_method(rows):
        parser.error(f"{args.points[0]} has no points.")
    print("\n".join(table(rows)))
    if args.svg:
        args.svg.write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
