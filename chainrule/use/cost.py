"""What a text costs as it grows: seconds and bytes against its length, measured, and the power of T that they follow.

    learn     one step over T tokens, forward and back
    write     T tokens one by one, each read once, the state carried on (a Transformer's is its cache)
    reread    T tokens one by one, the whole text read anew for each

Bytes are the most that tensors held at once beyond what was held before: by a GPU's own count, or on a CPU by following
every tensor that torch makes; memory inside its kernels is not seen there.

Shapes: T tokens, V vocabulary.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from chainrule.errors import UserError
from chainrule.model import Batch, LanguageModel
from chainrule.use.reading import at_rest, device_of, vocabulary

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
    with at_rest(model):
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
    tokens = torch.randint(vocabulary(model), (1, length), generator=torch.Generator().manual_seed(1)).to(device)
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
        nats, _, _ = model.nats(Batch(tokens, tokens))
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
