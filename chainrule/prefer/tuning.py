"""Tune now: preference tuning on the clicks so far, in the background, and what its log says while it runs.

The tuned run goes to a new folder beside the file of pairs, pairs-tuned-1, -2, …, which is never overwritten; the pairs
it was trained on are beside it. Prompts without clicks are held out for the comparison of old and new model; where
there are too few, a fifth of the prompts is, by a hash of the prompt, and its pairs are the validation split.
"""

import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.prefer.clicks import FIELDS, as_object
from chainrule.prefer.drawing import digest
from chainrule.prefer.prompt_file import Prompt
from chainrule.viewer.views.preferences import describe_log

METHODS = ("dpo", "ipo", "kto", "orpo", "simpo")
RANK, PAIRS, STEPS, EPOCHS = 8, 16, 50, 3    # of LoRA; in a step; at least; at least
FEWEST, MOST = 4, 50                         # prompts of a comparison
HELD_OUT = 5                                 # one of so many prompts, where all have clicks
BUDGETS = ("train.steps", "train.epochs", "train.minutes")
IDLE, RUNNING, DONE, FAILED, CANCELLED = "idle", "running", "done", "failed", "cancelled"


@dataclass(frozen=True)
class Split:
    """What is trained on, and what is not."""

    train: list[Mapping[str, Any]]
    valid: list[Mapping[str, Any]]
    prompts: list[Prompt]          # to compare old and new model on
    held_out: bool                 # False: they were trained on


def split_pairs(
    pairs: Sequence[Mapping[str, Any]], prompts: Iterable[Prompt], trained: Set[str] = frozenset()
) -> Split:
    """`trained`: prompts, as JSON, that the model may have been trained on before: they cannot be held out now."""
    clicked = {json.dumps(pair["prompt"]): pair["prompt"] for pair in pairs}
    unseen = [prompt for prompt in prompts if json.dumps(prompt) not in clicked.keys() | trained]
    if len(unseen) >= FEWEST:
        return Split(list(pairs), [], unseen[:MOST], True)
    ranked = sorted(clicked.keys() - trained, key=digest)
    out = set(ranked[: len(clicked) // HELD_OUT])
    if not out and not unseen:
        return Split(list(pairs), [], list(clicked.values())[:MOST], False)
    train, valid = ([pair for pair in pairs if (json.dumps(pair["prompt"]) in out) == held] for held in (False, True))
    return Split(train, valid, [*unseen, *(clicked[key] for key in out)][:MOST], True)


def read_file(path: Path) -> list[Mapping[str, Any]]:
    """The pairs in the file now."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    objects = [value for line in lines if (value := as_object(line)) is not None]
    return [pair for pair in objects if set(FIELDS) <= pair.keys()]


@dataclass
class Tuning:
    """At most one tuning at a time."""

    pairs: Path                                        # the file of clicks
    settings: Mapping[str, Any] = field(default_factory=dict)    # of the command line
    device: str = "auto"
    state: str = IDLE
    method: str = METHODS[0]
    out: Path | None = None
    split: Split | None = None
    error: str = ""
    records: list[dict[str, Any]] = field(default_factory=list)
    _trained: set[str] = field(default_factory=set)    # prompts, as JSON, of all tunings so far
    _process: "subprocess.Popen[str] | None" = None
    _reader: threading.Thread | None = None

    def start(self, base: Path, prompts: Iterable[Prompt], method: str, lora: bool, more: Mapping[str, Any]) -> None:
        if self.state == RUNNING:
            raise UserError("a tuning is under way already. Wait for it, or cancel it.")
        pairs = read_file(self.pairs)
        if len(pairs) < 2:
            raise UserError(f"{self.pairs} has {len(pairs)} pairs, and tuning needs 2 or more. Choose some answers "
                            "first; ties are not pairs.")
        split = split_pairs(pairs, prompts, self._trained)
        self._trained |= {json.dumps(pair["prompt"]) for pair in split.train}
        out = next_folder(self.pairs)
        texts = out.with_name(f"{out.name}.train.jsonl")
        valid = [out.with_name(f"{out.name}.valid.jsonl")] if split.valid else []
        write_lines(texts, split.train)
        for path in valid:
            write_lines(path, split.valid)
        settings = {**defaults(split.train, method, lora), **self.settings, **more}
        if any(name in settings for name in BUDGETS[1:]):
            settings.pop("train.steps", None)
        task = {"base": str(base), "settings": settings, "texts": [str(texts)], "valid": list(map(str, valid)),
                "out": str(out), "device": self.device}
        self.state, self.method, self.out, self.split, self.error, self.records = RUNNING, method, out, split, "", []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chainrule.prefer.tune_process", json.dumps(task)], stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._follow, args=(self._process,), daemon=True)
        self._reader.start()

    def _follow(self, process: "subprocess.Popen[str]") -> None:
        """Reads the log of the process until its end."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.records.append(json.loads(line))
        code, last = process.wait(), self.records[-1] if self.records else {}
        if last.get("event") == "end" and last["finished"]:
            self.state = DONE
        elif last.get("event") == "end" or self.state == CANCELLED or code < 0:
            self.state = CANCELLED
        else:
            self.state, self.error = FAILED, str(last.get("line", f"the training process ended with code {code}."))

    def cancel(self) -> None:
        """Asks the process to stop; asked again, ends it."""
        if self._process is not None and self.state in (RUNNING, CANCELLED) and self._process.poll() is None:
            (self._process.kill if self.state == CANCELLED else self._process.terminate)()
            self.state = CANCELLED

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._reader is not None:
            self._reader.join()

    def describe(self) -> dict[str, Any]:
        """For the page: how far it is, its curves, and what is wrong with them."""
        begun = next((record for record in self.records if record["event"] == "begin"), {})
        steps = [record for record in self.records if record["event"] == "step"]
        total = begun.get("recipe", {}).get("train", {}).get("steps")
        facts = {"state": self.state, "method": self.method, "out": str(self.out or ""), "error": self.error,
                 "step": steps[-1]["step"] if steps else 0, "steps": total,
                 "seconds": max((record.get("elapsed", 0) for record in self.records), default=0),
                 "pairs": len(self.split.train) if self.split else 0, "charts": [], "findings": []}
        if self.state != IDLE and steps:
            facts |= describe_log(self.records, ended=self.state == DONE)
        return facts


def defaults(pairs: Sequence[Mapping[str, Any]], method: str, lora: bool) -> dict[str, Any]:
    """Settings that the command line and the page may override."""
    in_step = min(PAIRS, len(pairs))
    settings: dict[str, Any] = {
        "train.method": method, "train.pairs": in_step,
        "train.steps": max(STEPS, math.ceil(EPOCHS * len(pairs) / in_step)),
    }
    return settings | ({"train.lora": RANK} if lora else {})


def next_folder(pairs: Path) -> Path:
    """A name beside the file of pairs that nothing has."""
    number = 1
    while any(pairs.parent.glob(f"{pairs.stem}-tuned-{number}*")):
        number += 1
    return pairs.with_name(f"{pairs.stem}-tuned-{number}")


def write_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(value) + "\n" for value in values))
