"""How a model came to be, from its log: bits per byte against tokens and seconds.

A descent tells of the batches it learns from, which in the first reading of the text it has not seen before, and of its
looks at the held-out text. EM tells what the whole training text cost before each round.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    tokens: int              # learned from until then, those read again counted again
    seconds: float
    bits_per_byte: float
    held_out: bool           # of held-out text; else of text that is being learned


def history(records: Iterable[Mapping[str, Any]], tokens: int) -> list[Point]:
    """The points of a run's log, in order; `tokens`: targets in its training text."""
    points, learned, clock = list[Point](), 0, _Clock()
    for record in records:
        clock.see(record)
        if record["event"] == "step":
            learned = record["tokens"]
        elif record["event"] == "round":
            learned += tokens
        if record["event"] in ("step", "evaluation", "round") and record.get("bits_per_byte") is not None:
            held_out = record["event"] == "evaluation"
            points.append(Point(learned, clock.seconds, record["bits_per_byte"], held_out))
    return points


def spent(records: Iterable[Mapping[str, Any]], tokens: int) -> tuple[int, float]:
    """Tokens learned from, and seconds that this took."""
    learned, clock = 0, _Clock()
    for record in records:
        clock.see(record)
        if record["event"] in ("step", "round"):
            learned = record.get("tokens", learned + tokens)
    return learned, clock.seconds


class _Clock:
    """Seconds of learning. A log's own clock begins anew with each sitting."""

    def __init__(self) -> None:
        self.seconds, self._last = 0.0, 0.0

    def see(self, record: Mapping[str, Any]) -> None:
        if record["event"] in ("descent", "pairs", "resume"):
            self._last = record["elapsed"]
        elif record["event"] in ("step", "evaluation"):
            self.seconds += max(0.0, record["elapsed"] - self._last)
            self._last = record["elapsed"]
        elif record["event"] == "round":
            self.seconds += record["seconds"]
