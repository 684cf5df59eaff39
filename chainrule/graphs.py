"""CUDA graphs are recorded so that one which fails harms nothing else.

A graph that dies while another is recorded spoils it, and Python may collect garbage at any moment: so not then. And a
recording that fails leaves the generator of chance as if it went on; so it is given another state, at the same place.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def undisturbed() -> Iterator[None]:
    """Around a recording on the current device, which raises RuntimeError where it cannot be."""
    device = torch.cuda.current_device()
    chance, collects = torch.cuda.get_rng_state(device), gc.isenabled()
    gc.disable()
    try:
        yield
    except RuntimeError:
        _leave(device, chance)
        raise
    finally:
        if collects:
            gc.enable()


def _leave(device: int, chance: Tensor) -> None:
    torch.cuda.synchronize(device)
    fresh = torch.Generator(f"cuda:{device}").graphsafe_get_state()
    torch.cuda.default_generators[device].graphsafe_set_state(fresh)
    torch.cuda.set_rng_state(chance, device)
