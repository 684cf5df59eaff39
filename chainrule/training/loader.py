"""Data loaders: the batch of each training step, on the model's device, with the targets of teacher forcing.

The tokens of a text are copied to the GPU if they fit, and rows are gathered there. Either way the rows are those that
`Windows` or `Streams` give: a pure function of the seed and the step, of which each rank has its share.

Shapes: B rows, T tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE, Batch, Model
from chainrule.preferences.objective import Objective
from chainrule.recipe import Gradient
from chainrule.tasks.batching import Buckets
from chainrule.tasks.corruption import Noised, Spans
from chainrule.tasks.task import BatchOrder, OrderWithState, Task
from chainrule.text.batches import Streams, Windows, document_numbers
from chainrule.text.corpus import Corpus
from chainrule.training.compile.batch_shapes import area, few_shapes, free_share
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.schedule import make_budget

MEMORY_SHARE = 0.25    # of the GPU's free memory, which tokens may take
GRAPH_DEVICES = {"cuda"}    # devices on which batches are padded to a few shapes, so that graphs replay them
WIDTHS = 32            # corrupted rows are padded to multiples of this there
BUFFERS = 8            # batches that may be on their way to a GPU
ALIGNED = 16           # bytes, to a multiple of which each tensor of a batch begins


class TokenLoader:
    """Batches of a running text: windows, or streams that carry their state on."""

    def __init__(
        self, order: Windows | Streams, device: torch.device, resident: bool | None = None, ranks: Ranks = ALONE
    ):
        self.order, self.device = order, device
        self.rows, self.length, self.targets = order.rows, order.length, order.rows * order.length    # over all ranks
        own = ranks.own_rows(order.rows)
        self.own = own.clip(max=order.rows - 1)            # this rank's rows
        self.padding = torch.from_numpy(own >= order.rows).to(device) if own[-1] >= order.rows else None
        self.tokens = self._on_device() if (_fits(order, device) if resident is None else resident) else None
        self.across = torch.arange(order.length + 1, device=device)

    def batch(self, step: int) -> Batch:
        rows, reset = self._rows(step), self._reset(step)
        if reset is not None:
            rows[:, 0] = rows[:, 0].masked_fill(reset, BOUNDARY)
        tokens, targets = rows[:, :-1], rows[:, 1:]
        if self.padding is not None:
            targets = targets.masked_fill(self.padding[:, None], IGNORE)
        documents = document_numbers(tokens) if isinstance(self.order, Windows) and self.order.packed else None
        return Batch(tokens, targets, reset=reset, documents=documents)

    def _rows(self, step: int) -> Tensor:
        """(B, T + 1): all but the last column is read, all but the first is predicted."""
        starts = torch.from_numpy(self.order.starts(step)[self.own])[:, None]
        if self.tokens is not None:
            return self.tokens[starts.to(self.device, non_blocking=True) + self.across].long()
        places = starts.numpy() + np.arange(self.order.length + 1)
        return torch.from_numpy(self.order.tokens[places].astype(np.int64)).to(self.device, non_blocking=True)

    graph_padding = 1.0                                    # all rows have one length

    def unpad(self) -> None: ...

    def goes_on(self, step: int) -> bool:
        """Whether the rows of a step go on from those of the step before."""
        return self.order.goes_on(step)

    def state(self) -> Mapping[str, Tensor]:
        """What a checkpoint keeps of the order: the rows follow from the step alone."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None: ...

    def _reset(self, step: int) -> Tensor | None:
        """(B,) which rows of this rank are reset though the others go on; None: none ever is."""
        reset = self.order.reset(step) if isinstance(self.order, Streams) else None
        return None if reset is None else torch.from_numpy(reset[self.own]).to(self.device, non_blocking=True)

    def _on_device(self) -> Tensor:
        return torch.from_numpy(self.order.tokens.astype(np.int32)).to(self.device)


class BatchLoader:
    """Batches that their order makes as a whole: of examples, or of a corrupted text."""

    def __init__(self, order: BatchOrder, device: torch.device, ranks: Ranks = ALONE):
        self.order, self.device, self.ranks = order, device, ranks
        self.copier = PinnedCopier(device) if device.type == "cuda" else None
        self.rows, self.length, self.targets = order.rows, order.length, order.targets    # most, most, on average
        self.own = np.arange(-(-order.rows // ranks.size))              # as many rows as this rank has at most

    def batch(self, step: int) -> Batch:
        batch = self.order.at(step)
        if self.ranks.size > 1:
            rows = len(batch.tokens)
            own = torch.from_numpy(self.ranks.own_rows(rows))
            batch = batch.map(lambda tensor: tensor[own.clamp(max=rows - 1)])
            batch.targets[own >= rows] = IGNORE
        there = any(tensor.is_cuda for tensor in batch.tensors().values())    # rollouts are drawn on the GPU
        return batch.to(self.device) if self.copier is None or there else self.copier.copy(batch)

    @property
    def graph_padding(self) -> float:
        """How many times as many tokens a batch has, on average, because a few CUDA graphs should replay all."""
        if not isinstance(self.order, Buckets) or self.order.padded is None:
            return 1.0
        return float(area(self.order.padded).sum() / area(self.order.shapes).sum())

    def unpad(self) -> None:
        """Batches as they are without CUDA graphs."""
        if isinstance(self.order, Buckets):
            self.order.pad_to(None)

    def goes_on(self, step: int) -> bool:
        return False

    def state(self) -> Mapping[str, Tensor]:
        """What a checkpoint keeps of the order: rollouts that have been drawn, for example."""
        return self.order.state() if isinstance(self.order, OrderWithState) else {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        if isinstance(self.order, OrderWithState):
            self.order.load({name: tensor.to(self.device) for name, tensor in state.items()})


class PinnedCopier:
    """Copies batches to a GPU without waiting for it: all tensors of one by a single copy from page-locked memory."""

    def __init__(self, device: torch.device, buffers: int = BUFFERS):
        self.device, self.turn = device, 0
        self.pinned = [torch.empty(0, dtype=torch.uint8)] * buffers
        self.copied: list[Any] = [torch.cuda.Event() for _ in range(buffers)]  # type: ignore[no-untyped-call]

    def copy(self, batch: Batch) -> Batch:
        places, size = layout(batch)
        self.turn = (self.turn + 1) % len(self.pinned)
        self.copied[self.turn].synchronize()               # of the batch that was here before, long ago
        if len(self.pinned[self.turn]) < size:
            self.pinned[self.turn] = torch.empty(2 * size, dtype=torch.uint8, pin_memory=True)
        here = self.pinned[self.turn][:size]
        for tensor, place in zip(batch.tensors().values(), places):
            view(here, tensor, place).copy_(tensor)
        there = here.to(self.device, non_blocking=True)
        self.copied[self.turn].record(torch.cuda.current_stream(self.device))
        at = iter(places)
        return batch.map(lambda tensor: view(there, tensor, next(at)))


def layout(batch: Batch) -> tuple[list[int], int]:
    """Where the tensors of a batch begin in one piece of memory, in bytes, and its size."""
    sizes = [-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in batch.tensors().values()]
    return [sum(sizes[:place]) for place in range(len(sizes))], sum(sizes)


def view(memory: Tensor, like: Tensor, place: int) -> Tensor:
    """A tensor in the shape and dtype of another, at a place in memory."""
    return memory[place : place + like.nbytes].view(like.dtype).view(like.shape)


def make_loader(
    task: Task, model: Model, corpus: Corpus, settings: Gradient, device: torch.device, ranks: Ranks = ALONE
) -> TokenLoader | BatchLoader:
    """The loader of the batches from which a model learns a task."""
    order = task.order(model, corpus, settings)
    if ranks.size > order.rows:
        raise UserError(f"{ranks.size} ranks share the {order.rows} rows of a step, and each needs one. Start fewer, "
                        f"or raise train.tokens to {ranks.size * order.length} or more.")
    if isinstance(order, Windows | Streams):
        return TokenLoader(order, device, ranks=ranks)
    if device.type in GRAPH_DEVICES and settings.graph != "false" and ranks.size == 1:
        order = with_few_shapes(order, model, make_budget(settings, order.epoch, order.targets).steps)
    return BatchLoader(order, device, ranks)


def with_few_shapes(order: BatchOrder, model: Model, steps: int | None = None) -> BatchOrder:
    """The same batches, padded to a few shapes, for the CUDA graphs of a training of so many steps."""
    if isinstance(model, Objective):                       # its loss may depend on all rows
        return order
    if isinstance(order, Buckets):
        order.pad_to(few_shapes(order.shapes, free=free_share(steps)))
    elif isinstance(order, Spans | Noised) and (getattr(model, "context", None) or 0) % WIDTHS == 0:
        return replace(order, multiple=WIDTHS)
    return order


def _fits(order: Windows | Streams, device: torch.device) -> bool:
    return device.type == "cuda" and 4 * len(order.tokens) < MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
