"""Checkpoints of a sharded run: torch.distributed.checkpoint, by which any number of ranks reads what any number wrote.

Each is a folder: safetensors files, one of each rank, and facts.json; seal.json, which knows their sizes and sha256, is
the last that is written before the folder takes its name. DCP's usual storage pickles its index; that of safetensors
has it in the headers of the files, so here too nothing is pickled.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chainrule import run
from chainrule.errors import UserError
from chainrule.files import sha256, sync, write_aside, write_text
from chainrule.progress import say
from chainrule.recipe import Recipe
from chainrule.run import CHECKPOINTS
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.fsdp import is_shared

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException


# What is needed to go on after a kill, in `checkpoints/` of a run: the last two, each written aside, synced, renamed.
#
# A checkpoint is one safetensors file, whose header holds the facts as JSON, and beside it a small file with its
# size and
# sha256, which comes last. One that is not as it was written is passed over for the one before. Nothing is pickled.

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


FACTS, SEAL = "facts.json", "seal.json"


class ShardCheckpoints(Checkpoints):
    """As `Checkpoints`; every rank writes and reads its share."""

    def write(self, step: int, facts: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        path, aside = self.folder / f"{step:09d}", self.folder / f".{step:09d}.aside"
        if self.ranks.first:
            self._begin()
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            write_text(aside / FACTS, json.dumps(facts))
        self.ranks.agree(())                               # the folder is there
        tensors = {f"{part}/{name}": tensor for part, some in parts.items() for name, tensor in some.items()}
        try:
            save(tensors, storage_writer=HuggingFaceStorageWriter(str(aside), save_distributed=True))
        except CheckpointException as error:               # on all ranks, though one disk alone may be full
            raise _cause(error, aside) from error
        self.ranks.agree(())                               # all files are
        seal = seal_of(aside, self.ranks)
        if self.ranks.first:
            write_text(aside / SEAL, json.dumps(seal) + "\n")
            shutil.rmtree(path, ignore_errors=True)
            aside.replace(path)
            sync(self.folder)
            self._forget_old()

    def _newest_first(self) -> Iterator[Path]:
        yield from sorted((path for path in self.folder.glob("[0-9]*") if path.is_dir()), reverse=True)

    def _read(self, path: Path, weights: Mapping[str, Tensor]) -> Checkpoint:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        refuse_damaged(path, self.ranks)
        known = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
        tensors = {name: _room(name, facts, weights) for name, facts in known.items()}
        load(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
        return Checkpoint(path, json.loads((path / FACTS).read_text()), tensors)


def _cause(error: "CheckpointException", folder: Path) -> BaseException:
    """What the machine said on some rank, if it did. DCP's own is no `Exception`, so no one would catch it."""
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror, cause.filename or str(folder))
    return error


def seal_of(folder: Path, ranks: Ranks) -> dict[str, list[Any]]:
    """Size and sha256 of each file, all on disk by then; ranks share the work."""
    files = sorted(path for path in folder.iterdir() if path.name != SEAL)
    sums = torch.zeros(len(files), 33, dtype=torch.int64)
    for place in range(ranks.rank, len(files), ranks.size):
        sync(files[place])
        sums[place] = torch.tensor([files[place].stat().st_size, *bytes.fromhex(sha256(files[place]))])
    ranks.add([sums])
    return {path.name: [size, bytes(digest).hex()] for path, (size, *digest) in zip(files, sums.tolist())}


def refuse_damaged(path: Path, ranks: Ranks) -> None:
    """All ranks find the same, so that they pass it over together."""
    try:
        seal = json.loads((path / SEAL).read_text())
    except (OSError, ValueError):
        seal = None
    if seal is None or seal != seal_of(path, ranks):
        raise UserError(f"{path} is damaged or was never finished.")


def _room(name: str, facts: Any, weights: Mapping[str, Tensor]) -> Tensor:
    """Where a tensor is read to: cut as the weight is that it belongs to, or whole."""
    part, _, rest = name.partition("/")
    weight = weights.get(rest.rpartition("/")[0] if part == "optimizer" else rest)
    if weight is not None and is_shared(weight) and weight.shape == facts.size:
        return torch.empty_like(weight, dtype=facts.properties.dtype)
    return torch.empty(facts.size, dtype=facts.properties.dtype)
