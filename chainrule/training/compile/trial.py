"""A trial of a training step: how long its forward and backward pass take, eagerly or as a CUDA graph.

A trial has no effect on training: gradients are dropped, no weight changes, and the random numbers that dropout used
are drawn again afterwards. It costs a few passes over one batch.
"""

import time
from collections.abc import Callable

import torch

from chainrule.device import CudaGraph
from chainrule.model import Batch, State
from chainrule.training.step import Step

REPEATS = 3     # passes that are timed, after one that is not; the fastest counts


def pass_seconds(step: Step, batch: Batch, state: State, as_graph: bool) -> float:
    """Of one pass over the batch with `step.loss`. RuntimeError: it cannot be captured as a graph."""

    def run() -> None:
        step.accumulate(batch, state)

    on_gpu = step.totals.is_cuda
    with torch.random.fork_rng([step.totals.device] if on_gpu else []):
        try:
            run()
            return _fastest(_replayed(run) if as_graph else run, torch.cuda.synchronize if on_gpu else lambda: None)
        finally:
            step.optimizers.zero_grad()


def _replayed(run: Callable[[], None]) -> Callable[[], None]:
    def captured() -> tuple[()]:
        run()
        return ()

    graph = CudaGraph(captured, ())
    return lambda: graph.replay(())


def _fastest(run: Callable[[], None], wait: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        wait()
        began = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - began)
    return min(times)
