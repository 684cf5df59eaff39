"""Cost against length: counted FLOPs, and measured seconds and bytes, for a text of T tokens.

    learn     one training step on T tokens, forward and backward
    write     T tokens one by one, each read once, with the state (a Transformer's KV cache) carried on
    reread    T tokens one by one, the whole text read again for each: T becomes T², and T² becomes T³

FLOPs are exact at any length, and so is what they grow by: a recurrent network is linear in T and takes its T steps one
after the other; a Transformer is quadratic, and learns from all T tokens at once. Bytes are the peak of what tensors
hold beyond what was held before: by the GPU's own count, or on a CPU by following every tensor that torch allocates
(memory inside its kernels is not seen). A model is measured once, and again with the option `again`.
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
from chainrule.flops import kv_cache_bytes, row_flops
from chainrule.inference.forward import device_of, eval_mode, vocabulary_size
from chainrule.layers.recurrent import RecurrentStack
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Batch, LanguageModel, tensors
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, View

LONGEST = 256     # tokens, or a model's context
HALVINGS = 4      # shorter lengths: the longest halved so often
SECONDS = 1.0     # of measuring, after which no longer text is tried
FEWEST = 2        # lengths that a slope needs
REPEATS = 3
REREADS = 32      # times at most that a text is read again; the rest is extrapolated

_measured: WeakKeyDictionary[Any, dict[str, list["Cost"]]] = WeakKeyDictionary()


COUNTED = [1 << power for power in range(4, 15)]    # lengths for which FLOPs are counted, beyond any context too


@dataclass(frozen=True)
class Cost:
    tokens: int       # T
    seconds: float    # the fastest of several repeats
    bytes: int


# The view


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    return {
        "models": [model_costs(subject, again="again" in options) for subject in subjects],
        "device": _device(subjects[0]),
    }


def model_costs(subject: Subject, again: bool) -> dict[str, Any]:
    if again or subject.model not in _measured:
        _measured[subject.model] = {way: list(costs(subject.model, way)) for way in ways(subject)}
    found = _measured[subject.model]
    return {
        "name": subject.name, "kind": subject.run.recipe.kind, "context": subject.model.context,
        "counted": count_costs(subject.model) if subject.model.learns_by == "gradient" else {},
        "parallel": is_parallel(subject.model),
        "ways": {way: [asdict(cost) for cost in some] for way, some in found.items()},
        "slopes": {way: {what: _power(some, what) for what in ("seconds", "bytes")} for way, some in found.items()},
    }


# Counting


def count_costs(model: LanguageModel) -> dict[str, dict[str, Any]]:
    """For each way: FLOPs at the lengths COUNTED, as a polynomial of T where they are one, and the power at the end."""
    forward = dict(zip(COUNTED, row_flops(model, COUNTED), strict=True))
    every = np.cumsum(row_flops(model, range(1, COUNTED[-1] + 1)))          # all prefixes read again
    flops = {"learn": [3 * forward[length] for length in COUNTED], "write": list(forward.values()),
             "reread": [float(every[length - 1]) for length in COUNTED]}
    return {
        way: {
            "tokens": COUNTED, "flops": counts, "state": [state_bytes(model, length) for length in COUNTED],
            "terms": polynomial(COUNTED, counts, 3 if way == "reread" else 2),
            "power": math.log2(counts[-1] / counts[-2]),
        }
        for way, counts in flops.items()
    }


def is_parallel(model: LanguageModel) -> bool:
    """Whether all tokens of a text are learned from at once: no state waits for the one before it."""
    return not any(isinstance(part, RecurrentStack) for part in model.modules())


def polynomial(lengths: Sequence[int], counts: Sequence[float], degree: int) -> list[float] | None:
    """The coefficients of T, T², … that give the counts exactly; None: they are no such polynomial."""
    rows = np.array([[float(length) ** power for power in range(1, degree + 1)] for length in lengths])
    found = np.linalg.solve(rows[:degree], np.array(counts[:degree]))
    found[np.abs(found) < 1e-9 * np.abs(found).max()] = 0.0
    return found.tolist() if np.allclose(rows @ found, counts, rtol=1e-6) else None


def state_bytes(model: LanguageModel, length: int) -> int:
    """Bytes of the state after `length` tokens, in float32: the KV cache, or what a recurrent network carries on."""
    settings = getattr(model, "settings", None)
    if isinstance(settings, TransformerSettings):
        return 2 * kv_cache_bytes(settings, length)                 # which is of bf16
    return sum(part.numel() * part.element_size() for part in tensors(model.start(1)))


# Measuring


def ways(subject: Subject) -> list[str]:
    return [way for way in WAYS if way != "learn" or subject.model.learns_by == "gradient"]


def costs(model: LanguageModel, way: str) -> Iterator[Cost]:
    """Of longer and longer texts, until that takes too long."""
    measure_costs(model, way, [1], repeats=1)    # warm-up
    began = time.perf_counter()
    for number, length in enumerate(lengths(model.context)):
        if number >= FEWEST and time.perf_counter() - began > SECONDS:
            return
        yield from measure_costs(model, way, [length], repeats=REPEATS)


def lengths(context: int | None) -> list[int]:
    """Each twice the one before, up to the model's context."""
    longest = min(context or LONGEST, LONGEST)
    return sorted({max(1, longest >> halvings) for halvings in range(HALVINGS + 1)})


def _power(some: Sequence[Cost], what: str) -> float | None:
    return fitted_power(some, what) if len(some) >= FEWEST else None


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
    seconds = math.inf
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        share = way(model, tokens)
        _wait(device)
        seconds = min(seconds, (time.perf_counter() - began) / share)
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
    lambda subject: subject.continues_text, _make, several=True, reads=False, plots=True,
    needs="a language model of plain text",
)
