"""Marks for torch.compile: functions that it must not compile. Until something is compiled a mark costs nothing.

    @not_compiled    a graph break: one compiled graph ends here and the next one begins

Torch's own decorator, torch.compiler.disable, would load the compiler, which takes seconds, wherever a model is used.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from chainrule.kernels.ops import register_fallbacks

Function = TypeVar("Function", bound=Callable[..., Any])

_marks: list["_Mark"] = []


class _Mark:
    def __init__(self, function: Any):
        self.plain = self.now = function
        _marks.append(self)

    def disable(self) -> None:
        if self.now is self.plain:
            self.now = torch.compiler.disable(self.plain)

    def restore(self) -> None:
        self.now = self.plain


def not_compiled(function: Function) -> Function:
    mark = _Mark(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return mark.now(*args, **kwargs)

    return call  # type: ignore[return-value]


def compiled(function: Function) -> Function:
    """`function` through torch.compile, which leaves marked functions alone and knows our operators."""
    for mark in _marks:
        mark.disable()
    register_fallbacks()
    return torch.compile(function)  # type: ignore[return-value]


def reset_marks() -> None:
    """All functions as they were before anything was compiled."""
    for mark in _marks:
        mark.restore()
