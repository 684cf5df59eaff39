"""What torch.compile makes of some functions, once somebody compiles. Until then the marks cost nothing.

    @as_written    the compiler leaves it alone, as a place where one compiled part ends and the next begins
    @by_itself     it is compiled by itself, for it is called from such a place

Marking with torch's own decorators would load its compiler, which takes seconds, wherever a model is used.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

_marked: list["_Mark"] = []


class _Mark:
    def __init__(self, function: Any, change: Callable[[Any], Any]):
        self.now, self.change = function, change
        self.changed = False
        _marked.append(self)

    def apply(self) -> None:
        if not self.changed:
            self.now, self.changed = self.change(self.now), True


def as_written(function: Function) -> Function:
    return _marking(function, lambda plain: torch.compiler.disable(plain))  # type: ignore[no-untyped-call]


def by_itself(function: Function) -> Function:
    return _marking(function, lambda plain: torch.compile(plain))


def _marking(function: Function, change: Callable[[Any], Any]) -> Function:
    mark = _Mark(function, change)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return mark.now(*args, **kwargs)

    return call  # type: ignore[return-value]


def compiled(function: Function) -> Function:
    """`function` through torch.compile, with all marks heeded."""
    for mark in _marked:
        mark.apply()
    return torch.compile(function)  # type: ignore[return-value]
