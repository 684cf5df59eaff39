"""What is needed to go on after a kill, in `checkpoints/` of a run: the last two, each written aside, synced, renamed.

A checkpoint is one safetensors file, whose header holds the facts as JSON, and beside it a small file with its size and
sha256, which comes last. One that is not as it was written is passed over for the one before. Nothing is pickled.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from chainrule import run
from chainrule.errors import UserError
from chainrule.files import sha256, write_aside, write_text
from chainrule.progress import say
from chainrule.recipe import Recipe
from chainrule.run import CHECKPOINTS
from chainrule.train.parallel import ALONE, Ranks

KEPT = 2
FACTS = "facts"


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors under `name/`, without it."""
        begin = f"{name}/"
        return {key.removeprefix(begin): tensor for key, tensor in self.tensors.items() if key.startswith(begin)}


class Checkpoints:
    """Those of the run that `recipe` makes at `out`. The first rank writes them, and all read."""

    def __init__(self, out: Path, recipe: Recipe, splits: Mapping[str, Any], ranks: Ranks = ALONE):
        self.out, self.recipe, self.splits, self.ranks = out, recipe, splits, ranks
        self.folder = out / CHECKPOINTS
        self.damaged: list[Path] = []                      # passed over, until there is a newer one

    def write(self, step: int, facts: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        if not self.ranks.first:
            return
        self._begin()
        path = self.folder / f"{step:09d}.safetensors"
        tensors = {f"{part}/{name}": tensor for part, some in parts.items() for name, tensor in some.items()}
        with write_aside(path) as aside:
            run.write_tensors(tensors, aside, {FACTS: json.dumps(facts)})
            seal = {"bytes": aside.stat().st_size, "sha256": sha256(aside)}
        write_text(_seal(path), json.dumps(seal) + "\n")
        self._forget_old()

    def last(self, weights: Mapping[str, Tensor] = {}) -> Checkpoint | None:
        """The newest that is whole, for a model that has these weights. It says aloud what it passes over."""
        with self.ranks.first_goes_first():
            if self.ranks.first:
                for aside in self.folder.glob(".*.aside"):    # a killed process was still writing it
                    run.remove(aside)
        self.damaged = []
        for path in self._newest_first():
            try:
                return self._read(path, weights)
            except UserError as error:
                say(f"{error} The one before it is used.")
                self.damaged.append(path)
        return None

    def _begin(self) -> None:
        if run.read_begun(self.out) is None:
            run.begin(self.out, self.recipe, self.splits)

    def _forget_old(self) -> None:
        whole = [path for path in self._newest_first() if path not in self.damaged]
        for old in (*self.damaged, *whole[KEPT:]):
            _seal(old).unlink(missing_ok=True)
            run.remove(old)

    def _newest_first(self) -> Iterator[Path]:
        yield from sorted(self.folder.glob("[0-9]*.safetensors"), reverse=True)

    def _read(self, path: Path, weights: Mapping[str, Tensor]) -> Checkpoint:
        return _read(path)


def _seal(path: Path) -> Path:
    return path.with_suffix(".json")


def _read(path: Path) -> Checkpoint:
    try:
        seal = json.loads(_seal(path).read_text())
        if seal != {"bytes": path.stat().st_size, "sha256": sha256(path)}:
            raise UserError(f"{path} is damaged: its sha256 is not what was written.")
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()[FACTS])
            return Checkpoint(path, facts, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged or was never finished.") from error
