"""Cost against length: measured seconds and bytes of learning a text of T tokens, and of writing one.

A state that is carried on (the cache of a Transformer, the hidden vector of an RNN) writes T tokens by reading each of
them once; without it the whole text is read anew for each, so T becomes T². What is fitted is the power of T
(use/cost.py). A model is measured once, and anew with the option `again`.

Shapes: T tokens.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

import torch

from chainrule.look.subject import Subject
from chainrule.look.view import Options, View
from chainrule.use.cost import WAYS, Cost, measure, slope
from chainrule.use.reading import device_of

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
