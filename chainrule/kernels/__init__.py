"""Fused kernels in Triton, and the switches that say where they are used. Everything also works without them.

    with kernels.in_training(True):    layers ask `use_in_training(x)`, and fuse a sum and its norm, QK norm and RoPE,
                                       bias and activation: large tensors are not read and written in between
    with kernels.in_decoding(True):    models and samplers ask `use_in_decoding(x)`: a step of one token is a few
                                       launches instead of hundreds

Triton comes with torch for CUDA. It is loaded when a kernel is first called, since kernels take seconds to compile the
first time and half a second to load in each process. Kernels for the CPU, in C++, are in cpu/.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from chainrule.device import Switch

STEPS_TO_LOAD = 256           # decoding steps for which it pays to load the kernels
STEPS_ONCE_LOADED = 32        # decoding steps for which it pays to use them once they are loaded
MIN_CAPABILITY = (8, 0)       # the compute capability for which they are written
HOPPER = (9, 0)
OVERLAP = False               # whether a kernel may load its weights before the one before it ends; from HOPPER on
FUSED_DEVICES = {"cuda", "cpu"}    # devices whose training steps can be fused

_in_training = Switch()       # a plain attribute: torch.compile cannot read a context variable
_in_decoding = ContextVar("kernels are used in decoding", default=False)    # each thread of a server has its own
_loaded = False

in_training = _in_training.set


@contextmanager
def in_decoding(on: bool) -> Iterator[None]:
    token = _in_decoding.set(on)
    try:
        yield
    finally:
        _in_decoding.reset(token)


def use_in_training(x: Tensor) -> bool:
    """Whether a layer should compute with x by a fused kernel that has a backward pass."""
    return _in_training.on and x.device.type in FUSED_DEVICES and torch.is_grad_enabled()


def use_in_decoding(x: Tensor) -> bool:
    """Whether a step from x should be computed by kernels without a backward pass, if there are some for it."""
    if torch.compiler.is_compiling() or not _in_decoding.get():
        return False
    plain = not torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type)
    return plain and x.is_cuda and x.get_device() == torch.cuda.current_device()    # where Triton launches


def worthwhile(steps: int) -> bool:
    """Whether so many decoding steps repay the loading of kernels on this machine."""
    return steps >= (STEPS_ONCE_LOADED if _loaded else STEPS_TO_LOAD) and torch.cuda.is_available() and available()


@cache
def available() -> bool:
    """Whether kernels run on this machine: it has Triton, a GPU that is new enough, and a C compiler for launchers."""
    global _loaded
    if find_spec("triton") is None or torch.version.cuda is None or torch.cuda.get_device_capability() < MIN_CAPABILITY:
        return False
    from chainrule.kernels import probe

    _loaded = probe.succeeds()
    return _loaded


def launch_options() -> dict[str, bool]:
    """For kernels that load weights, which never change, and only then wait for the kernels before them."""
    yes = OVERLAP and torch.cuda.get_device_capability() >= HOPPER
    return {"OVERLAP": True, "launch_pdl": True} if yes else {"OVERLAP": False}
