"""The processes that train one model together, as torchrun starts them: ranks. Without torchrun there is one, alone.

A step is sums and a count, so ranks meet only to add: totals and gradients behind the last micro-batch, statistics
behind the last text. What a clock or a signal decides is told from host to host by gloo, so that no GPU is waited for.

Every rank has as many rows of a step as any other; where they do not come out even, the last rows count for nothing.
"""

import atexit
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from chainrule.device import choose_device
from chainrule.errors import UserError

BUCKET = 1 << 26                    # numbers that are added up at a time
PATIENCE = timedelta(hours=12)      # for a first rank that makes tokens of a large text; torchrun sees sooner who died
TYPES = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
CPU = torch.device("cpu")
GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")    # how gloo says that a rank has died
END = -1                            # in the place of a type: nothing more is sent


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    device: torch.device = CPU                             # this rank's own
    together: bool = False                                 # torchrun started them, be it only one

    @property
    def first(self) -> bool:
        """The one that speaks and writes."""
        return self.rank == 0

    # Who does what

    def share(self, rows: int) -> NDArray[np.int64]:
        """Places of this rank's rows among so many. All have as many, so that the last may lie beyond the end."""
        each = -(-rows // self.size)
        return np.arange(self.rank * each, (self.rank + 1) * each)

    def seed(self, seed: int) -> int:
        """Of this rank's own chance, dropout's: that of the first is the seed itself."""
        return seed if self.first else int(np.random.SeedSequence((seed, self.rank)).generate_state(1)[0])

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The block is left by the first rank before any other enters it."""
        if not self.first:
            self.agree(())
        yield
        if self.first:
            self.agree(())

    def refuse_unlike(self, what: str, text: str) -> None:
        """All ranks must have the same `text`."""
        digest = list(hashlib.sha256(text.encode()).digest())
        firsts, _ = self.agree(digest)
        _, unlike = self.agree((), digest != firsts)
        if unlike:
            raise UserError(f"ranks differ in their {what}. All need the same command and see the same files.")

    # Adding up

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Each becomes its sum over ranks. Those of one type travel together."""
        if self.together:
            for some in buckets(tensors):
                flat = torch.cat([tensor.flatten() for tensor in some])
                dist.all_reduce(flat)
                parts = flat.split_with_sizes([tensor.numel() for tensor in some])
                torch._foreach_copy_(some, [part.view_as(tensor) for part, tensor in zip(parts, some)])

    def sum(self, number: float) -> float:
        total = torch.tensor(number, dtype=torch.float64)
        self.add([total])
        return float(total)

    # Saying

    def agree(self, values: Sequence[float], asked: bool = False) -> tuple[list[float], bool]:
        """The first rank's values, and whether any rank was asked."""
        if not self.together:
            return list(values), asked
        told = torch.tensor([*values, float(asked)], dtype=torch.float64)
        if not self.first:
            told[:-1] = 0
        dist.all_reduce(told)
        return told[:-1].tolist(), bool(told[-1])

    def begin_alike(self, tensors: Iterable[Tensor]) -> None:
        """Each becomes the first rank's."""
        if self.together:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def gather(self, mine: Tensor, rows: int) -> Tensor:
        """All `rows`, of which each rank has its share."""
        if not self.together:
            return mine
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine.contiguous())
        return torch.cat(every)[:rows]

    def send(self, tensors: Iterable[Tensor]) -> None:
        """To the first rank, by way of the host."""
        for tensor in tensors:
            here = tensor.detach().cpu().contiguous()
            dist.send(_head(TYPES.index(here.dtype), *here.shape), 0)
            if here.numel():
                dist.send(here, 0)
        dist.send(_head(END), 0)

    def receive(self, rank: int) -> Iterator[Tensor]:
        """What that rank sends, one after another."""
        while True:
            head = _head(END)
            dist.recv(head, rank)
            kind, dimensions, *shape = head.tolist()
            if kind == END:
                return
            tensor = torch.empty(shape[:dimensions], dtype=TYPES[kind])
            if tensor.numel():
                dist.recv(tensor, rank)
            yield tensor


ALONE = Ranks()


def _head(kind: int, *shape: int) -> Tensor:
    return torch.tensor([kind, len(shape), *shape, *[0] * (4 - len(shape))])


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, up to BUCKET numbers of them."""
    some: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if some and (tensor.dtype != some[0].dtype or size + tensor.numel() > BUCKET):
            yield some
            some, size = [], 0
        some.append(tensor)
        size += tensor.numel()
    if some:
        yield some


def launched() -> bool:
    """By torchrun?"""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """This process among those that torchrun started. Whatever goes wrong, one of them says it."""
    if not launched():
        yield Ranks(device=choose_device(device))
        return
    store, rank, size = _meeting_place()
    try:
        place = _own_device(device)
        if not dist.is_initialized():
            how = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
            dist.init_process_group(how, store=store, rank=rank, world_size=size, timeout=PATIENCE)
            atexit.register(_leave)
        yield Ranks(rank, size, place, together=True)
    except (UserError, RuntimeError) as error:
        line = _line(error)
        if line and store.add("complaints", 1) > 1:
            raise SystemExit(2) from None
        if line and rank:
            print(f"chainrule: rank {rank}: {line}", file=sys.stderr)
        if line and not isinstance(error, UserError):
            raise UserError(line) from error
        raise


def _line(error: Exception) -> str:
    """What a person should know; nothing where it is a bug."""
    if any(words in str(error) for words in GONE):
        return "another rank is gone, so all stop. torchrun --max-restarts N would start all again from the checkpoint."
    return str(error) if isinstance(error, UserError) else ""


@cache
def _meeting_place() -> tuple[Store, int, int]:
    """Where ranks find each other, which of them this is, and how many there are.

    torchrun keeps the place when it starts them again, and with it the addresses of the dead; so each start has its
    own. Starts are counted by machine, so that only one machine alone can go by their number.
    """
    store, rank, size = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        store = PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    return store, rank, size


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_device(name: str) -> torch.device:
    device = choose_device(name)
    if device.type != "cuda":
        return device
    here, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if here > gpus:
        raise UserError(
            f"torchrun started {here} ranks on a machine with {gpus} GPU{'s' * (gpus > 1)}. "
            f"Each needs its own: use --nproc-per-node {gpus}, or --device cpu."
        )
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def add_statistics(ranks: Ranks, mine: Any) -> Any:
    """Those of all ranks, at the first; None elsewhere. A rank for which there was nothing to count has None."""
    if not ranks.together:
        return mine
    if mine is not None and not hasattr(mine, "tensors"):
        raise UserError("this kind counts in one process: its statistics cannot be sent. Start it without torchrun.")
    if not ranks.first:
        ranks.send([] if mine is None else mine.tensors())
        return None
    for rank in range(1, ranks.size):
        if tensors := list(ranks.receive(rank)):
            mine = mine + mine.of(tensors)
    return mine
