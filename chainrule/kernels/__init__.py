"""Kernels of our own, in Triton: for a GPU that rolls a die and reads a token, again and again; and some for learning.

Torch's kernels are made for large tensors. A step of one token has small ones and hundreds of launches, so here several
steps of the way are one kernel each. While a model learns, tensors are large, and steps that are one kernel save the
reading and writing between them: a sum and its norm (norm.py), queries and keys that are normed and turned (heads.py),
a bias and an activation (activation.py), what is learned from a word's logits (surprise.py). Triton comes with torch
for CUDA; it is loaded only once kernels are wanted, and whoever wants them says so, for they take seconds to compile
the first time and moments in each process. Everything that they do is also done without them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from chainrule.device import Switch

STEPS_TO_LOAD = 256         # turns that repay loading the kernels, which takes half a second
STEPS_ONCE_LOADED = 32          # turns that repay using them once they are loaded
MIN_CAPABILITY = (8, 0)     # the compute capability for which they are written
OVERLAP = False     # does a kernel read its weights while the one before it still works? From HOPPER on
HOPPER = (9, 0)
FUSED_DEVICES = {"cuda"}    # devices on which steps are joined

_in_decoding = ContextVar("kernels are wanted", default=False)
_in_training = Switch()
in_training = _in_training.set    # within `in_training(True)` parts of what learns on a GPU are joined
_loaded = False


@contextmanager
def in_decoding(yes: bool) -> Iterator[None]:
    """Within, kernels are used wherever they fit."""
    before = _in_decoding.set(yes)
    try:
        yield
    finally:
        _in_decoding.reset(before)


def use_in_decoding(tensor: Tensor) -> bool:
    """Whether what is made of this tensor now should be made by kernels, if there is one for it."""
    if torch.compiler.is_compiling() or not _in_decoding.get():
        return False
    plain = not torch.is_grad_enabled() and not torch.is_autocast_enabled(tensor.device.type)
    return plain and tensor.is_cuda and tensor.get_device() == torch.cuda.current_device()    # where Triton launches


def use_in_training(tensor: Tensor) -> bool:
    """Whether steps that are made of this tensor now should be one."""
    return _in_training.on and tensor.device.type in FUSED_DEVICES and torch.is_grad_enabled()


def worthwhile(turns: int) -> bool:
    """Whether so many turns repay them here."""
    return turns >= (STEPS_ONCE_LOADED if _loaded else STEPS_TO_LOAD) and torch.cuda.is_available() and available()


@cache
def available() -> bool:
    """Whether they run on this machine: there may be no Triton, an old GPU, or no compiler for what launches them."""
    global _loaded
    if find_spec("triton") is None or torch.version.cuda is None or torch.cuda.get_device_capability() < MIN_CAPABILITY:
        return False
    from chainrule.kernels import probe

    _loaded = probe.succeeds()
    return _loaded


def launch_options() -> dict[str, bool]:
    """How to launch kernels that read what never changes, and only then wait for those before them."""
    yes = OVERLAP and torch.cuda.get_device_capability() >= HOPPER
    return {"OVERLAP": True, "launch_pdl": True} if yes else {"OVERLAP": False}
