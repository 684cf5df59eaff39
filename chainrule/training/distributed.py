"""Data parallel training (DDP): the ranks that torchrun starts, and what they send each other; else a single rank.

A step is a sum and a count, so ranks meet only to add (all-reduce): totals and gradients after the last micro-batch,
statistics after the last batch of counting. What a clock or a signal decides is sent from host to host by gloo, so that
no GPU is waited for. Every rank has as many rows of a step as any other; where they do not divide evenly, the last rows
are padding. Sharding of weights (FSDP) is in fsdp.py.
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

BUCKET = 1 << 26                    # numbers that are added in one all-reduce
TIMEOUT = timedelta(hours=12)       # the first rank may tokenize a large text; torchrun notices sooner if a rank died
TYPES = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
CPU = torch.device("cpu")
GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")    # gloo's words for a rank that died
END = -1                            # in the place of a type: the end of what is sent


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    device: torch.device = CPU                             # this rank's own
    distributed: bool = False                              # torchrun started them, even if there is only one

    @property
    def first(self) -> bool:
        """The rank that prints and writes."""
        return self.rank == 0

    # Division of the work

    def own_rows(self, rows: int) -> NDArray[np.int64]:
        """This rank's rows among so many. All ranks have equally many, so the last may lie beyond the end."""
        each = -(-rows // self.size)
        return np.arange(self.rank * each, (self.rank + 1) * each)

    def seed(self, seed: int) -> int:
        """The seed of this rank's own random generator, for dropout; the first rank has the seed itself."""
        return seed if self.first else int(np.random.SeedSequence((seed, self.rank)).generate_state(1)[0])

    @contextmanager
    def first_rank_first(self) -> Iterator[None]:
        """The first rank leaves the block before any other enters it."""
        if not self.first:
            self.agree(())
        yield
        if self.first:
            self.agree(())

    def refuse_different(self, what: str, text: str) -> None:
        """All ranks must have the same `text`."""
        digest = list(hashlib.sha256(text.encode()).digest())
        firsts, _ = self.agree(digest)
        _, different = self.agree((), digest != firsts)
        if different:
            raise UserError(f"ranks differ in their {what}. All need the same command and see the same files.")

    # Sums over ranks

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its sum over ranks. Tensors of one type are sent in buckets."""
        if self.distributed:
            for some in make_buckets(tensors):
                flat = torch.cat([tensor.flatten() for tensor in some])
                dist.all_reduce(flat)
                parts = flat.split_with_sizes([tensor.numel() for tensor in some])
                torch._foreach_copy_(some, [part.view_as(tensor) for part, tensor in zip(parts, some)])

    def sum(self, number: float) -> float:
        total = torch.tensor(number, dtype=torch.float64)
        self.all_reduce([total])
        return float(total)

    # Messages

    def agree(self, values: Sequence[float], requested: bool = False) -> tuple[list[float], bool]:
        """The first rank's values, and whether `requested` is true on any rank. Also a barrier."""
        if not self.distributed:
            return list(values), requested
        sent = torch.tensor([*values, float(requested)], dtype=torch.float64)
        if not self.first:
            sent[:-1] = 0
        dist.all_reduce(sent)
        return sent[:-1].tolist(), bool(sent[-1])

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor becomes the first rank's."""
        if self.distributed:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def gather(self, own: Tensor, rows: int) -> Tensor:
        """All `rows`, of which each rank has its own."""
        if not self.distributed:
            return own
        every = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(every, own.contiguous())
        return torch.cat(every)[:rows]

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Sends tensors to the first rank, through host memory."""
        for tensor in tensors:
            here = tensor.detach().cpu().contiguous()
            dist.send(_head(TYPES.index(here.dtype), *here.shape), 0)
            if here.numel():
                dist.send(here, 0)
        dist.send(_head(END), 0)

    def receive(self, rank: int) -> Iterator[Tensor]:
        """The tensors that a rank sends, in order."""
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


def make_buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Lists of neighbours of one type, with up to BUCKET numbers in each."""
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


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def join_ranks(device: str) -> Iterator[Ranks]:
    """Joins the process group that torchrun started. An error is reported by one rank only."""
    if not under_torchrun():
        yield Ranks(device=choose_device(device))
        return
    store, rank, size = _rendezvous()
    try:
        place = _own_device(device)
        if not dist.is_initialized():
            how = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
            dist.init_process_group(how, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
            atexit.register(_leave)
        yield Ranks(rank, size, place, distributed=True)
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
    """The message for the user; empty if the error is a bug."""
    if any(words in str(error) for words in GONE):
        return "another rank died, so all stop. torchrun --max-restarts N would restart all from the checkpoint."
    return str(error) if isinstance(error, UserError) else ""


@cache
def _rendezvous() -> tuple[Store, int, int]:
    """The store by which ranks find each other, the number of this rank, and how many there are.

    torchrun keeps the store when it restarts the ranks, and with it the addresses of those that died; so each restart
    has a prefix of its own. Restarts are counted by machine, so this works on one machine only.
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
    """The sum over all ranks, on the first rank; None elsewhere. A rank without any batch has None."""
    if not ranks.distributed:
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
