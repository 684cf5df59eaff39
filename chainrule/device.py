"""Where a model lives: `auto` takes a GPU when there is one."""

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
