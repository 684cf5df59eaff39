"""Dropout on a CPU against torch's: numbers alone, forward and backward, and training steps of a small GPT, in turns.

    python benchmarks/speed/dropout.py [--turns 20] [--p 0.1]

One thread, one process. A JSON line: milliseconds of CPU time, the median of the turns (of a step: of `small_steps.py`,
2 layers of this width), and how much faster ours is.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import torch
from small_steps import Steps, models
from torch import Tensor
from torch.nn import functional

from chainrule import kernels
from chainrule.device import keep_freed_memory
from chainrule.kernels.cpu import dropout

SHAPES, WIDTHS = [(16, 64), (1024, 64), (1024, 96), (4096, 512)], (64, 96)
WAYS: dict[str, Callable[[Tensor, float], Tensor]] = {"torch": functional.dropout, "ours": dropout.dropout}


def in_turns(take: Callable[[str], float], turns: int) -> dict[str, float]:
    """`take`: the seconds of one turn, torch's or ours."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(turns):
        for way, some in seconds.items():
            some.append(take(way))
    cost = {way: statistics.median(some) for way, some in seconds.items()}
    return {way: round(1000 * cost[way], 3) for way in WAYS} | {"speed": round(cost["torch"] / cost["ours"], 2)}


def numbers(shape: tuple[int, int], p: float) -> Callable[[str], float]:
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)

    def take(way: str) -> float:
        began = time.process_time()
        with kernels.in_training(True):
            torch.autograd.grad(WAYS[way](x, p), x, grad)
        return time.process_time() - began

    return take


def step(width: int) -> Callable[[str], float]:
    _, kind, settings = models(width, None, "auto")["dropped"]
    steps = Steps(kind, settings)

    def take(way: str) -> float:
        dropout.dropout = WAYS[way]
        return steps.take(time.process_time)

    return take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--p", type=float, default=0.1)
    args = parser.parse_args()
    keep_freed_memory()
    answer = {f"{rows} x {width}": in_turns(numbers((rows, width), args.p), 3 * args.turns) for rows, width in SHAPES}
    answer |= {f"GPT step, {width} wide": in_turns(step(width), args.turns) for width in WIDTHS}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
