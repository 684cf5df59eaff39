"""Checkpoints, in `checkpoints/` of a run: all that is needed to go on after a kill. The last two are kept.

A checkpoint is one safetensors file, whose header holds the facts as JSON; a sharded one (FSDP) is a folder with a file
of each rank and facts.json, written by torch.distributed.checkpoint, so that any number of ranks can read it. Each is
written aside, synced, and renamed; a seal with sizes and sha256 comes last. One that differs from its seal is skipped
for the one before. Pickle is not used.
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
from chainrule.training.fsdp import is_sharded

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException

KEPT = 2
FACTS = "facts"                                 # in the header of a file
FACTS_FILE, SEAL_FILE = "facts.json", "seal.json"    # in the folder of a sharded checkpoint


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors under `name/`, without it."""
        prefix = f"{name}/"
        return {key.removeprefix(prefix): tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}


class Checkpoints:
    """Those of the run that `recipe` makes at `out`. The first rank writes them, and all read."""

    def __init__(self, out: Path, recipe: Recipe, splits: Mapping[str, Any], ranks: Ranks = ALONE):
        self.out, self.recipe, self.splits, self.ranks = out, recipe, splits, ranks
        self.folder = out / CHECKPOINTS
        self.damaged: list[Path] = []                      # skipped, until there is a newer one

    def write(self, step: int, facts: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        if not self.ranks.first:
            return
        self._begin()
        path = self.folder / f"{step:09d}.safetensors"
        with write_aside(path) as aside:
            run.write_tensors(_flat(parts), aside, {FACTS: json.dumps(facts)})
            seal = {"bytes": aside.stat().st_size, "sha256": sha256(aside)}
        write_text(_seal_path(path), json.dumps(seal) + "\n")
        self._remove_old()

    def last(self, weights: Mapping[str, Tensor] = {}) -> Checkpoint | None:
        """The newest intact checkpoint, for a model that has these weights. It prints which ones it skips."""
        with self.ranks.first_rank_first():
            if self.ranks.first:
                run.remove_unfinished(self.folder)
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

    def _remove_old(self) -> None:
        intact = [path for path in self._newest_first() if path not in self.damaged]
        for old in (*self.damaged, *intact[KEPT:]):
            _seal_path(old).unlink(missing_ok=True)
            run.remove(old)

    def _newest_first(self) -> Iterator[Path]:
        yield from sorted(self.folder.glob("[0-9]*.safetensors"), reverse=True)

    def _read(self, path: Path, weights: Mapping[str, Tensor]) -> Checkpoint:
        try:
            seal = json.loads(_seal_path(path).read_text())
            if seal != {"bytes": path.stat().st_size, "sha256": sha256(path)}:
                raise UserError(f"{path} is damaged: its sha256 is not what was written.")
            with safe_open(path, "pt") as file:
                facts = json.loads(file.metadata()[FACTS])
                return Checkpoint(path, facts, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} is damaged or was never finished.") from error


def _seal_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _flat(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{part}/{name}": tensor for part, some in parts.items() for name, tensor in some.items()}


class ShardCheckpoints(Checkpoints):
    """Checkpoints of a sharded run: every rank writes and reads its shards."""

    def write(self, step: int, facts: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        path, aside = self.folder / f"{step:09d}", self.folder / f".{step:09d}.aside"
        if self.ranks.first:
            self._begin()
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            write_text(aside / FACTS_FILE, json.dumps(facts))
        self.ranks.agree(())                               # the folder exists
        try:                                               # in safetensors files: DCP's usual storage pickles its index
            save(_flat(parts), storage_writer=HuggingFaceStorageWriter(str(aside), save_distributed=True))
        except CheckpointException as error:               # raised on all ranks, though only one disk may be full
            raise _cause(error, aside) from error
        self.ranks.agree(())                               # all files exist
        seal = seal_of(aside, self.ranks)
        if self.ranks.first:
            write_text(aside / SEAL_FILE, json.dumps(seal) + "\n")
            shutil.rmtree(path, ignore_errors=True)
            aside.replace(path)
            sync(self.folder)
            self._remove_old()

    def _newest_first(self) -> Iterator[Path]:
        yield from sorted((path for path in self.folder.glob("[0-9]*") if path.is_dir()), reverse=True)

    def _read(self, path: Path, weights: Mapping[str, Tensor]) -> Checkpoint:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        refuse_damaged(path, self.ranks)
        known = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
        tensors = {name: _empty(name, facts, weights) for name, facts in known.items()}
        load(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
        return Checkpoint(path, json.loads((path / FACTS_FILE).read_text()), tensors)


def _cause(error: "CheckpointException", folder: Path) -> BaseException:
    """The operating system's error on some rank, if there is one. DCP's own error is no `Exception`."""
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror, cause.filename or str(folder))
    return error


def seal_of(folder: Path, ranks: Ranks) -> dict[str, list[Any]]:
    """Size and sha256 of each file, all of them synced to disk; ranks share the work."""
    files = sorted(path for path in folder.iterdir() if path.name != SEAL_FILE)
    sums = torch.zeros(len(files), 33, dtype=torch.int64)
    for place in range(ranks.rank, len(files), ranks.size):
        sync(files[place])
        sums[place] = torch.tensor([files[place].stat().st_size, *bytes.fromhex(sha256(files[place]))])
    ranks.all_reduce([sums])
    return {path.name: [size, bytes(digest).hex()] for path, (size, *digest) in zip(files, sums.tolist())}


def refuse_damaged(path: Path, ranks: Ranks) -> None:
    """All ranks find the same, so that all of them skip it."""
    try:
        seal = json.loads((path / SEAL_FILE).read_text())
    except (OSError, ValueError):
        seal = None
    if seal is None or seal != seal_of(path, ranks):
        raise UserError(f"{path} is damaged or was never finished.")


def _empty(name: str, facts: Any, weights: Mapping[str, Tensor]) -> Tensor:
    """The tensor to read into: sharded as the weight that it belongs to, or full."""
    part, _, rest = name.partition("/")
    weight = weights.get(rest.rpartition("/")[0] if part == "optimizer" else rest)
    if weight is not None and is_sharded(weight) and weight.shape == facts.size:
        return torch.empty_like(weight, dtype=facts.properties.dtype)
    return torch.empty(facts.size, dtype=facts.properties.dtype)
