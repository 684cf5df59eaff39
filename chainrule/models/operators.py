"""Operators of our own: to the compiler each is one operation. Torch's decorator that does the same would load it."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

OURS: Any = torch.library.Library("chainrule", "DEF")  # type: ignore[no-untyped-call]
_every: list[Any] = []


def operator(schema: str, function: Callable[..., Any], empty: Callable[..., Any]) -> Any:
    """The function as an operator of torch. `empty` makes tensors like those that it answers with."""
    name = schema.partition("(")[0]
    OURS.define(schema)
    OURS.impl(name, _where_tensors_are(function), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{OURS.ns}::{name}", empty, lib=OURS)
    packet = getattr(torch.ops.chainrule, name)
    _every.append(packet.default)
    return packet


def _where_tensors_are(function: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the device that is the current one, which need not be theirs."""

    def call(*given: Any) -> Any:
        device = next(each.device for each in given if isinstance(each, Tensor))
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return function(*given)

    return call


def learns(name: str, backward: Callable[..., Any], setup: Callable[..., None]) -> None:
    """Gradients go through an operator."""
    torch.library.register_autograd(f"{OURS.ns}::{name}", backward, setup_context=setup, lib=OURS)


def introduce() -> None:
    """Torch's compiler is told of all operators, before it meets them.

    One that is new to it is announced in its log with all that leads to it, and before torch 2.13 that is written out
    though nobody reads the log. Where operators follow upon each other, as those of joined.py do, it takes for ever.
    """
    from torch._inductor.lowering import lowerings, make_fallback

    for each in _every:
        if each not in lowerings:
            make_fallback(each)  # type: ignore[no-untyped-call]
