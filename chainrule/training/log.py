"""How a model came to be, from its log: bits per byte against tokens and seconds.

A descent tells of the batches it learns from, which in the first reading of the text it has not seen before, and of its
looks at the held-out text. EM tells what the whole training text cost before each round.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.layers.parameters import group_parameters
from chainrule.progress import say
from chainrule.run import BOARD
from chainrule.tasks.corpus_of_examples import ExampleCorpus
from chainrule.tasks.denoise import CorruptedCorpus
from chainrule.text.corpus import Corpus
from chainrule.training.data import target_of
from chainrule.training.step import Reading

# Facts about a run as it is made: a line for a person on stderr, and a record for log.jsonl.
#
# Records are kept here and written with the rest of the run, so the log never tells of a model that is not there.

class Log:
    def __init__(self, records: Iterable[Mapping[str, Any]] = ()):
        self.records = list(records)
        self.began = time.monotonic()

    def __call__(self, event: str, line: str = "", **facts: Any) -> None:
        """Say `line`, and record the facts; a number that is not finite is null in JSON."""
        if line:
            say(line)
        now = {"time": round(time.time(), 3), "event": event, "elapsed": round(time.monotonic() - self.began, 3)}
        self.records.append(now | {name: _plain(value) for name, value in facts.items()})

    def last(self, event: str) -> Mapping[str, Any] | None:
        return next((record for record in reversed(self.records) if record["event"] == event), None)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# What training says of itself: loss, bits per byte, speed, share of the GPU's peak, time left.
#
# A person sees it in the bar, about twice a second; log.jsonl has RECORDS of it. Only then is a GPU waited for.

RECORDS = 200
PULSE = 0.5    # seconds

PEAKS = {
    "B200": 2250e12, "H200": 989e12, "H100": 989e12, "GH200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12,
    "4090": 165e12, "3090": 71e12,
}
"""Operations a second in bfloat16 products of dense matrices, by the makers' data sheets."""


@dataclass
class Told:
    """What the log knows already; plain numbers, for a checkpoint."""

    records: int = 0
    nats: float = 0.0
    targets: int = 0


class Meter:
    def __init__(
        self, model: nn.Module, corpus: Corpus, log: Log, device: torch.device, dtype: torch.dtype, ranks: int = 1
    ):
        split = corpus.splits["train"]
        self.log, self.told = log, Told()
        self.note, self.nats = "", math.nan                # for the bar; nats per token since the last record
        whole = type(corpus) not in (ExampleCorpus, CorruptedCorpus)    # each token that is read is foretold
        bits = whole and corpus.tokenizer.lossless
        self.bits = len(split.tokens) / split.bytes / math.log(2) if bits else math.nan
        self.target = target_of(corpus)
        self.work = operations(model)
        peak = peak_of(device) if whole and dtype == torch.bfloat16 else None
        self.peak = None if peak is None else peak * ranks    # of all GPUs, as the speed is
        self.start(0)

    def start(self, targets: int) -> None:
        """Speed is measured from here, where so many targets are behind."""
        self.last, self.targets = time.monotonic(), targets

    def pulse(self) -> bool:
        """Is it time to renew the note?"""
        return time.monotonic() - self.last >= PULSE

    def record_due(self, share: float) -> bool:
        return share * RECORDS >= self.told.records + 1 - 1e-6

    def tell(self, reading: Reading, step: int, share: float, lr: float) -> dict[str, Any] | None:
        """Renews the bar's note, and records the facts and returns them where that is due."""
        speed = (reading.targets - self.targets) / max(time.monotonic() - self.last, 1e-9)
        self.start(reading.targets)
        since = reading.targets - self.told.targets
        self.nats = (reading.nats - self.told.nats) / since if since else self.nats
        used = self.work * speed / self.peak if self.peak else math.nan
        self.note = _note(self.nats, self.target, self.nats * self.bits, used)
        if not self.record_due(share):
            return None
        self.told = Told(math.floor(share * RECORDS + 1e-6), reading.nats, reading.targets)
        facts: dict[str, Any] = {
            "step": step,
            "tokens": reading.targets,
            "nats_per_token": self.nats,
            "bits_per_byte": self.nats * self.bits,
            "lr": lr,
            "gradient_norm": reading.norm,
            "tokens_per_second": round(speed),
            "share_of_peak": used,
        }
        self.log("step", **facts)
        return facts


def _note(nats: float, target: str, bits: float, used: float) -> str:
    note = f"{nats:.4f} nats per {target}"
    note += "" if math.isnan(bits) else f", {bits:.4f} bits per byte"
    return note + ("" if math.isnan(used) else f", {100 * used:.0f} % of the GPU's peak")


def operations(model: Any) -> float:
    """Additions and multiplications for a target, forward and backward: 6 for each weight that it is multiplied by."""
    hidden, output, _ = group_parameters(model)
    used: list[Tensor] = [weight for _, weight in hidden + output] + ([] if output else [model.embeddings])
    return 6.0 * sum(weight.numel() for weight in used)


def peak_of(device: torch.device) -> float | None:
    """Of the GPU, where it is known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for known, peak in PEAKS.items() if known in name), None)


# The log for TensorBoard too, where it is installed (`train.tensorboard=true`).

class Board:
    def __init__(self, writer: Any):
        self.writer = writer

    def add(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            if name != "step" and math.isfinite(value):
                self.writer.add_scalar(name, value, facts["step"])
        self.writer.flush()


def open_board(out: Path | None) -> Board:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard=true needs TensorBoard: pip install tensorboard, or leave it out.") from None
    return Board(SummaryWriter(str((out or Path()) / BOARD)))


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
