"""As many threads as make small steps quickest on this machine, by trial.

A step of a small network is a thousand small sums. Threads that share one wait for each other, and where another
program has their core they wait long: then one thread alone can be four times as quick as two.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import gelu

from chainrule.progress import say

TRIALS = 7          # of each number of threads, by turns; their median counts
LAYERS = 10         # in a trial
WORTH = 1.1         # more threads must be so much quicker to be taken


@contextmanager
def quickest_threads() -> Iterator[int]:
    """Inside, torch has as many threads as were quickest, and no more than it was given."""
    given = torch.get_num_threads()
    chosen = choose_threads(given)
    if chosen != given:
        say(f"{chosen} of {given} threads: small steps are quickest so on this machine, as it is now")
    torch.set_num_threads(chosen)
    try:
        yield chosen
    finally:
        torch.set_num_threads(given)


def choose_threads(given: int) -> int:
    """The fewest, among 1, 2, 4, … and those given, than which no more are worth it."""
    counts = sorted({given, *(1 << power for power in range(given.bit_length()) if 1 << power <= given)})
    if len(counts) == 1:
        return given
    times = {count: list[float]() for count in counts}
    for _ in range(TRIALS):
        for count in counts:
            times[count].append(_seconds(count))
    medians = {count: statistics.median(some) for count, some in times.items()}
    best = min(medians.values())
    return next(count for count in counts if medians[count] < WORTH * best)


def _seconds(threads: int) -> float:
    """Of some layers such as small networks have, forward and back."""
    torch.set_num_threads(threads)
    vectors, weights = torch.ones(1024, 64), torch.ones(64, 256, requires_grad=True)
    began = time.perf_counter()
    with torch.enable_grad():
        for _ in range(LAYERS):
            gelu(vectors @ weights).sum().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - began
