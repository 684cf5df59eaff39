"""On a CPU the memory that one step frees serves the next one."""

import ctypes
import os
import subprocess
import sys

import pytest

STEPS = """
import resource, sys, torch
from chainrule.device import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def steps():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [torch.ones(400_000) for _ in range(6)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

steps()
print(steps())
"""


# Every block is given back when it is freed. By default that depends on what lies behind it in memory.
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def faults(how):
    """Page faults of 20 steps that take and free 9.6 MB."""
    command = [sys.executable, "-c", STEPS, how]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | GIVEN_BACK)
    return int(answer.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_freed_memory_is_kept_for_the_next_step():
    assert faults("kept") < 20 < 120 <= faults("given back")    # at least one for each block


def test_another_c_library_is_no_error(monkeypatch):
    from chainrule import device

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    device.keep_freed_memory()
