"""A training step as a CUDA graph: captured once for a shape of batch, then repeated with a single launch."""

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from chainrule.device import CudaGraph
from chainrule.model import Batch, State, map_state, tensors
from chainrule.training.step import Step

Shapes: TypeAlias = tuple[tuple[str, torch.Size], ...]


def shapes_of(batch: Batch) -> Shapes:
    return tuple((name, tensor.shape) for name, tensor in batch.tensors().items())


class StepGraph:
    """It copies the batch in, and the state of the streams stays in its memory. All graphs share one memory pool."""

    def __init__(self, step: Step, batch: Batch, state: State, other: "StepGraph | None" = None):
        self.step, self.batch = step, batch.map(Tensor.clone)
        self.state = map_state(state, lambda tensor: tensor.detach().clone()) if step.carries else None
        share, inputs = other.graph if other else None, self.batch.tensors().values()
        self.graph: CudaGraph = CudaGraph(
            self._run, inputs, self._tensors(self.state), share=share, tidy=other is None
        )

    def take(self, batch: Batch, state: State) -> State:
        if state is not self.state:                        # it comes from a step outside the graph
            self.graph.set_state(self._tensors(state))
        self.graph.replay(batch.tensors().values())
        return self.state

    def _run(self) -> Iterable[Tensor]:
        totals, after = self.step.accumulate(self.batch, self.state)
        self.step.update(totals)
        return self._tensors(after)

    def _tensors(self, state: State) -> Iterable[Tensor]:
        return tensors(state) if self.step.carries else ()
