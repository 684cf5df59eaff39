"""What all tests take for granted."""

import contextlib
import os
import signal
import warnings

import torch

# As if no CPU had AMX, so that training has the same precision wherever the tests run.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"

# A process that a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow example on a busy machine is no error. Tests on a GPU run where hypothesis need not be installed.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import settings

    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")

# On a CPU without bfloat16 products torch warns once in each process. Warnings are errors here, so the first test that
# multiplies would fail: the warning is spent before any test.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16))
