"""Data loaders: the batch of each training step, on the model's device, with the targets of teacher forcing.

The tokens of a text are copied to the GPU if they fit, and rows are gathered there. Either way the rows are those that
`Windows` or `Streams` give: a pure function of the seed and the step, of which each rank has its share.

Shapes: B rows, T tokens.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE, Batch, Model
from chainrule.recipe import Gradient
from chainrule.tasks.task import BatchOrder, OrderWithState, Task
from chainrule.text.batches import Streams, Windows, document_numbers
from chainrule.text.corpus import Corpus
from chainrule.training.distributed import ALONE, Ranks

MEMORY_SHARE = 0.25    # of the GPU's free memory, which tokens may take


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
        self.rows, self.length, self.targets = order.rows, order.length, order.targets    # most, most, on average
        self.own = np.arange(-(-order.rows // ranks.size))              # as many rows as this rank has at most

    def batch(self, step: int) -> Batch:
        batch = self.order.at(step)
        if self.ranks.size > 1:
            rows = len(batch.tokens)
            own = torch.from_numpy(self.ranks.own_rows(rows))
            batch = batch.map(lambda tensor: tensor[own.clamp(max=rows - 1)])
            batch.targets[own >= rows] = IGNORE
        return batch.to(self.device)

    def goes_on(self, step: int) -> bool:
        return False

    def state(self) -> Mapping[str, Tensor]:
        """What a checkpoint keeps of the order: rollouts that have been drawn, for example."""
        return self.order.state() if isinstance(self.order, OrderWithState) else {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        if isinstance(self.order, OrderWithState):
            self.order.load({name: tensor.to(self.device) for name, tensor in state.items()})


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
    return BatchLoader(order, device, ranks)


def _fits(order: Windows | Streams, device: torch.device) -> bool:
    return device.type == "cuda" and 4 * len(order.tokens) < MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
