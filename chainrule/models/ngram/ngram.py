"""n-gram language model: p(w | the n - 1 words before), learned by counting. State: the last n - 1 tokens.

Modified Kneser–Ney by default (Chen & Goodman 1998). The tables are a trie: the words that follow a context lie side by
side, so a next-word distribution is a slice of each order (`step`), and one word's probability is one look-up in each
order (`score`). Boundaries need no special case: no n-gram crosses one, so a look-up ends there.

Shapes: B rows, T tokens, V vocabulary, N n-grams of an order, R = B·T.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, Batch, LanguageModel, Tap
from chainrule.models.ngram.counts import NGramCounts, count_ngrams, merge_counts
from chainrule.models.ngram.lookup import Lookup, positions
from chainrule.models.ngram.pruning import above_cutoffs, prune_by_entropy, select_ngrams
from chainrule.models.ngram.smoothing import (
    BackoffStep,
    BackoffTable,
    ContextCounts,
    discounts,
    estimate,
    gather_or,
    sum_by_context,
)
from chainrule.settings import NonNegative, Positive, Range, Settings

if TYPE_CHECKING:
    from chainrule.defaults.budgets import Budget, CorpusSize

Found: TypeAlias = tuple[Tensor, Tensor]   # positions in a text, sorted, and the n-grams that end there

ORDERS = {"bytes": 7, "characters": 7, "bpe": 4, "pretrained": 4}    # in comparisons; more was no better on 1 MB


@dataclass(frozen=True)
class NGramSettings(Settings):
    order: Annotated[int, Range(1, 1000)] = 5  # tokens in an n-gram: the predicted one and the order - 1 before it
    estimator: Literal["kneser-ney", "add-k", "mle"] = "kneser-ney"  # how counts become probabilities
    k: Positive = 1.0               # added to every count (add-k)
    cutoffs: tuple[Annotated[int, Range(0)], ...] = ()  # n-grams of order 1, 2, … with at most this count are left out;
                                    # the last number is for all higher orders
    prune: NonNegative = 0.0        # entropy pruning: leave out n-grams that raise the perplexity by a
                                    # smaller fraction than this (Stolcke 1998)
    memory: Annotated[int, Range(1, 10**9)] = 256  # MB of counts in memory; more are sorted on disk, then merged

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k != 1 and self.estimator != "add-k":
            raise UserError(f"model.k={self.k:g} belongs to model.estimator=add-k, and this is {self.estimator}.")
        if self.cutoffs and (self.cutoffs[0] != 0 or list(self.cutoffs) != sorted(self.cutoffs)):
            given = ",".join(map(str, self.cutoffs))
            raise UserError(f"model.cutoffs={given}: they begin with 0 and do not decrease, as in 0,0,1.")


class NGram(LanguageModel):
    tasks = ("lm", "classify")
    learns_by = "counting"
    resets_at_boundary = True
    Settings = NGramSettings
    Statistics = NGramCounts
    recipe: ClassVar[dict[str, Any]] = {"text.tokenizer": "words", "train.tokens": 1 << 21}

    answered: Tap
    log_prob_1: Tensor

    @classmethod
    def candidate_settings(
        cls, widths: Sequence[int], budget: "Budget", corpus: "CorpusSize"
    ) -> list[dict[str, Any]]:
        return [{"model.order": ORDERS.get(corpus.unit, 5)}]

    def __init__(self, settings: NGramSettings, vocab: int):
        super().__init__()
        self.settings, self.vocab = settings, vocab
        self.order = settings.order
        self.receptive_field = settings.order - 1
        self.answered = Tap()                                   # (B, T): the highest order that contains the n-gram
        self.set_tables(_uniform_tables(vocab, self.order))
        self.register_load_state_dict_pre_hook(_resize_buffers)  # type: ignore[no-untyped-call]

    # Learning

    def forget(self, generator: torch.Generator) -> None:
        self.set_tables(_uniform_tables(self.vocab, self.order))

    def collect(self, batch: Batch) -> NGramCounts:
        return count_ngrams(batch, self.order, self.vocab, self.settings.memory << 20)

    def update(self, statistics: NGramCounts) -> None:
        settings, orders = self.settings, merge_counts(statistics)
        keep = above_cutoffs(orders, settings.cutoffs) if settings.cutoffs else None
        tables: Iterable[BackoffTable] = estimate(orders, settings.estimator, settings.k, settings.cutoffs)
        if keep is not None:
            tables = select_ngrams(list(tables), keep)
        if settings.prune:
            tables = prune_by_entropy(list(tables), settings.prune)
        self.set_tables(tables)

    def set_tables(self, tables: Iterable[BackoffTable]) -> None:
        with np.errstate(divide="ignore"):                       # log 0 = -inf is intended
            for order, table in enumerate(tables, 1):
                self._set("log_prob", order, np.log(table.prob).astype(np.float32))
                self._set("counts", order, _narrow(table.counts))             # only for display
                if order > 1:
                    self._set("backoff", order - 1, np.log(table.backoff).astype(np.float32))
                    self._set("words", order, table.words.astype(np.int32, copy=False))
                    self._set("starts", order, table.starts)
        self._lookups: dict[int, Lookup] = {}
        self._discounts: dict[int, list[float]] = {}

    def _set(self, name: str, order: int, values: NDArray[Any]) -> None:
        device = self.log_prob_1.device if hasattr(self, "log_prob_1") else None
        self.register_buffer(f"{name}_{order}", torch.from_numpy(values).to(device))

    def _apply(self, *args: Any, **kwargs: Any) -> "NGram":
        self._lookups = {}                                       # they belong to the old device
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self

    # Prediction

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return torch.full((rows, self.order - 1), BOUNDARY, device=self.log_prob_1.device)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        history = torch.cat([state, tokens], 1)
        weight = torch.zeros(tokens.numel(), device=tokens.device)            # (R,) log back-off of the orders above
        children = []
        for order, row, context in reversed(self._contexts(history)):
            place, child = self._children(order, context)
            parent = row[place]
            log_prob = self.table("log_prob", order)[child] + weight[parent]
            children.append((order, parent, self.table("words", order)[child].long(), log_prob))
            weight[row] += self.table("backoff", order - 1)[context]
        logits = self.log_prob_1 + weight[:, None]
        for _, parent, word, log_prob in reversed(children):                  # the highest order is written last
            logits[parent, word] = log_prob
        if self.answered.watched:
            self.answered(_highest(children, tokens))
        return logits.view(*tokens.shape, self.vocab), history[:, tokens.shape[1] :]

    def next_logits(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.cat([state, tokens[:, :-1]], 1)[:, tokens.shape[1] - 1 :]
        logits, state = self.step(tokens[:, -1:], before)
        return logits[:, 0], state

    def score(self, tokens: Tensor, targets: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if not torch.equal(tokens[:, 1:], targets[:, :-1]):
            return super().score(tokens, targets, state)
        text = torch.cat([state, tokens, targets[:, -1:]], 1)
        result = self.log_prob_1.index_select(0, text.flatten())
        answered = torch.ones_like(text).flatten() if self.answered.watched else None
        for order, (asked, context), (found, ngram) in self._find_ngrams(text, self.order):
            result.index_add_(0, asked, self.table("backoff", order - 1).index_select(0, context))
            result.index_copy_(0, found, self.table("log_prob", order).index_select(0, ngram))
            if answered is not None:
                answered[found] = order
        if answered is not None:
            self.answered(answered.view(text.shape)[:, self.order :])
        return result.view(text.shape)[:, self.order :], text[:, tokens.shape[1] : -1]

    def _contexts(self, text: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """For each order from 2: which of the R tokens after the state end a known context, and that context."""
        columns = text.shape[1]
        tokens = text[:, self.order - 1 :].flatten()
        contexts = [(2, torch.arange(len(tokens), device=text.device), tokens)]
        for order, _, (found, ngram) in self._find_ngrams(text, self.order - 1):
            after = (found % columns >= self.order - 1).nonzero()[:, 0]
            row, column = found[after] // columns, found[after] % columns - self.order + 1
            contexts.append((order + 1, row * (columns - self.order + 1) + column, ngram[after]))
        return contexts[: self.order - 1]

    def _find_ngrams(self, text: Tensor, highest: int) -> Iterator[tuple[int, Found, Found]]:
        """For each order from 2: the positions of `text` after a known context, and those contexts; and the positions
        where the next word completes a known n-gram, and those n-grams.

        The rows are read end to end. An n-gram that crosses from one row into the next ends within the first order - 1
        positions of a row, which are not used.
        """
        flat = text.flatten()
        asked, context = torch.arange(1, len(flat), device=text.device), flat[:-1]
        for order in range(2, highest + 1):
            place = self._lookup(order).find(context * self.vocab + flat.index_select(0, asked))
            hits = positions(place >= 0)
            found, ngram = asked.index_select(0, hits), place.index_select(0, hits).long()
            yield order, (asked, context), (found, ngram)
            if not len(found):
                return
            inside = len(found) - int(found[-1] == len(flat) - 1)   # no token follows the last
            asked, context = found[:inside] + 1, ngram[:inside]

    def _lookup(self, order: int) -> Lookup:
        if order not in self._lookups:
            starts, words = self.table("starts", order), self.table("words", order)
            begun = torch.bincount(starts[1:-1], minlength=len(words))[: len(words)]      # contexts, at each n-gram
            self._lookups[order] = Lookup(begun.cumsum(0) * self.vocab + words)
        return self._lookups[order]

    def _children(self, order: int, context: Tensor) -> tuple[Tensor, Tensor]:
        """All n-grams of `order` that extend the contexts: which context each extends, and its index."""
        starts = self.table("starts", order)
        first, sizes = starts[context], starts[context + 1] - starts[context]
        before = sizes.cumsum(0) - sizes                         # children of the contexts before
        parent = torch.arange(len(context), device=context.device).repeat_interleave(sizes)
        return parent, torch.arange(len(parent), device=context.device) + (first - before)[parent]

    # Back-off, step by step

    def backoff(self, text: Tensor) -> list[BackoffStep]:
        """The back-off steps, from order 1 up, of every token of a text (T + 1,) but its first, the boundary."""
        padded = torch.cat([self.start(1), text[None]], 1)
        size = padded.shape[1]
        places = {1: (torch.zeros_like(padded[0]), padded[0])}    # the context and the n-gram of each token, or -1
        for order, asked, found in self._find_ngrams(padded, self.order):
            places[order] = _spread(asked, size), _spread(found, size)
        steps: list[BackoffStep] = []
        for order in range(1, self.order + 1):
            context, ngram = places.get(order, (torch.full_like(padded[0], -1),) * 2)
            below = steps[-1] if steps else None
            steps.append(self._backoff_step(order, context[self.order :], ngram[self.order :], below))
        return steps

    def _backoff_step(self, order: int, context: Tensor, ngram: Tensor, below: BackoffStep | None) -> BackoffStep:
        counts = self._context_counts(order, context, ngram)
        zeros = torch.zeros(ngram.shape, dtype=torch.float64, device=ngram.device)
        if below is None:
            weight = zeros if counts is None else counts.discounted_mass
            return BackoffStep(order, ngram >= 0, weight, self.log_prob_1[ngram].double().exp(), counts)
        weight = gather_or(context, self.table("backoff", order - 1), zeros).exp()
        lower = weight.log() + below.probability.log()
        probability = gather_or(ngram, self.table("log_prob", order), lower).exp()
        return BackoffStep(order, ngram >= 0, weight, probability, counts)

    def _context_counts(self, order: int, context: Tensor, ngram: Tensor) -> ContextCounts | None:
        counts, rows = self.table("counts", order), len(context)
        if len(counts) != len(self.table("log_prob", order)):
            return None
        if order == 1:
            total, types = sum_by_context(counts.long(), torch.zeros_like(counts).long(), 1)
            total, types = total.expand(rows), types.expand(rows, -1)
        else:
            known = (context >= 0).nonzero()[:, 0]
            parent, child = self._children(order, context[known])
            total, types = sum_by_context(counts[child].long(), known[parent], rows)
        own = gather_or(ngram, counts, torch.zeros_like(ngram))
        return ContextCounts(own, total, types, self._order_discounts(order))

    def _order_discounts(self, order: int) -> list[float]:
        """D of 0, 1, 2, and 3 or more."""
        if order not in self._discounts:
            counts = self.table("counts", order).cpu().numpy()
            self._discounts[order] = discounts(counts).tolist()
        return self._discounts[order] if self.settings.estimator == "kneser-ney" else [0.0] * 4

    def table(self, name: str, order: int) -> Tensor:
        table: Tensor = getattr(self, f"{name}_{order}")
        return table


def _highest(children: list[Any], tokens: Tensor) -> Tensor:
    """(B, T): the highest order with a known context for the word after each token."""
    answered = torch.ones_like(tokens).flatten()
    for order, parent, _, _ in reversed(children):
        answered[parent] = order
    return answered.view(tokens.shape)


def _spread(found: Found, size: int) -> Tensor:
    """(size,): the n-gram found at each position, or -1."""
    positions, ngrams = found
    return torch.full((size,), -1, device=positions.device).index_copy_(0, positions, ngrams)


def _narrow(counts: NDArray[Any] | None) -> NDArray[Any]:
    """In the smallest integer type that holds the largest; empty where counts are unknown."""
    if counts is None or not len(counts):
        return np.zeros(0, np.uint8)
    narrow = next(kind for kind in (np.uint8, np.int16, np.int32, np.int64) if counts.max() <= np.iinfo(kind).max)
    return counts.astype(narrow)


def _uniform_tables(vocab: int, order: int) -> list[BackoffTable]:
    """Before training the unigrams are uniform and all higher orders empty."""
    no_ints, no_floats = np.zeros(0, np.int32), np.zeros(0)
    everything = np.arange(vocab)
    tables = [BackoffTable(everything, np.array([0, vocab]), np.full(vocab, 1 / vocab), np.ones(1), everything)]
    for contexts in [vocab, *[0] * (order - 2)][: order - 1]:
        tables.append(BackoffTable(no_ints, np.zeros(contexts + 1, np.int32), no_floats, np.ones(contexts), no_ints))
    return tables


def _resize_buffers(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The sizes of the tables depend on the training text, so the buffers take those of the file."""
    for name, buffer in list(module.named_buffers(recurse=False)):
        if name.startswith("counts"):                            # an imported model may have none
            state.setdefault(prefix + name, torch.zeros(0, dtype=torch.uint8))
        if prefix + name in state:
            module.register_buffer(name, torch.empty_like(state[prefix + name], device=buffer.device))
    assert isinstance(module, NGram)
    module._lookups, module._discounts = {}, {}
    _refuse_broken_trie(module, state, prefix)


def _refuse_broken_trie(model: NGram, state: dict[str, Any], prefix: str) -> None:
    """Tables that point outside each other, as those of a damaged file do."""
    contexts = model.vocab
    if tuple(state.get(f"{prefix}log_prob_1", torch.empty(contexts)).shape) != (contexts,):
        raise ValueError(f"the 1-grams are damaged: they should be {contexts}")
    for order in range(2, model.order + 1):
        names = [f"{prefix}{name}_{order}" for name in ("starts", "words", "log_prob")]
        names.append(f"{prefix}backoff_{order - 1}")
        if not all(name in state for name in names):
            return                                               # load_state_dict says which is missing
        starts, words, log_prob, backoff = (state[name] for name in names)
        sizes = [tuple(table.shape) for table in (starts, backoff, log_prob)]
        whole = sizes == [(contexts + 1,), (contexts,), tuple(words.shape)] and words.dim() == 1
        whole = whole and [int(starts[0]), int(starts[-1])] == [0, len(words)] and not bool((starts.diff() < 0).any())
        if not whole or bool(((words < 0) | (words >= model.vocab)).any()):
            raise ValueError(f"the n-grams of order {order} are damaged: they do not fit those of order {order - 1}")
        contexts = len(words)
