"""In which precision matrices are multiplied, and what blocks pass upward."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_low_stream = False    # of this process: torch.compile looks at a plain global, but at no context variable


def working_dtype(like: Tensor) -> torch.dtype:
    """That of autocast, where it is on; else that of the tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


@contextmanager
def low_stream() -> Iterator[None]:
    """Within, what blocks pass upward is as precise as the products that are added to it, and no more."""
    global _low_stream
    before, _low_stream = _low_stream, True
    try:
        yield
    finally:
        _low_stream = before


def streamed(x: Tensor) -> Tensor:
    """As it is passed upward."""
    return x.to(working_dtype(x)) if _low_stream else x
