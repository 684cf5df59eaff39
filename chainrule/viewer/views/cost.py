"""Cost against length: measured seconds and bytes of learning a text of T tokens, and of writing one.

A state that is carried on (the cache of a Transformer, the hidden vector of an RNN) writes T tokens by reading each of
them once; without it the whole text is read anew for each, so T becomes T². What is fitted is the power of T
(viewer/views/cost.py). A model is measured once, and anew with the option `again`.

Shapes: T tokens.
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
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View

# What a text costs as it grows: seconds and bytes against its length, measured, and the power of T that they follow.
#
#     learn     one step over T tokens, forward and back
#     write     T tokens one by one, each read once, the state carried on (a Transformer's is its cache)
#     reread    T tokens one by one, the whole text read anew for each
#
# Bytes are the most that tensors held at once beyond what was held before: by a GPU's own count, or on a CPU by
# following
# every tensor that torch makes; memory inside its kernels is not seen there.
#
# Shapes: T tokens, V vocabulary.

READINGS = 32    # times at most that a text is read anew; the rest is in proportion


@dataclass(frozen=True)
class Cost:
    tokens: int       # T
    seconds: float    # the quickest of several turns
    bytes: int


def measure(model: LanguageModel, way: str, lengths: Sequence[int], *, turns: int = 3) -> list[Cost]:
    """The cost of texts of these lengths, by one of WAYS."""
    if model.context is not None and max(lengths) > model.context:
        raise UserError(f"a text of {max(lengths)} tokens is longer than the model's context of {model.context}.")
    with eval_mode(model):
        return [_cost(model, WAYS[way], length, turns) for length in lengths]


def slope(costs: Sequence[Cost], what: str) -> float:
    """The power of T that `seconds` or `bytes` follow over the larger half of the lengths."""
    larger = sorted(costs, key=lambda cost: cost.tokens)[-max(2, math.ceil(len(costs) / 2)) :]
    if len({cost.tokens for cost in larger}) < 2:
        raise UserError("a slope needs two lengths or more.")
    lengths, amounts = ([max(getattr(cost, name), 1e-9) for cost in larger] for name in ("tokens", what))
    return float(np.polyfit(np.log(lengths), np.log(amounts), 1)[0])


def _cost(model: LanguageModel, way: Callable[..., float], length: int, turns: int) -> Cost:
    device = device_of(model)
    tokens = torch.randint(vocabulary_size(model), (1, length), generator=torch.Generator().manual_seed(1)).to(device)
    with held(device) as most:                          # it warms up besides
        way(model, tokens)
    seconds = math.inf
    for _ in range(turns):
        _wait(device)
        began = time.perf_counter()
        share = way(model, tokens)
        _wait(device)
        seconds = min(seconds, (time.perf_counter() - began) / share)
    return Cost(length, seconds, most())


def _learn(model: LanguageModel, tokens: Tensor) -> float:
    with torch.enable_grad():
        nats, _, _ = model.loss(Batch(tokens, tokens))
        nats.backward()  # type: ignore[no-untyped-call]
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
    """Only some of the readings, evenly apart: the share of the tokens read by all that those read."""
    length = tokens.shape[1]
    apart = -(-length // READINGS)
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
def held(device: torch.device) -> Iterator[Callable[[], int]]:
    """`with held(device) as most: …`, then `most()`: bytes that tensors held at once, those from before not counted."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
    else:
        with Followed() as followed:
            yield lambda: followed.most


class Followed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of all tensors made inside that are still there, and the most there were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        given, new = _storages((args, kwargs)), _storages(made)
        for place in new.keys() - given.keys():             # a view has the storage of what it is a view of
            size = new[place].nbytes()
            self.now += size
            weakref.finalize(new[place], self._let_go, size)
        self.most = max(self.most, self.now)
        return made

    def _let_go(self, size: int) -> None:
        self.now -= size


def _storages(parts: Any) -> dict[int, torch.UntypedStorage]:
    """Those of all tensors in what an operation takes or gives, by their address."""
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


LONGEST = 256     # tokens, or a model's context
HALVINGS = 4      # of that
SECONDS = 1.0     # of measuring, after which a way is not tried on any longer text
FEWEST = 2        # lengths, which a slope needs
TURNS = 3

_measured: WeakKeyDictionary[Any, dict[str, list[Cost]]] = WeakKeyDictionary()


def fits(subject: Subject) -> bool:
    return subject.speaks


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    return {
        "models": [one_model(subject, again="again" in options) for subject in subjects],
        "device": _device(subjects[0]),
    }


def one_model(subject: Subject, again: bool) -> dict[str, Any]:
    if again or subject.model not in _measured:
        _measured[subject.model] = {way: list(costs(subject.model, way)) for way in ways(subject)}
    found = _measured[subject.model]
    return {
        "name": subject.name, "kind": subject.run.recipe.kind, "context": subject.model.context,
        "ways": {way: [asdict(cost) for cost in some] for way, some in found.items()},
        "slopes": {way: {what: _slope(some, what) for what in ("seconds", "bytes")} for way, some in found.items()},
    }


def ways(subject: Subject) -> list[str]:
    return [way for way in WAYS if way != "learn" or subject.model.learns_by == "gradient"]


def costs(model: Any, way: str) -> Iterator[Cost]:
    """Of longer and longer texts, until that takes too long."""
    measure(model, way, [1], turns=1)    # what is done but once
    began = time.perf_counter()
    for number, length in enumerate(lengths(model.context)):
        if number >= FEWEST and time.perf_counter() - began > SECONDS:
            return
        yield from measure(model, way, [length], turns=TURNS)


def lengths(context: int | None) -> list[int]:
    """Each twice the one before, up to what a model can hold."""
    longest = min(context or LONGEST, LONGEST)
    return sorted({max(1, longest >> halvings) for halvings in range(HALVINGS + 1)})


def _slope(some: Sequence[Cost], what: str) -> float | None:
    return slope(some, what) if len(some) >= FEWEST else None


def _device(subject: Subject) -> str:
    device = device_of(subject.model)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"a CPU with {threads} thread{'s' if threads > 1 else ''}"


VIEW = View(
    "cost", "Cost against length",
    "Time and memory as a text grows, measured on this machine. On these axes a power of T is a straight line, and the "
    "power is its slope.",
    fits, make, several=True, reads=False, plots=True,
)
