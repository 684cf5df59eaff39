"""In what precision matrices are multiplied. Weights, gradients and sums stay in float32."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from chainrule.device import multiplies_bfloat16


@dataclass(frozen=True)
class Precision:
    device: str
    dtype: torch.dtype
    why: str                  # for people

    def __call__(self) -> AbstractContextManager[Any]:
        """`with precision():` around what a model computes."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self.device, self.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} ({self.why})"


def choose_precision(name: str, device: torch.device) -> Precision:
    if name != "auto":
        return Precision(device.type, getattr(torch, name), "as asked")
    if not multiplies_bfloat16(device):
        where = "GPU" if device.type == "cuda" else device.type.upper()
        return Precision(device.type, torch.float32, f"this {where} gains little from bfloat16")
    return Precision(device.type, torch.bfloat16, "weights and sums stay in float32")
