"""The batch of each step, on the model's device.

On a GPU the tokens themselves lie there, if they fit, and rows are gathered where they are needed. Either way they are
those that `Windows` or `Streams` would give: a pure function of the seed and the step, of which a rank has its share.

Shapes: B rows, T tokens.
"""

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import UNCOUNTED, Batch
from chainrule.progress import say
from chainrule.recipe import Gradient
from chainrule.text.batches import Streams, Windows
from chainrule.text.corpus import Split
from chainrule.train.parallel import ALONE, Ranks

ROW = 64            # tokens in a row, for models without a context
STEP = 1 << 14      # most targets in a step where their number is left to us
STEPS = 64          # steps that an epoch then has at least
ROOM = 0.25         # share of the GPU's free memory that tokens may take


class Feed:
    def __init__(
        self, order: Windows | Streams, device: torch.device, resident: bool | None = None, ranks: Ranks = ALONE
    ):
        self.order, self.device = order, device
        self.targets = order.rows * order.length           # in a step, over all ranks
        share = ranks.share(order.rows)
        self.mine = share.clip(max=order.rows - 1)         # places of this rank's rows
        self.beyond = torch.from_numpy(share >= order.rows).to(device) if share[-1] >= order.rows else None
        self.tokens = self._on_device() if (_fits(order, device) if resident is None else resident) else None
        self.across = torch.arange(order.length + 1, device=device)

    def batch(self, step: int) -> Batch:
        rows = self._rows(step)
        tokens, targets = rows[:, :-1], rows[:, 1:]
        return Batch(tokens, targets if self.beyond is None else targets.masked_fill(self.beyond[:, None], UNCOUNTED))

    def _rows(self, step: int) -> Tensor:
        """(B, T + 1): all but the last column is read, all but the first foretold."""
        starts = torch.from_numpy(self.order.starts(step)[self.mine])[:, None]
        if self.tokens is not None:
            return self.tokens[starts.to(self.device, non_blocking=True) + self.across].long()
        places = starts.numpy() + np.arange(self.order.length + 1)
        return torch.from_numpy(self.order.tokens[places].astype(np.int64)).to(self.device, non_blocking=True)

    def goes_on(self, step: int) -> bool:
        return self.order.goes_on(step)

    def _on_device(self) -> Tensor:
        return torch.from_numpy(self.order.tokens.astype(np.int32)).to(self.device)


def make_feed(
    split: Split, settings: Gradient, context: int | None, device: torch.device, ranks: Ranks = ALONE
) -> Feed:
    """The feed of a training text, for a model that can hold `context` tokens."""
    if settings.order == "streams" and context is not None:
        raise UserError(f"train.order=streams carries a state on for ever, and this model holds {context} tokens. "
                        "Use train.order=windows.")
    length = settings.length or context or min(ROW, max(1, len(split.tokens) - 1))
    if context is not None and length > context:
        raise UserError(f"train.length={length} is more than the {context} tokens that the model can hold. "
                        "Shorten it, or raise model.context.")
    rows = _rows(settings.tokens, length, len(split.tokens) - 1)
    if ranks.size > rows:
        raise UserError(f"{ranks.size} ranks share the {rows} rows of a step, and each needs one. Start fewer, or "
                        f"raise train.tokens to {ranks.size * length} or more.")
    if settings.order == "streams":
        return Feed(Streams(split.tokens, rows, length), device, ranks=ranks)
    return Feed(Windows(split.tokens, rows, length, settings.seed), device, ranks=ranks)


def _rows(tokens: int | None, length: int, text: int) -> int:
    few = max(1, min(STEP, text // STEPS) // length)
    if tokens is None or length > text:      # a text shorter than a row is refused with its rows
        return few
    if tokens > text:
        say(f"the text is shorter than one step of {tokens} tokens, so a step has {few * length}.")
        return few
    if tokens < length:
        raise UserError(f"train.tokens={tokens} is less than one row of {length} tokens. Raise it, or shorten rows.")
    return tokens // length


def _fits(order: Windows | Streams, device: torch.device) -> bool:
    return device.type == "cuda" and 4 * len(order.tokens) < ROOM * torch.cuda.mem_get_info(device)[0]
