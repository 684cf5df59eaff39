"""Leaderboard: bits per byte of submissions on a hidden text, each trained within the same minutes, with signatures.

A submission is a run directory, or a Python file with `train(text_path, minutes)`, which returns a language model. Each
runs in processes of its own with a time limit (submission.py): one that crashes, hangs, diverges or breaks a law of the
protocol gets a line that says so, and the others are ranked.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.errors import UserError
from chainrule.exercises.submission import BITS, RESULT, seconds_allowed, too_late
from chainrule.files import sha256, write_text
from chainrule.inference.evaluate import Result
from chainrule.inference.statistics import SHORTEST, Comparison, ScoredSplit, compare_scores
from chainrule.progress import say

START_UP = 120.0       # seconds for importing torch and the submission
EVALUATION = 600.0     # seconds for evaluating one submission

Board = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    train: Path                       # the text to train on
    hidden: Path                      # the text to evaluate on
    minutes: float                    # of training
    start_up: float = START_UP
    evaluation: float = EVALUATION

    def __post_init__(self) -> None:
        if not 0 < self.minutes < 1e5:
            raise UserError(f"--minutes {self.minutes:g}: it must be above 0.")
        for option, path in (("--train", self.train), ("--hidden", self.hidden)):
            if not path.is_file():
                raise UserError(f"{option} {path}: there is no such file.")
        if self.hidden.stat().st_size < 2 * SHORTEST:
            raise UserError(f"--hidden {self.hidden} has {self.hidden.stat().st_size} bytes; an interval needs "
                            f"{2 * SHORTEST} or more.")


def judge_all(submissions: Sequence[Path], rules: Rules) -> Board:
    """Trains and evaluates every submission; the table as plain values for JSON, the best first."""
    names = _names(submissions)
    scored, refused, seconds = dict[str, ScoredSplit](), dict[str, str](), dict[str, float | None]()
    for name, path in names.items():
        say(f"{name}: {'a run' if path.is_dir() else f'training for {rules.minutes:g} minutes'}")
        with tempfile.TemporaryDirectory() as folder:
            found = judge(path, rules, Path(folder))
            seconds[name] = found.pop("train_seconds", None)
            if "problem" in found:
                refused[name] = found["problem"]
            else:
                with np.load(Path(folder) / BITS) as bits:
                    scored[name] = ScoredSplit(Result(**found), bits["nats"], bits["ends"])
    comparison = compare_scores(scored) if scored else None
    return {
        "train": {"file": rules.train.name, "sha256": sha256(rules.train)},
        "hidden": {"bytes": rules.hidden.stat().st_size, "sha256": sha256(rules.hidden)},
        "minutes": rules.minutes,
        "ranked": _rows(comparison, scored, seconds) if comparison else [],
        "refused": [{"name": name, "problem": problem} for name, problem in refused.items()],
    }


def _names(submissions: Sequence[Path]) -> dict[str, Path]:
    """Submissions by their names: the last part of the path, or all of it where two are alike."""
    short = [path.stem if path.suffix == ".py" else path.name for path in submissions]
    names = {(name if short.count(name) == 1 else str(path)): path for name, path in zip(short, submissions)}
    if len(names) < len(submissions):
        raise UserError("a submission is given twice.")
    return names


def judge(path: Path, rules: Rules, folder: Path) -> dict[str, Any]:
    """The result of one submission, or its `problem`; `folder` is empty, and holds what its processes write."""
    if not path.exists():
        return {"problem": "there is no such file or run"}
    seconds = {}
    if not path.is_dir():
        words = ["train", str(path.resolve()), str(rules.train.resolve()), str(rules.minutes), str(folder)]
        result = run_stage(words, folder, rules.start_up + seconds_allowed(rules.minutes), too_late(rules.minutes))
        if "problem" in result:
            return result
        seconds = {"train_seconds": result["train_seconds"]}
    words = ["evaluate", str(path.resolve()), str(rules.hidden.resolve()), str(folder)]
    late = f"the evaluation had not ended after {rules.evaluation:g} seconds"
    return {**run_stage(words, folder, rules.evaluation, late), **seconds}


def run_stage(words: Sequence[str], folder: Path, limit: float, late: str) -> dict[str, Any]:
    """What a process of submission.py wrote. It runs in `folder`, and ends with all processes that it started."""
    result, errors = folder / RESULT, folder / "stderr.txt"
    result.unlink(missing_ok=True)
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "chainrule.exercises.submission", *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True, cwd=folder, env=_environment(),
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return {"problem": late}
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code == -signal.SIGALRM:
        return {"problem": late}
    try:
        return dict(json.loads(result.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        how = f"code {code}" if code >= 0 else signal.Signals(-code).name
        return {"problem": f"its process ended with {how}" + (f": {said[-1][:300]}" if said else "")}


def _environment() -> dict[str, str]:
    """That of this process, in which Python finds the same chainrule wherever it is started."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _rows(
    comparison: Comparison, scored: Mapping[str, ScoredSplit], seconds: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    best = next(iter(comparison.bits), None)
    gaps = {difference.worse: difference for difference in comparison.differences() if difference.better == best}
    rows = []
    for rank, name in enumerate(comparison.bits, 1):
        result = scored[name].result
        gap = gaps[name].gap.as_dict("behind") if name in gaps else {"behind": None, "behind_interval": None}
        rows.append({"rank": rank, "name": name, **comparison.row(name), **gap, "parameters": result.parameters,
                     "train_seconds": seconds[name], "signature": result.signature})
    return rows


def as_markdown(board: Board) -> str:
    hidden = board["hidden"]
    lines = [
        f"Bits per byte on a hidden text of {hidden['bytes']:,} bytes (sha256 {hidden['sha256'][:12]}…), with 95 % "
        f"intervals; {board['minutes']:g} minutes of training on {board['train']['file']}.",
        "",
        "| rank | submission | bits per byte | 95 % interval | behind the first | parameters | seconds | signature |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in board["ranked"]:
        low, high = row["bits_per_byte_interval"]
        behind = "–" if row["behind"] is None else f"{row['behind']:.4f} ({_span(row['behind_interval'])})"
        seconds = "–" if row["train_seconds"] is None else f"{row['train_seconds']:.1f}"
        lines.append(_line(row["rank"], row["name"], f"{row['bits_per_byte']:.4f}", f"{low:.4f} to {high:.4f}", behind,
                           f"{row['parameters']:,}", seconds, row["signature"]))
    lines += [_line("–", one["name"], *"–––––", one["problem"]) for one in board["refused"]]
    return "\n".join(lines)


def _line(*cells: Any) -> str:
    """A row of a Markdown table, whatever is in the cells."""
    plain = (" ".join(str(cell).replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(plain)} |"


def _span(interval: Sequence[float]) -> str:
    return " to ".join(f"{bound:.4f}" for bound in interval)


def write_board(board: Board, out: Path) -> None:
    """The table as leaderboard.md and leaderboard.json."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "leaderboard.json", json.dumps(board, indent=1, allow_nan=False) + "\n")
    write_text(out / "leaderboard.md", as_markdown(board) + "\n")
