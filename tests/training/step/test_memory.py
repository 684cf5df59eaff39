"""On a CPU the memory that one step frees serves the next one."""

import ctypes
import os
import subprocess
import sys

import pytest

STEPS = """
import ctypes, resource, sys

if sys.argv[1] == "kept":
    from chainrule.device import keep_freed_memory
    keep_freed_memory()
libc, size = ctypes.CDLL(None), ctypes.c_size_t(1_600_000)
libc.malloc.restype, libc.free.argtypes, libc.free.restype = ctypes.c_void_p, [ctypes.c_void_p], None
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def steps():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [libc.malloc(size) for _ in range(6)]
        for block in blocks:
            libc.memset(block, 1, size)
        for block in reversed(blocks):
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

steps()
print(steps())
"""

# Whether glibc gives back what is freed depends by default on what was freed before: here it always does.
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
