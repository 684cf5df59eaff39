"""Cost against length: counted FLOPs and bytes, and measured seconds and bytes, for a text of T tokens.

    learn     one training step on T tokens, forward and backward
    write     T tokens one by one, each read once, with the state (a Transformer's KV cache) carried on
    reread    T tokens one by one, the whole text read again for each: T becomes T², and T² becomes T³

What is counted (viewer/cost_counts.py) is there at once. All models are measured at the same lengths, each up to its
context; a live page asks for one piece of work after the other and shows how far it is. Measured bytes are the peak of
what tensors hold beyond what was held before: by the GPU's own count, or on a CPU by following every tensor that torch
allocates (memory inside its kernels is not seen). A model is measured once, and again with the option `again`.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from chainrule.errors import UserError
from chainrule.inference.forward import device_of, eval_mode, vocabulary_size
from chainrule.model import Batch, LanguageModel
from chainrule.viewer.cost_counts import COUNTED, count_costs, is_parallel, polynomial
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import LIVE, Options, View

__all__ = ["COUNTED", "VIEW", "WAYS", "Cost", "count_costs", "fitted_power", "is_parallel", "measure_costs",
           "polynomial"]

LENGTHS = (4, 16, 64, 256)    # tokens of the texts that are measured, the same for all models
SECONDS = 2.0                 # of measuring a model one way, after which no longer text is tried
FEWEST = 2                    # lengths that are always tried
REPEATS = 3
ENOUGH = 0.3                  # seconds: a text that takes longer is not repeated
PIECE = 0.5                   # seconds of measuring before a live page hears how far it is
REREADS = 32                  # times at most that a text is read again; the rest is extrapolated


@dataclass(frozen=True)
class Cost:
    tokens: int       # T
    seconds: float    # the fastest of several repeats
    bytes: int


# The view


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    if "again" in options:
        for subject in subjects:
            _measured.pop(subject.model, None)
    if LIVE not in options:
        measure(subjects)
    elif "measure" in options:
        measure(subjects, PIECE)
    waiting = len(waiting_pieces(subjects))
    every = sum(len(costs) for subject in subjects for costs in measured(subject).costs.values()) + waiting
    return {
        "models": [model_costs(subject) for subject in subjects], "lengths": LENGTHS,
        "waiting": waiting, "pieces": every, "device": _device(subjects[0]),
    }


def model_costs(subject: Subject) -> dict[str, Any]:
    model = subject.model
    return {
        "name": subject.name, "kind": subject.run.recipe.kind, "context": model.context,
        "counted": count_costs(model) if model.learns_by == "gradient" else {},
        "parallel": is_parallel(model),
        "ways": {way: [asdict(cost) for cost in some] for way, some in measured(subject).costs.items()},
    }


# Measuring, piece by piece


@dataclass(frozen=True)
class Measured:
    """What is known of one model, by the way, in order of length."""

    costs: dict[str, list[Cost]]
    seconds: dict[str, float]    # that measuring took


_measured: WeakKeyDictionary[Any, Measured] = WeakKeyDictionary()


def measured(subject: Subject) -> Measured:
    names = [way for way in WAYS if way != "learn" or subject.model.learns_by == "gradient"]
    return _measured.setdefault(subject.model, Measured({way: [] for way in names}, dict.fromkeys(names, 0.0)))


def measure(subjects: Sequence[Subject], seconds: float = math.inf) -> None:
    """Until nothing is waiting, or for so long; at least one piece."""
    began = time.perf_counter()
    while pieces := waiting_pieces(subjects):
        subject, way, length = pieces[0]
        known, model = measured(subject), subject.model
        before = time.perf_counter()
        if not known.costs[way]:
            measure_costs(model, way, [1], repeats=1)    # warm-up
        known.costs[way].extend(measure_costs(model, way, [length], repeats=REPEATS))
        after = time.perf_counter()
        known.seconds[way] += after - before
        if after - began > seconds:
            return


def waiting_pieces(subjects: Sequence[Subject]) -> list[tuple[Subject, str, int]]:
    """A model, a way and a length each, the shortest texts first: so all models soon have some dots."""
    pieces = []
    for place, length in enumerate(LENGTHS):
        for subject in subjects:
            known = measured(subject)
            for way, costs in known.costs.items():
                slow = place >= FEWEST and known.seconds[way] > SECONDS
                if len(costs) <= place and not slow and length <= (subject.model.context or length):
                    pieces.append((subject, way, length))
    return pieces


def _device(subject: Subject) -> str:
    device = device_of(subject.model)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"a CPU with {threads} thread{'s' if threads > 1 else ''}"


def measure_costs(model: LanguageModel, way: str, lengths: Sequence[int], *, repeats: int = REPEATS) -> list[Cost]:
    """The cost of texts of these lengths, by one of WAYS."""
    if model.context is not None and max(lengths) > model.context:
        raise UserError(f"a text of {max(lengths)} tokens is longer than the model's context of {model.context}.")
    with eval_mode(model):
        return [_cost(model, WAYS[way], length, repeats) for length in lengths]


def fitted_power(costs: Sequence[Cost], what: str) -> float:
    """The power of T that `seconds` or `bytes` follow over the longer half of the lengths: a slope on log axes."""
    longer = sorted(costs, key=lambda cost: cost.tokens)[-max(2, math.ceil(len(costs) / 2)) :]
    if len({cost.tokens for cost in longer}) < 2:
        raise UserError("a slope needs two lengths or more.")
    lengths, amounts = ([max(getattr(cost, name), 1e-9) for cost in longer] for name in ("tokens", what))
    return float(np.polyfit(np.log(lengths), np.log(amounts), 1)[0])


def _cost(model: LanguageModel, way: Callable[..., float], length: int, repeats: int) -> Cost:
    device = device_of(model)
    tokens = torch.randint(vocabulary_size(model), (1, length), generator=torch.Generator().manual_seed(1)).to(device)
    with peak_memory(device) as peak:                   # which is also the warm-up
        way(model, tokens)
    seconds, spent = math.inf, 0.0
    for _ in range(repeats):
        if spent > ENOUGH:
            break
        _wait(device)
        began = time.perf_counter()
        share = way(model, tokens)
        _wait(device)
        spent = time.perf_counter() - began
        seconds = min(seconds, spent / share)
    return Cost(length, seconds, peak())


def _learn(model: LanguageModel, tokens: Tensor) -> float:
    with torch.enable_grad():
        loss, _, _ = model.loss(Batch(tokens, tokens))
        loss.backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return 1.0


@torch.inference_mode()
def _write(model: LanguageModel, tokens: Tensor) -> float:
    state = model.start(1)
    for place in range(tokens.shape[1]):
        _, state = model.step(tokens[:, place : place + 1], state)
    return 1.0


@torch.inference_mode()
def _reread(model: LanguageModel, tokens: Tensor) -> float:
    """Reads only some prefixes, evenly spaced, and returns their share of the tokens of all prefixes."""
    length = tokens.shape[1]
    apart = -(-length // REREADS)
    read = range(apart, length + 1, apart)
    for end in read:
        model.step(tokens[:, :end], model.start(1))
    return sum(read) / (length * (length + 1) / 2)


WAYS: Mapping[str, Callable[[LanguageModel, Tensor], float]] = {"learn": _learn, "write": _write, "reread": _reread}
"""Each does its work and returns what share of it was done."""


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], int]]:
    """`with peak_memory(device) as peak: …`, then `peak()`: bytes held at once, without those held before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
    else:
        with TensorMemory() as memory:
            yield lambda: memory.peak


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of all tensors that were allocated inside and still exist, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        given, new = _storages((args, kwargs)), _storages(made)
        for address in new.keys() - given.keys():             # a view shares its storage
            size = new[address].nbytes()
            self.now += size
            weakref.finalize(new[address], self._release, size)
        self.peak = max(self.peak, self.now)
        return made

    def _release(self, size: int) -> None:
        self.now -= size


def _storages(parts: Any) -> dict[int, torch.UntypedStorage]:
    """The storages of all tensors among the arguments or results of an operation, by their address."""
    found, waiting = dict[int, torch.UntypedStorage](), [parts]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            storage = part.untyped_storage()
            found[storage._cdata] = storage
        elif isinstance(part, list | tuple):
            waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend(part.values())
    return found


VIEW = View(
    "cost", "Cost against length",
    "What a text of T tokens costs: FLOPs, which are counted and exact; time and memory, measured on this machine. "
    "Both axes are logarithmic, so a power of T is a straight line and its exponent is the slope.",
    lambda subject: subject.continues_text, _make, several=True, reads=False,
    needs="a language model of plain text",
)
