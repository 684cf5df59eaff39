"""Where a model lives: `auto` takes a GPU when there is one."""

import os
from typing import TYPE_CHECKING

from chainrule.errors import UserError

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here. Leave --device out, or say --device cpu.")
    return torch.device(name)


def multiplies_bfloat16(device: "torch.device") -> bool:
    """Whether products of bfloat16 matrices are much quicker here than of float32: recent GPUs, and CPUs with AMX."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and has_amx()


def has_amx() -> bool:
    """Whether this CPU has Intel's units for matrix products, and oneDNN is not told to go without."""
    import torch

    return "ONEDNN_MAX_CPU_ISA" not in os.environ and bool(torch.cpu._is_amx_tile_supported())
