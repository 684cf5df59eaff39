"""The batch of each step, on the model's device.

On a GPU the tokens themselves lie there, if they fit, and rows are gathered where they are needed. Either way they are
those that `Windows` or `Streams` would give: a pure function of the seed and the step, of which a rank has its share.

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

ROW = 64            # tokens in a row, for models without a context
STEPS = 64          # steps that an epoch then has at least
ROOM = 0.25         # share of the GPU's free memory that tokens may take
AFRESH = 0.01       # share of the rows of a stream that begin as a text does (Melis et al. 2018)


class Feed:
    def __init__(
        self, order: Windows | Streams, device: torch.device, resident: bool | None = None, ranks: Ranks = ALONE
    ):
        self.order, self.device = order, device
        self.rows, self.length, self.targets = order.rows, order.length, order.rows * order.length    # over all ranks
        share = ranks.share(order.rows)
        self.mine = share.clip(max=order.rows - 1)         # places of this rank's rows
        self.beyond = torch.from_numpy(share >= order.rows).to(device) if share[-1] >= order.rows else None
        self.tokens = self._on_device() if (_fits(order, device) if resident is None else resident) else None
        self.across = torch.arange(order.length + 1, device=device)

    def batch(self, step: int) -> Batch:
        rows, reset = self._rows(step), self._reset(step)
        if reset is not None:
            rows[:, 0] = rows[:, 0].masked_fill(reset, BOUNDARY)
        tokens, targets = rows[:, :-1], rows[:, 1:]
        if self.beyond is not None:
            targets = targets.masked_fill(self.beyond[:, None], IGNORE)
        return Batch(tokens, targets, reset=reset)

    def _rows(self, step: int) -> Tensor:
        """(B, T + 1): all but the last column is read, all but the first foretold."""
        starts = torch.from_numpy(self.order.starts(step)[self.mine])[:, None]
        if self.tokens is not None:
            return self.tokens[starts.to(self.device, non_blocking=True) + self.across].long()
        places = starts.numpy() + np.arange(self.order.length + 1)
        return torch.from_numpy(self.order.tokens[places].astype(np.int64)).to(self.device, non_blocking=True)

    def goes_on(self, step: int) -> bool:
        return self.order.goes_on(step)

    def _reset(self, step: int) -> Tensor | None:
        """(B,) which rows of this rank begin afresh though the others go on; None: never any."""
        reset = self.order.reset(step) if isinstance(self.order, Streams) else None
        return None if reset is None else torch.from_numpy(reset[self.mine]).to(self.device, non_blocking=True)

    def _on_device(self) -> Tensor:
        return torch.from_numpy(self.order.tokens.astype(np.int32)).to(self.device)


class BatchFeed:
    """Batches that their order makes whole: of examples, or of a text made incomplete."""

    def __init__(self, order: Any, device: torch.device, rows: int, length: int, targets: int, ranks: Ranks = ALONE):
        self.order, self.device, self.ranks = order, device, ranks
        self.rows, self.length, self.targets = rows, length, targets    # in a step, on average over all; at most
        self.mine = np.arange(-(-rows // ranks.size))                   # as many rows as this rank has at most

    def batch(self, step: int) -> Batch:
        batch: Batch = self.order.at(step)
        if self.ranks.size > 1:
            rows = len(batch.tokens)
            share = torch.from_numpy(self.ranks.share(rows))
            batch = batch.map(lambda tensor: tensor[share.clamp(max=rows - 1)])
            batch.targets[share >= rows] = IGNORE
        return batch.to(self.device)

    def goes_on(self, step: int) -> bool:
        return False


def feed_of(
    corpus: Corpus | ExampleCorpus, settings: Gradient, context: int | None, device: torch.device, ranks: Ranks = ALONE
) -> Feed | BatchFeed:
    """What a model that holds `context` tokens learns from."""
    split: Any = corpus.splits["train"]
    if isinstance(corpus, ExampleCorpus):
        return _feed_of_examples(split, settings, device, ranks)
    if not isinstance(corpus, CorruptedCorpus):
        return make_feed(split, settings, context, device, ranks)
    feed = make_feed(split, replace(settings, length=corpus.length), context, device, ranks)
    order, length = feed.order, feed.order.length
    targets = order.rows * (max(1, round(0.15 * length)) if corpus.task == "mask" else sum(span_count(length)) + 1)
    return BatchFeed(corpus.corrupted(order, settings.seed), device, order.rows, length, targets, ranks)


def target_of(corpus: Any) -> str:
    """What is foretold, one after another: tokens, unless texts have classes or words have tags."""
    if not (isinstance(corpus, ExampleCorpus) and corpus.labels):
        return "token"
    return "text" if isinstance(corpus.splits["train"].encoded, Classes) else "word"


def _feed_of_examples(split: ExampleSplit, settings: Gradient, device: torch.device, ranks: Ranks) -> BatchFeed:
    if settings.batching == "streams" or settings.length is not None:
        raise UserError("train.batching=streams and train.length are for running text; examples begin and end by "
                        "themselves.")
    encoded: Any = split.encoded
    sizes = np.max(encoded.sizes, axis=0)
    tokens = settings.tokens or max(int(sizes.max()), min(MOST_TARGETS, int(sizes.sum()) // STEPS))
    order = Buckets(encoded, seed=settings.seed, tokens=tokens)
    rows = int(np.diff(order.cuts).max())
    targets = max(1, round(encoded.answers / order.epoch))
    return BatchFeed(order, device, rows, int(sizes.max()), targets, ranks)


def make_feed(
    split: Split, settings: Gradient, context: int | None, device: torch.device, ranks: Ranks = ALONE
) -> Feed:
    """The feed of a training text, for a model that can hold `context` tokens."""
    if settings.batching == "streams" and context is not None:
        raise UserError(f"train.batching=streams carries a state on for ever, and this model holds {context} tokens. "
                        "Use train.batching=windows.")
    length = settings.length or context or min(ROW, max(1, len(split.tokens) - 1))
    if context is not None and length > context:
        raise UserError(f"train.length={length} is more than the {context} tokens that the model can hold. "
                        "Shorten it, or raise model.context.")
    rows = _rows(settings.tokens, length, len(split.tokens) - 1)
    if ranks.size > rows:
        raise UserError(f"{ranks.size} ranks share the {rows} rows of a step, and each needs one. Start fewer, or "
                        f"raise train.tokens to {ranks.size * length} or more.")
    if settings.batching == "streams":
        return Feed(Streams(split.tokens, rows, length, AFRESH), device, ranks=ranks)
    return Feed(Windows(split.tokens, rows, length, settings.seed), device, ranks=ranks)


def _rows(tokens: int | None, length: int, text: int) -> int:
    few = max(1, min(MOST_TARGETS, text // STEPS) // length)
    if tokens is None or length > text:      # a text shorter than a row is refused with its rows
        return few
    if tokens > text:
        say(f"the text is shorter than one step of {tokens} tokens. So a step has {few * length}, as if none had been "
            f"asked for; train.tokens={text // length * length} would be all of the text.")
        return few
    if tokens < length:
        raise UserError(f"train.tokens={tokens} is less than one row of {length} tokens. Raise it, or shorten rows.")
    return tokens // length


def _fits(order: Windows | Streams, device: torch.device) -> bool:
    return device.type == "cuda" and 4 * len(order.tokens) < ROOM * torch.cuda.mem_get_info(device)[0]
