"""Processes in which the parts of frontier.py run at the same time."""

import gc
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from frontier_experiment import Experiment


def free_memory() -> None:
    """Of this process on the GPU, for the others."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Here(Executor):
    """Calls at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **keywords))
        return future


def workers(parallel: int) -> Executor:
    if parallel == 1:
        return Here()
    return ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn"), use_tensor_cores)


def alone(here: Experiment, function: Callable[..., None], *more: Any) -> None:
    """In a process of its own, whose memory on the GPU is free afterwards."""
    with workers(min(2, here.parallel)) as pool:
        pool.submit(function, *more).result()


def use_tensor_cores() -> None:
    """For what is not trained, but drawn and scored: float32 products in TF32, whose error a point does not show."""
    import torch

    torch.set_float32_matmul_precision("high")
