"""Snapshots for the tests of exercises: inputs from a seed, and the right results, which chainrule computes.

    python -m chainrule.exercises.snapshots          writes those of the package again

Each lesson has a module here, with a function for each exercise that returns its arrays.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.exercises import EXERCISES, Exercise
from chainrule.files import write_aside

SEED = 1  # of the snapshots in the package


def make_snapshot(exercise: Exercise, seed: int = SEED) -> dict[str, NDArray[Any]]:
    """The arrays of one exercise."""
    module = import_module(f"chainrule.exercises.snapshots.{exercise.lesson}")
    random = np.random.default_rng([seed, list(EXERCISES).index(exercise.name)])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made: dict[str, Any] = getattr(module, exercise.module)(random)
    return {name: _array(value) for name, value in made.items()}


def write_snapshot(exercise: Exercise, folder: Path, seed: int = SEED) -> None:
    with write_aside(folder / exercise.snapshot.name) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **make_snapshot(exercise, seed))  # type: ignore[arg-type]


def write_all() -> None:
    for exercise in EXERCISES.values():
        write_snapshot(exercise, exercise.snapshot.parent)
        print(f"{exercise.lesson}/{exercise.snapshot.name}: {exercise.snapshot.stat().st_size:,} bytes")


def _array(value: Any) -> NDArray[Any]:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
