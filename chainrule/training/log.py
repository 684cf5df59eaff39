"""The training log: a line on stderr for a person, a record in log.jsonl for a program, TensorBoard, and what it shows.

    Log          the records of a run; they are written with the rest of the run, so that they agree with its model
    Meter        loss, bits per byte, speed and MFU (model FLOPs utilisation) during training; RECORDS in the log
    history      read from a log: bits per byte against tokens and seconds
    findings     what curves of rewards mean that go wrong (preferences/diagnosis.py), and the curves in a terminal
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.flops import peak_of, training_flops
from chainrule.layers.experts import report_experts
from chainrule.model import Model
from chainrule.preferences.curves import draw_curves, read_curves
from chainrule.preferences.diagnosis import EVENT, new_findings
from chainrule.preferences.objective import Objective, means, shown
from chainrule.progress import say
from chainrule.run import BOARD
from chainrule.tasks.lm import LM
from chainrule.tasks.task import Task
from chainrule.text.corpus import Corpus
from chainrule.training.step import StepReport

RECORDS = 200    # of steps, in a whole training
REFRESH = 0.5    # seconds between two notes of the progress bar, for each of which a GPU is waited for


class Log:
    def __init__(self, records: Iterable[Mapping[str, Any]] = ()):
        self.records = list(records)
        self.began = time.monotonic()
        self.observe: Callable[[Mapping[str, Any]], None] | None = None    # called with each new record

    def __call__(self, event: str, line: str = "", **facts: Any) -> None:
        """Prints `line`, and records the facts; a number that is not finite is null in JSON."""
        if line:
            say(line)
        now = {"time": round(time.time(), 3), "event": event, "elapsed": round(time.monotonic() - self.began, 3)}
        self.records.append(now | {name: _json_value(value) for name, value in facts.items()})
        if self.observe is not None:
            self.observe(self.records[-1])

    def last(self, event: str) -> Mapping[str, Any] | None:
        return next((record for record in reversed(self.records) if record["event"] == event), None)


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass
class Logged:
    """What is in the log already; plain numbers, for a checkpoint."""

    records: int = 0
    nats: float = 0.0
    targets: int = 0
    experts: list[list[float]] = field(default_factory=list)    # as in StepReport
    measured: list[list[float]] = field(default_factory=list)


class Meter:
    """Turns the sums of the steps into a note for the progress bar and records for the log."""

    def __init__(
        self, model: Model, corpus: Corpus, log: Log, device: torch.device, dtype: torch.dtype, length: int,
        ranks: int = 1, task: Task = LM,
    ):
        split = corpus.splits["train"]
        self.log, self.logged = log, Logged()
        self.note, self.nats = "", math.nan                # for the bar; nats per target since the last record
        whole = task.running_text                          # every token that is read is predicted
        bits = whole and corpus.tokenizer.lossless
        self.bits = len(split.tokens) / split.bytes / math.log(2) if bits else math.nan
        self.target = task.target
        self.objective = model if isinstance(model, Objective) else None
        self.flops = training_flops(model if self.objective is None else self.objective.body, length)
        peak = peak_of(device) if whole and dtype == torch.bfloat16 else None
        self.peak = None if peak is None else peak * ranks    # of all GPUs, as the speed is
        self.restart(0)

    def restart(self, targets: int) -> None:
        """Speed is measured from here, after so many targets."""
        self.last, self.targets = time.monotonic(), targets

    def note_due(self) -> bool:
        return time.monotonic() - self.last >= REFRESH

    def record_due(self, progress: float) -> bool:
        return progress * RECORDS >= self.logged.records + 1 - 1e-6

    def update(self, report: StepReport, step: int, progress: float, lr: float) -> dict[str, Any] | None:
        """Refreshes the bar's note; where a record is due, logs it and returns its facts."""
        speed = (report.targets - self.targets) / max(time.monotonic() - self.last, 1e-9)
        self.restart(report.targets)
        since = report.targets - self.logged.targets
        self.nats = (report.nats - self.logged.nats) / since if since else self.nats
        mfu = self.flops * speed / self.peak if self.peak else math.nan
        measured = self._measured(report)
        self.note = _note(self.nats, self.target, self.nats * self.bits, mfu)
        if self.objective is not None:
            self.note = f"loss {self.nats:.4f}{shown(measured, self.objective.noted)}"
        if not self.record_due(progress):
            return None
        routed = report_experts(report.experts, self.logged.experts)
        self.logged = Logged(
            math.floor(progress * RECORDS + 1e-6), report.nats, report.targets, report.experts, report.measured
        )
        facts: dict[str, Any] = {
            "step": step,
            "tokens": report.targets,
            "nats_per_token": self.nats,
            "bits_per_byte": self.nats * self.bits,
            "lr": lr,
            "gradient_norm": report.norm,
            "tokens_per_second": round(speed),
            "mfu": mfu,
        }
        if routed is not None:
            facts |= {"load_balancing_loss": routed.balance, "router_z_loss": routed.z, "expert_shares": routed.shares}
        if self.objective is not None:
            facts |= {"loss": self.nats, **measured}
        self.log("step", **facts)
        return facts

    def _measured(self, report: StepReport) -> dict[str, float]:
        """The means of what an objective has measured since the last record."""
        if self.objective is None:
            return {}
        before = self.logged.measured or [[0.0, 0.0]] * len(report.measured)
        since = [[now - then for now, then in zip(*row)] for row in zip(report.measured, before)]
        return means(self.objective.metrics, since)

    def log_experts(self, report: StepReport) -> None:
        """One line about the experts over the whole training, where there are any."""
        routed = report_experts(report.experts, [])
        if routed is not None:
            each = [share for layer in routed.shares for share in layer]
            line = f"load-balancing loss {routed.balance:.4f}, router z-loss {routed.z:.4f}"
            line += f"; an expert of a layer had {min(each):.1%} to {max(each):.1%} of the tokens"
            self.log("experts", f"experts: {line}", load_balancing_loss=routed.balance, router_z_loss=routed.z,
                     expert_shares=routed.shares)


def _note(nats: float, target: str, bits: float, mfu: float) -> str:
    note = f"{nats:.4f} nats per {target}"
    note += "" if math.isnan(bits) else f", {bits:.4f} bits per byte"
    return note + ("" if math.isnan(mfu) else f", {100 * mfu:.0f} % of the GPU's peak")


def log_findings(log: Log, *, ended: bool = False) -> None:
    """Of a log with rewards: each kind of trouble once, as soon as it is seen; at the end, the curves too."""
    if ended:
        for line in draw_curves(read_curves(log.records)):
            say(line)
    for finding in new_findings(log.records, ended=ended):
        log(EVENT, f"note: {finding.sentence}", trouble=finding.trouble, sentence=finding.sentence)


class TensorBoard:
    """The log in TensorBoard too (train.tensorboard=true)."""

    def __init__(self, writer: Any):
        self.writer = writer

    def add(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            if name != "step" and not isinstance(value, list) and math.isfinite(value):
                self.writer.add_scalar(name, value, facts["step"])
        self.writer.flush()


def open_tensorboard(out: Path | None) -> TensorBoard:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard=true needs TensorBoard: pip install tensorboard, or leave it out.") from None
    return TensorBoard(SummaryWriter(str((out or Path()) / BOARD)))


@dataclass(frozen=True)
class Point:
    """One point of a learning curve."""

    tokens: int              # learned from until then, in all epochs
    seconds: float
    bits_per_byte: float
    held_out: bool           # of the validation split; else of the training text


def history(records: Iterable[Mapping[str, Any]], tokens: int) -> list[Point]:
    """The learning curve in a log; `tokens`: targets in the training text.

    In the first epoch a training batch is new to the model. EM logs the training text's loss before each round.
    """
    points, learned, clock = list[Point](), 0, _Clock()
    for record in records:
        clock.read(record)
        if record["event"] == "step":
            learned = record["tokens"]
        elif record["event"] == "round":
            learned += tokens
        if record["event"] in ("step", "evaluation", "round") and record.get("bits_per_byte") is not None:
            held_out = record["event"] == "evaluation"
            points.append(Point(learned, clock.seconds, record["bits_per_byte"], held_out))
    return points


def spent(records: Iterable[Mapping[str, Any]], tokens: int) -> tuple[int, float]:
    """Tokens learned from, and the seconds that this took."""
    learned, clock = 0, _Clock()
    for record in records:
        clock.read(record)
        if record["event"] in ("step", "round"):
            learned = record.get("tokens", learned + tokens)
    return learned, clock.seconds


class _Clock:
    """Seconds of training. The `elapsed` of a log starts at 0 again in each process that goes on with it."""

    def __init__(self) -> None:
        self.seconds, self._last = 0.0, 0.0

    def read(self, record: Mapping[str, Any]) -> None:
        if record["event"] in ("descent", "pairs", "resume"):
            self._last = record["elapsed"]
        elif record["event"] in ("step", "evaluation"):
            self.seconds += max(0.0, record["elapsed"] - self._last)
            self._last = record["elapsed"]
        elif record["event"] == "round":
            self.seconds += record["seconds"]
