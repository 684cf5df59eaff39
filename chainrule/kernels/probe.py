"""A probe: the smallest possible kernel, to find out whether kernels can be compiled and launched here."""

import warnings

import torch
import triton
import triton.language as tl


@triton.jit
def _one(out):
    tl.store(out, 1)


def succeeds() -> bool:
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    try:
        with warnings.catch_warnings(action="ignore"):    # Triton may warn once about how it compiles
            _one[(1,)](out)
    except Exception:    # compiler, linker and driver each raise their own
        return False
    return bool(out)
