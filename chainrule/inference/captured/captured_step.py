"""A decoding step as a CUDA graph that is replayed for a block of steps.

The graph finds its step's inputs by a counter in the GPU's memory, and writes the tokens of all steps of a block there
too. So a step is one launch, and no copies are made between two steps.

Shapes: B rows, T steps of a block.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from chainrule.device import CudaGraph
from chainrule.model import tensors

Values: TypeAlias = dict[str, Any]
Capture: TypeAlias = Callable[[Callable[[], Iterable[Tensor]], Iterable[Tensor], Iterable[Tensor]], CudaGraph | None]


class CapturedStep:
    """The graph of a step, and the fixed tensors that it reads and writes."""

    def __init__(self, graph: CudaGraph, values: Values, numbers: Tensor, place: Tensor, columns: Tensor):
        self.graph = graph
        self.values = values        # what the strategy and the model keep from step to step
        self.numbers = numbers      # (T, …) the inputs of a block of steps
        self.place = place          # (1,) the next step of the block
        self.columns = columns      # (T, B) the tokens that the steps chose
        self.storages: list[Any] = []    # weak references to those of the model, if the step is to be kept

    def replay(self, inputs: Tensor) -> Tensor:
        """(N, …) inputs of as many steps, at most T -> (N, B) tokens."""
        count = len(inputs)
        self.numbers[:count] = inputs
        self.place.zero_()
        for _ in range(count):
            self.graph.replay(())
        return self.columns[:count].clone()

    def load(self, values: Values) -> None:
        """Goes on from these values, of the same layout."""
        self.graph.set_state(tensors(values))


def capture(
    step: Callable[[Tensor], Values], values: Values, inputs: Tensor, block: int, by: Capture
) -> CapturedStep | None:
    """`step`: inputs of one step -> the values after it, from `values`, which become those of the graph; `by` captures
    a function, and returns None where it cannot be captured."""
    tokens = values["tokens"]
    numbers = inputs.new_zeros((block, *inputs.shape))
    place = torch.zeros(1, dtype=torch.long, device=tokens.device)
    columns = tokens.new_zeros((block, *tokens.shape))

    def run() -> list[Tensor]:
        after = step(numbers.index_select(0, place)[0])
        columns.index_copy_(0, place, after["tokens"][None])
        place.add_(1)
        return list(tensors(after))

    graph = by(run, [], tensors(values))
    return None if graph is None else CapturedStep(graph, values, numbers, place, columns)
