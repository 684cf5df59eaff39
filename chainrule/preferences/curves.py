"""Curves of preference tuning and reinforcement learning, read from a log; in a terminal as rows of blocks.

    rewards/chosen     ▅▅▄▄▃▃▃▂  0.01 → -0.82
    rewards/rejected   ▅▄▃▂▂▁▁▁  0.00 → -2.10

The names are TRL's. Curves of one group share an axis, so that they can be compared.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

Curve: TypeAlias = list[tuple[int, float]]
"""Step and value, in order."""

LOSS = "loss"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "loss": (LOSS,),
    "reward of an answer: rewards/chosen, rewards/rejected": ("rewards/chosen", "rewards/rejected"),
    "margin: rewards/margins": ("rewards/margins",),
    "accuracy: rewards/accuracies": ("rewards/accuracies",),
    "reward": ("reward",),
    "KL divergence from the reference, nats: kl": ("kl",),
    "nats per token: entropy": ("entropy",),
    "tokens of an answer: completions/mean_length": ("completions/mean_length",),
    "share of clipped ratios: clip_ratio": ("clip_ratio",),
}
"""Titles of charts, and the curves in each."""

METRICS = tuple(name for names in GROUPS.values() for name in names if name != LOSS)
ALSO = ("reward_std", "logps/chosen")      # read, but not drawn
BLOCKS, WIDTH = "▁▂▃▄▅▆▇█", 40


def read_curves(records: Iterable[Mapping[str, Any]], event: str = "step") -> dict[str, Curve]:
    """The curves in a log, with the loss; empty: it is not a log of such a training."""
    curves: dict[str, Curve] = {name: [] for name in (LOSS, *METRICS, *ALSO)}
    for record in records:
        if record.get("event") == event and not set(METRICS).isdisjoint(record):
            loss = {LOSS: record.get("nats_per_token", record.get(LOSS))}
            for name, value in {**record, **loss}.items():
                if name in curves and value is not None and math.isfinite(value):
                    curves[name].append((int(record["step"]), float(value)))
    return {name: curve for name, curve in curves.items() if curve}


def draw_curves(curves: Mapping[str, Curve], width: int = WIDTH) -> list[str]:
    """A line for each curve: blocks from its first step to its last, and its two ends."""
    lines, longest = [], max((len(name) for name in curves), default=0)
    for names in GROUPS.values():
        shown = [name for name in names if name in curves]
        values = [value for name in shown for _, value in curves[name]]
        for name in shown:
            row = sparkline([value for _, value in curves[name]], width, min(values), max(values))
            ends = " → ".join(short_number(curves[name][place][1]) for place in (0, -1))
            lines.append(f"{name:<{longest}}  {row}  {ends}")
    return lines


def sparkline(values: Sequence[float], width: int = WIDTH, low: float | None = None, high: float | None = None) -> str:
    """Values as blocks of eight heights between `low` and `high`; of many values each block is a mean."""
    means = [sum(part) / len(part) for part in _parts(values, width)]
    bottom, top = min(values) if low is None else low, max(values) if high is None else high
    scale = (len(BLOCKS) - 1) / (top - bottom) if top > bottom else 0.0
    return "".join(BLOCKS[round((mean - bottom) * scale)] for mean in means)


def short_number(value: float) -> str:
    """0.693, -12.3, 1.2e-05"""
    return f"{value:.3g}"


def _parts(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """The values cut into at most `count` parts of about the same size."""
    count = min(count, len(values))
    ends = [len(values) * place // count for place in range(count + 1)]
    return [values[begin:end] for begin, end in pairwise(ends)]
