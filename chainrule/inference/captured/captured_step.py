"""A decoding step as a CUDA graph that is replayed for a block of steps.

The graph finds its step's inputs by a counter in the GPU's memory, and writes the tokens of all steps of a block there
too. So a step is one launch, and no copies are made between two steps.

Shapes: B rows, T steps of a block.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from chainrule.device import CudaGraph
from chainrule.model import State, tensors

Values: TypeAlias = dict[str, Any]
Capture: TypeAlias = Callable[[Callable[[], Iterable[Tensor]], Iterable[Tensor], Iterable[Tensor]], CudaGraph | None]


@dataclass(frozen=True)
class Block:
    """Where the steps of a block find their inputs, and leave the tokens that they choose."""

    numbers: Tensor    # (T, …) the inputs
    place: Tensor      # (1,) the step; -1 before the first one
    columns: Tensor    # (T, B) the tokens

    def begin(self, inputs: Tensor) -> None:
        """(N, …) inputs of the next N steps, at most T."""
        self.numbers[: len(inputs)] = inputs
        self.place.fill_(-1)

    def inputs(self) -> Tensor:
        """Those of the next step."""
        self.place.add_(1)
        return self.numbers.index_select(0, self.place)[0]

    def write(self, tokens: Tensor) -> None:
        self.columns.index_copy_(0, self.place, tokens[None])

    def written(self, steps: int) -> Tensor:
        return self.columns[:steps].clone()


Step: TypeAlias = Callable[[Values, Block], Values]    # from the values before it, which may be changed in place


class CapturedStep:
    """The graph of a step, and the fixed tensors that it reads and writes."""

    def __init__(self, graph: CudaGraph, values: Values, block: Block):
        self.graph, self.block = graph, block
        self.values = values             # what the strategy and the model keep from step to step
        self.storages: list[Any] = []    # weak references to those of the model, if the step is to be kept

    def replay(self, inputs: Tensor) -> Tensor:
        """(N, …) inputs of as many steps, at most T -> (N, B) tokens."""
        self.block.begin(inputs)
        for _ in range(len(inputs)):
            self.graph.replay(())
        return self.block.written(len(inputs))

    def load(self, values: Values) -> None:
        """Goes on from these values, of the same layout."""
        copy_values(self.values, values)


def run_and_capture(
    step: Step, values: Values, inputs: Tensor, steps: int, capture: Capture
) -> tuple[Tensor, Values, CapturedStep | None]:
    """Runs a step, which is also the warm-up of its kernels, and captures it for blocks of so many steps.

    Returns the tokens of the step that was run, the values after it, and the captured step, or None where it cannot be
    captured. `values` become those of the graph.
    """
    tokens = values["tokens"]
    numbers, columns = inputs.new_zeros((steps, *inputs.shape)), tokens.new_zeros((steps, *tokens.shape))
    block = Block(numbers, torch.zeros(1, dtype=torch.long, device=tokens.device), columns)
    block.begin(inputs[None])
    after = step(values, block)
    tokens = block.written(1)[0]
    if layout(after) != layout(values):                        # such as a state that grows
        return tokens, after, None
    copy_values(values, after)
    graph = capture(lambda: tensors(step(values, block)), [], tensors(values))
    return tokens, values, None if graph is None else CapturedStep(graph, values, block)


def copy_values(static: Values, values: Values) -> None:
    for old, new in zip(tensors(static), tensors(values), strict=True):
        if new.data_ptr() != old.data_ptr():                   # what was written in place is there already
            old.copy_(new)


def layout(state: State) -> Hashable:
    """The names, shapes, dtypes and devices of the tensors of a state, in their order."""
    if isinstance(state, Tensor):
        return state.shape, state.dtype, state.device
    parts = state.items() if isinstance(state, dict) else enumerate(state)
    return tuple((name, layout(part)) for name, part in parts)
