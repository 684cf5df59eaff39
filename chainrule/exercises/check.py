"""Checking exercises: runs the tests of the package on a student's code, through the student's `adapters.py`.

The tests and snapshots are those of the package, not the copies in the student's folder, so that a changed copy changes
no result. With a seed the snapshots are made again from other random numbers, so that no answer can be written down.
"""

import importlib
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from chainrule.errors import UserError
from chainrule.exercises import ADAPTERS, EXERCISES, MATERIAL, SNAPSHOTS, Exercise
from chainrule.exercises.adapting import adapter_names
from chainrule.exercises.snapshots import write_snapshot
from chainrule.testing import ContractError

SECONDS = 60.0    # that one test may take
UNWRITTEN = "is not written yet"


@dataclass(frozen=True)
class Outcome:
    """What one test found."""

    test: str             # its name as a sentence
    problem: str          # why it fails, in one or a few lines; empty: it passes


@dataclass(frozen=True)
class Verdict:
    """What all tests of an exercise found."""

    exercise: str
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        return not any(outcome.problem for outcome in self.outcomes)

    @property
    def begun(self) -> bool:
        """Whether anything of it is written."""
        return not all(UNWRITTEN in outcome.problem for outcome in self.outcomes)

    def __str__(self) -> str:
        if not self.begun:
            return f"{self.exercise}: not begun"
        lines = [f"{self.exercise}: {'passes' if self.passed else 'fails'}"]
        for outcome in self.outcomes:
            lines.append(f"  {'FAILS ' if outcome.problem else 'passes'}  {outcome.test}")
            lines += [f"          {line}" for line in outcome.problem.splitlines()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def as_dict(self) -> dict[str, Any]:
        tests = [{"test": outcome.test, "problem": outcome.problem or None} for outcome in self.outcomes]
        return {"exercise": self.exercise, "passed": self.passed, "tests": tests}


def check(name: str, namespace: Mapping[str, Any], seed: int | None = None) -> Verdict:
    """Checks what a notebook defines: `check("bigram", globals())`."""
    if name not in EXERCISES:
        raise UserError(f"unknown exercise {name}. Known: {', '.join(EXERCISES)}.")
    exercise = EXERCISES[name]
    written = ModuleType(exercise.module)
    vars(written).update({key: value for key, value in namespace.items() if not key.startswith("__")})
    folder = MATERIAL / exercise.lesson
    with _importing_from(folder, {exercise.module: written}), _snapshots([exercise], seed) as snapshots:
        return _judge(exercise, _import_adapters(folder), snapshots, SECONDS)


def check_folder(
    folder: Path, seed: int | None = None, seconds: float = SECONDS, until_failure: bool = False
) -> list[Verdict]:
    """Checks every exercise that the `adapters.py` of a student's folder binds.

    `until_failure`: of each exercise only up to the first test that fails.
    """
    exercises = exercises_in(folder)
    with _importing_from(folder), _snapshots(exercises, seed) as snapshots:
        adapters = _import_adapters(folder)
        return [_judge(exercise, adapters, snapshots, seconds, until_failure) for exercise in exercises]


def exercises_in(folder: Path) -> list[Exercise]:
    """The exercises for which a folder's `adapters.py` has a function."""
    path = folder / ADAPTERS
    if not path.is_file():
        reason = "has no adapters.py" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {reason}: `chainrule exercise NAME {folder}` would make a folder to work in.")
    try:
        bound = adapter_names(path)
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}. Fix it, and check again.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason}. Save it as UTF-8, and check again.") from None
    exercises = [exercise for exercise in EXERCISES.values()
                 if adapter_names(MATERIAL / exercise.lesson / ADAPTERS, exercise.module) & bound]
    if not exercises:
        raise UserError(f"{path} binds no exercise: it has none of the functions of the adapters.py that was copied.")
    return exercises


def _judge(
    exercise: Exercise, adapters: ModuleType, snapshots: Path, seconds: float, until_failure: bool = False
) -> Verdict:
    outcomes: list[Outcome] = []
    for name, test in _tests(exercise, adapters, snapshots).items():
        outcomes.append(Outcome(name.removeprefix("test_").replace("_", " "), _problem(test, seconds)))
        if until_failure and outcomes[-1].problem:
            break
    return Verdict(exercise.name, tuple(outcomes))


def _tests(exercise: Exercise, adapters: ModuleType, snapshots: Path) -> dict[str, Callable[[], None]]:
    """The test functions, bound to these adapters and snapshots."""
    source = exercise.tests.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": exercise.tests.stem, "__file__": str(snapshots / exercise.tests.name)}
    sys.modules["adapters"] = adapters
    exec(compile(source, exercise.tests, "exec"), namespace)
    return {name: value for name, value in namespace.items() if name.startswith("test_") and callable(value)}


def _problem(test: Callable[[], None], seconds: float) -> str:
    """Why a test fails; empty if it passes."""
    torch.manual_seed(1)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stdout(sys.stderr), _limit(seconds):
            warnings.simplefilter("ignore")
            test()
    except NotImplementedError as error:
        return f"{_where(error)} {UNWRITTEN}"
    except ContractError as error:                       # the laws alone; pytest shows the numbers too
        lines = str(error).splitlines()
        return "\n".join([*lines[:1], *(line for line in lines[1:] if line.startswith("check_"))])
    except AssertionError as error:
        return str(error) or f"an assertion failed in {_where(error)}"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__} in {_where(error)}: {error}"
    return ""


def _where(error: BaseException) -> str:
    """The innermost line of the student's own code."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not Path(frame.filename).is_relative_to(MATERIAL.parent)]
    own = [frame for frame in frames if "site-packages" not in frame.filename and "lib/python" not in frame.filename]
    last = (own or frames or every)[-1]
    return f"{last.name} ({Path(last.filename).name}, line {last.lineno})"


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises a TimeoutError in a block that takes longer; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"stopped after {seconds:g} seconds: does a loop end?")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _snapshots(exercises: Sequence[Exercise], seed: int | None) -> Iterator[Path]:
    """A folder whose `snapshots` has what the tests read: the package's, or new ones from a seed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = folder / SNAPSHOTS
        target.mkdir()
        for exercise in exercises:
            if seed is None:
                (target / exercise.snapshot.name).symlink_to(exercise.snapshot)
            else:
                write_snapshot(exercise, target, seed)
        yield folder


@contextmanager
def _importing_from(folder: Path, given: Mapping[str, ModuleType] = {}) -> Iterator[None]:
    """Imports find the modules of a folder first; afterwards those are forgotten, and nothing was written there."""
    names = {path.stem for path in folder.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    path, cached = list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(folder.resolve()))
    sys.dont_write_bytecode = True
    sys.modules.update(given)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, cached
        for name in names | set(given):
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _import_adapters(folder: Path) -> ModuleType:
    try:
        with redirect_stdout(sys.stderr):
            return importlib.import_module("adapters")
    except (Exception, SystemExit) as error:
        raise UserError(f"{folder / ADAPTERS} cannot be imported: {type(error).__name__}: {error}.") from error
