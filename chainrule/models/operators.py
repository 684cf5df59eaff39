"""Operators of our own: to the compiler each is one operation. Torch's decorator that does the same would load it."""

from collections.abc import Callable
from typing import Any

import torch

OURS: Any = torch.library.Library("chainrule", "DEF")  # type: ignore[no-untyped-call]


def operator(schema: str, function: Callable[..., Any], empty: Callable[..., Any]) -> Any:
    """The function as an operator of torch. `empty` makes tensors like those that it answers with."""
    name = schema.partition("(")[0]
    OURS.define(schema)
    OURS.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{OURS.ns}::{name}", empty, lib=OURS)
    return getattr(torch.ops.chainrule, name)


def learns(name: str, backward: Callable[..., Any], setup: Callable[..., None]) -> None:
    """Gradients go through an operator."""
    torch.library.register_autograd(f"{OURS.ns}::{name}", backward, setup_context=setup, lib=OURS)
