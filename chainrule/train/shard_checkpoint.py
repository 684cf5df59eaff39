"""Checkpoints of a sharded run: torch.distributed.checkpoint, by which any number of ranks reads what any number wrote.

Each is a folder: safetensors files, one of each rank, and facts.json; seal.json, which knows their sizes and sha256, is
the last that is written before the folder takes its name. DCP's usual storage pickles its index; that of safetensors
has it in the headers of the files, so here too nothing is pickled.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.files import sha256, sync, write_text
from chainrule.train.checkpoint import Checkpoint, Checkpoints
from chainrule.train.parallel import Ranks
from chainrule.train.shards import is_shared

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException

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
