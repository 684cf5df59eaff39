"""Data loaders: the batch of each training step, on the model's device, with the targets of teacher forcing.

The tokens of a text are copied to the GPU if they fit, and rows are gathered there. Either way the rows are those that
`Windows` or `Streams` give: a pure function of the seed and the step, of which each rank has its share.

Shapes: B rows, T tokens.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.progress import say
from chainrule.recipe import MOST_TARGETS, Gradient
from chainrule.tasks.buckets import Buckets
from chainrule.tasks.corpus_of_examples import ExampleCorpus, ExampleSplit
from chainrule.tasks.denoise import CorruptedCorpus, span_count
from chainrule.tasks.padding import Classes
from chainrule.text.batches import Streams, Windows
from chainrule.text.corpus import Corpus, Split
from chainrule.training.distributed import ALONE, Ranks

LENGTH = 64            # tokens in a row, for models without a context
STEPS = 64             # least number of steps in an epoch, where the size of a step is left to us
MEMORY_SHARE = 0.25    # of the GPU's free memory, which tokens may take
RESET_SHARE = 0.01     # of the rows of a stream, which start again from the state of an empty text (Melis et al. 2018)


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
        return Batch(tokens, targets, reset=reset)

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

    def _reset(self, step: int) -> Tensor | None:
        """(B,) which rows of this rank are reset though the others go on; None: none ever is."""
        reset = self.order.reset(step) if isinstance(self.order, Streams) else None
        return None if reset is None else torch.from_numpy(reset[self.own]).to(self.device, non_blocking=True)

    def _on_device(self) -> Tensor:
        return torch.from_numpy(self.order.tokens.astype(np.int32)).to(self.device)


class BatchLoader:
    """Batches that their order makes as a whole: of examples, or of a corrupted text."""

    def __init__(self, order: Any, device: torch.device, rows: int, length: int, targets: int, ranks: Ranks = ALONE):
        self.order, self.device, self.ranks = order, device, ranks
        self.rows, self.length, self.targets = rows, length, targets    # in a step: most, most, and on average
        self.own = np.arange(-(-rows // ranks.size))                    # as many rows as this rank has at most

    def batch(self, step: int) -> Batch:
        batch: Batch = self.order.at(step)
        if self.ranks.size > 1:
            rows = len(batch.tokens)
            own = torch.from_numpy(self.ranks.own_rows(rows))
            batch = batch.map(lambda tensor: tensor[own.clamp(max=rows - 1)])
            batch.targets[own >= rows] = IGNORE
        return batch.to(self.device)

    def goes_on(self, step: int) -> bool:
        return False


def make_loader(
    corpus: Corpus | ExampleCorpus, settings: Gradient, context: int | None, device: torch.device, ranks: Ranks = ALONE
) -> TokenLoader | BatchLoader:
    """The loader of the training split, for a model that can hold `context` tokens."""
    split: Any = corpus.splits["train"]
    if isinstance(corpus, ExampleCorpus):
        return _example_loader(split, settings, device, ranks)
    if not isinstance(corpus, CorruptedCorpus):
        return make_token_loader(split, settings, context, device, ranks)
    loader = make_token_loader(split, replace(settings, length=corpus.length), context, device, ranks)
    order, length = loader.order, loader.order.length
    targets = order.rows * (max(1, round(0.15 * length)) if corpus.task == "mask" else sum(span_count(length)) + 1)
    return BatchLoader(corpus.corrupted(order, settings.seed), device, order.rows, length, targets, ranks)


def target_unit(corpus: Any) -> str:
    """What one target is: a token, unless texts have classes or words have tags."""
    if not (isinstance(corpus, ExampleCorpus) and corpus.labels):
        return "token"
    return "text" if isinstance(corpus.splits["train"].encoded, Classes) else "word"


def _example_loader(split: ExampleSplit, settings: Gradient, device: torch.device, ranks: Ranks) -> BatchLoader:
    if settings.batching == "streams" or settings.length is not None:
        raise UserError("train.batching=streams and train.length are for running text; an example has its own "
                        "beginning and end.")
    encoded: Any = split.encoded
    sizes = np.max(encoded.sizes, axis=0)
    tokens = settings.tokens or max(int(sizes.max()), min(MOST_TARGETS, int(sizes.sum()) // STEPS))
    order = Buckets(encoded, seed=settings.seed, tokens=tokens)
    rows = int(np.diff(order.cuts).max())
    targets = max(1, round(encoded.answers / order.epoch))
    return BatchLoader(order, device, rows, int(sizes.max()), targets, ranks)


def make_token_loader(
    split: Split, settings: Gradient, context: int | None, device: torch.device, ranks: Ranks = ALONE
) -> TokenLoader:
    if settings.batching == "streams" and context is not None:
        raise UserError(f"train.batching=streams carries a state on without end, and this model holds {context} "
                        "tokens. Use train.batching=windows.")
    length = settings.length or context or min(LENGTH, max(1, len(split.tokens) - 1))
    if context is not None and length > context:
        raise UserError(f"train.length={length} is more than the {context} tokens that the model can hold. "
                        "Shorten it, or raise model.context.")
    rows = _rows(settings.tokens, length, len(split.tokens) - 1)
    if ranks.size > rows:
        raise UserError(f"{ranks.size} ranks share the {rows} rows of a step, and each needs one. Start fewer, or "
                        f"raise train.tokens to {ranks.size * length} or more.")
    if settings.batching == "streams":
        return TokenLoader(Streams(split.tokens, rows, length, RESET_SHARE), device, ranks=ranks)
    return TokenLoader(Windows(split.tokens, rows, length, settings.seed), device, ranks=ranks)


def _rows(tokens: int | None, length: int, text: int) -> int:
    few = max(1, min(MOST_TARGETS, text // STEPS) // length)
    if tokens is None or length > text:      # a text shorter than a row is refused by Windows and Streams
        return few
    if tokens > text:
        say(f"the text is shorter than one step of train.tokens={tokens}, so a step has {few * length}, the default; "
            f"train.tokens={text // length * length} would be the whole text.")
        return few
    if tokens < length:
        raise UserError(f"train.tokens={tokens} is less than one row of {length} tokens. Raise it, or shorten rows.")
    return tokens // length


def _fits(order: Windows | Streams, device: torch.device) -> bool:
    return device.type == "cuda" and 4 * len(order.tokens) < MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
