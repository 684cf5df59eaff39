"""In what precision matrices are multiplied. Weights, gradients and sums stay in float32.

One sum may be asked to be less precise: that of all that the blocks of a Transformer add up for a token. It is read and
written more often than anything else, so that a GPU is quicker by it; what it costs in nats is in docs/training.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from chainrule.device import multiplies_bfloat16
from chainrule.models.precision import low_stream

STREAM = "bfloat16-stream"


@dataclass(frozen=True)
class Precision:
    device: str
    dtype: torch.dtype
    why: str                  # for people
    stream: bool = False      # is what blocks pass upward in this precision too?

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """`with precision():` around what a model computes."""
        if self.dtype == torch.float32:
            yield
            return
        with torch.autocast(self.device, self.dtype), low_stream(self.stream):
            yield

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} ({self.why})"


def choose_precision(name: str, device: torch.device) -> Precision:
    if name == STREAM:
        return Precision(device.type, torch.bfloat16, "as asked, and so is what blocks pass upward", stream=True)
    if name != "auto":
        return Precision(device.type, getattr(torch, name), "as asked")
    if not multiplies_bfloat16(device):
        where = "GPU" if device.type == "cuda" else device.type.upper()
        return Precision(device.type, torch.float32, f"this {where} gains little from bfloat16")
    return Precision(device.type, torch.bfloat16, "weights and sums stay in float32")
