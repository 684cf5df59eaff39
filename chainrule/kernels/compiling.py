"""What torch.compile leaves alone, once somebody compiles. Until then the mark costs nothing.

    @as_written    a place where one compiled part ends and the next begins

Marking with torch's own decorator would load its compiler, which takes seconds, wherever a model is used.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from chainrule.kernels.ops import register_fallbacks

Function = TypeVar("Function", bound=Callable[..., Any])

_marked: list["_Mark"] = []


class _Mark:
    def __init__(self, function: Any):
        self.plain = self.now = function
        _marked.append(self)

    def heed(self) -> None:
        if self.now is self.plain:
            self.now = torch.compiler.disable(self.plain)

    def forget(self) -> None:
        self.now = self.plain


def not_compiled(function: Function) -> Function:
    mark = _Mark(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return mark.now(*args, **kwargs)

    return call  # type: ignore[return-value]


def compiled(function: Function) -> Function:
    """`function` through torch.compile, with all marks heeded and our operators known."""
    for mark in _marked:
        mark.heed()
    register_fallbacks()
    return torch.compile(function)  # type: ignore[return-value]


def reset_marks() -> None:
    """No mark is heeded any more, as if nothing had been compiled."""
    for mark in _marked:
        mark.forget()
