"""Objective: a model with another loss around it for the time of training, and the numbers that it measures.

    loss = Σ over rows, as of any model;    a number of the log = Σ over rows / rows, since the last record

The model that is tuned is its `body`: it is saved, evaluated and loaded without the objective. Measured numbers are
summed on the device in float64; the trainer adds them up over micro-batches and ranks (training/step.py), keeps them in
checkpoints, and writes their means into the log, the progress bar and TensorBoard (training/log.py).

Shapes: B rows, M measured numbers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from chainrule import run
from chainrule.errors import UserError
from chainrule.model import Batch, Model
from chainrule.recipe import Recipe
from chainrule.tasks import find_task

AllReduce = Callable[[Sequence[Tensor]], None]


class Objective(Model):
    metrics: ClassVar[tuple[str, ...]] = ()       # names of the measured numbers, TRL's where it has one
    noted: ClassVar[tuple[str, ...]] = ()         # those that the progress bar shows
    compiles = False
    sums: Tensor                                  # (M, 2) sum and count of each number, in this step

    def __init__(self, body: Any):
        super().__init__()
        self.body = body
        self.context: int | None = getattr(body, "context", None)
        self.register_buffer("sums", torch.zeros(len(self.metrics), 2, dtype=torch.float64), persistent=False)

    def begin_step(self, parts: Iterable[Batch], all_reduce: AllReduce) -> None:
        """Before the micro-batches of a step, which are `parts`; a loss that needs all of them overrides this."""
        self.sums.zero_()

    @torch.no_grad()
    def measure(self, count: Tensor, /, **sums: Tensor) -> None:
        """Adds numbers that were summed over `count` rows, or over other things of which the mean is wanted."""
        for name, value in sums.items():
            self.sums[self.metrics.index(name)] += torch.stack([value.detach().double(), count.double()])


def means(names: Sequence[str], sums: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of numbers that were measured; those that never were are left out."""
    found = {name: total / count for name, (total, count) in zip(names, sums) if count}
    if {"rewards/chosen", "rewards/rejected"} <= found.keys():    # rated answers: each side has a count of its own
        found.setdefault("rewards/margins", found["rewards/chosen"] - found["rewards/rejected"])
    return found


def shown(measured: Mapping[str, float], names: Sequence[str]) -> str:
    """', accuracies 0.81, margins 0.42': for the progress bar."""
    return "".join(f", {name.rpartition('/')[2]} {measured[name]:.3g}" for name in names if name in measured)


def without_dropout(recipe: Recipe) -> Recipe:
    """The recipe with every `model.*dropout` 0: what is compared with a reference is not to be random."""
    model = recipe.model
    zero = {one.name: 0.0 for one in fields(model) if one.name.endswith("dropout") and one.name != "locked_dropout"}
    return replace(recipe, model=replace(model, **zero))


def require_language_model(recipe: Recipe) -> None:
    """What is tuned begins as a run that continues texts."""
    if recipe.base is None:
        raise UserError(f"--task {recipe.task} tunes a language model that is trained already: --from RUN says which.")
    there = run.recipe_of(Path(recipe.base.path), run.read_about(Path(recipe.base.path)))
    if not find_task(there.task).generates:
        raise UserError(f"--from {recipe.base.path} was trained for --task {there.task}, so it continues no text; "
                        f"--task {recipe.task} tunes a language model.")
