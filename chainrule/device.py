"""As many threads as make small steps quickest on this machine, by trial.

A step of a small network is a thousand small sums. Threads that share one wait for each other, and where another
program has their core they wait long: then one thread alone can be four times as quick as two.
"""

import gc
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu

from chainrule.errors import UserError
from chainrule.progress import say

# What is on or off in a whole process: a plain attribute, since torch.compile looks at no context variable.

class Switch:
    on = False

    @contextmanager
    def turned(self, on: bool) -> Iterator[None]:
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before


# CUDA graphs are recorded so that one which fails harms nothing else.
#
# A graph that dies while another is recorded spoils it, and Python may collect garbage at any moment: so not then.
# And a
# recording that fails leaves the generator of chance as if it went on; so it is given another state, at the same place.

@contextmanager
def undisturbed() -> Iterator[None]:
    """Around a recording on the current device, which raises RuntimeError where it cannot be."""
    device = torch.cuda.current_device()
    chance, collects = torch.cuda.get_rng_state(device), gc.isenabled()
    gc.disable()
    try:
        yield
    except RuntimeError:
        _leave(device, chance)
        raise
    finally:
        if collects:
            gc.enable()


def _leave(device: int, chance: Tensor) -> None:
    torch.cuda.synchronize(device)
    fresh = torch.Generator(f"cuda:{device}").graphsafe_get_state()
    torch.cuda.default_generators[device].graphsafe_set_state(fresh)
    torch.cuda.set_rng_state(chance, device)


# Where a model lives: `auto` takes a GPU when there is one.



def choose_device(name: str) -> "torch.device":
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here. Leave --device out, or say --device cpu.")
    return torch.device(name)


def multiplies_bfloat16(device: "torch.device") -> bool:
    """Whether products of bfloat16 matrices are much quicker here than of float32: recent GPUs, and CPUs with AMX."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and has_amx()


def has_amx() -> bool:
    """Whether this CPU has Intel's units for matrix products, and oneDNN is not told to go without."""
    return "ONEDNN_MAX_CPU_ISA" not in os.environ and bool(torch.cpu._is_amx_tile_supported())


# In which precision matrices are multiplied, and what blocks pass upward.

_low_stream = Switch()
low_stream = _low_stream.turned    # within, what blocks pass upward is as precise as what is added to it


def working_dtype(like: Tensor) -> torch.dtype:
    """That of autocast, where it is on; else that of the tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


def streamed(x: Tensor) -> Tensor:
    """As it is passed upward."""
    return x.to(working_dtype(x)) if _low_stream.on else x


# In what precision matrices are multiplied. Weights, gradients and sums stay in float32.
#
# One sum may be asked to be less precise: that of all that the blocks of a Transformer add up for a token. It is
# read and
# written more often than anything else, so that a GPU is quicker by it; what it costs in nats is in docs/training.md.

STREAM = "bfloat16-stream"


@dataclass(frozen=True)
class Precision:
    device: str
    dtype: torch.dtype
    why: str                  # for people
    stream: bool = False      # is what blocks pass upward in this precision too?

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """`with precision():` around what a model computes."""
        if self.dtype == torch.float32:
            yield
            return
        with torch.autocast(self.device, self.dtype), low_stream(self.stream):
            yield

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} ({self.why})"


def choose_precision(name: str, device: torch.device) -> Precision:
    if name == STREAM:
        return Precision(device.type, torch.bfloat16, "as asked, and so is what blocks pass upward", stream=True)
    if name != "auto":
        return Precision(device.type, getattr(torch, name), "as asked")
    if not multiplies_bfloat16(device):
        where = "GPU" if device.type == "cuda" else device.type.upper()
        return Precision(device.type, torch.float32, f"this {where} gains little from bfloat16")
    return Precision(device.type, torch.bfloat16, "weights and sums stay in float32")


TRIALS = 7          # of each number of threads, by turns; their median counts
LAYERS = 10         # in a trial
WORTH = 1.1         # more threads must be so much quicker to be taken


@contextmanager
def quickest_threads() -> Iterator[int]:
    """Inside, torch has as many threads as were quickest, and no more than it was given."""
    given = torch.get_num_threads()
    chosen = choose_threads(given)
    if chosen != given:
        say(f"{chosen} of {given} threads: small steps are quickest so on this machine, as it is now")
    torch.set_num_threads(chosen)
    try:
        yield chosen
    finally:
        torch.set_num_threads(given)


def choose_threads(given: int) -> int:
    """The fewest, among 1, 2, 4, … and those given, than which no more are worth it."""
    counts = sorted({given, *(1 << power for power in range(given.bit_length()) if 1 << power <= given)})
    if len(counts) == 1:
        return given
    times = {count: list[float]() for count in counts}
    for _ in range(TRIALS):
        for count in counts:
            times[count].append(_seconds(count))
    medians = {count: statistics.median(some) for count, some in times.items()}
    best = min(medians.values())
    return next(count for count in counts if medians[count] < WORTH * best)


def _seconds(threads: int) -> float:
    """Of some layers such as small networks have, forward and back."""
    torch.set_num_threads(threads)
    vectors, weights = torch.ones(1024, 64), torch.ones(64, 256, requires_grad=True)
    began = time.perf_counter()
    with torch.enable_grad():
        for _ in range(LAYERS):
            gelu(vectors @ weights).sum().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - began
