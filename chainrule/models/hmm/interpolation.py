"""Interpolation of distributions from general to specific contexts (successive abstraction, Samuelsson 1996).

    p_l(y | c_l) = (n(c_l, y) + α_l p_{l-1}(y)) / (n(c_l) + α_l)        p_0: uniform

A query is a row of contexts, from general to specific: a suffix of one letter, of two, …, the word. A context that was
never seen is skipped. The weights α_l maximise the likelihood of the observations when each is predicted from counts
without itself (deleted interpolation, Jelinek & Mercer 1980).

Shapes: M observations, Q queries, L levels, Y outcomes, N contexts of a level, C pairs of context and outcome of it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.models.ngram.lookup import Lookup

WEIGHTS = 2.0 ** torch.arange(-4, 13, dtype=torch.float64)    # the candidates for α
ODD = -7046029254386353131                                    # 2^64 / φ, as in lookup.py
HALF = (1 << 32) - 1
NO_CONTEXT = 0                                                # stands for a context that a query does not have


def hashed(*columns: Tensor) -> Tensor:
    """One 64-bit hash for each row of several columns."""
    key = torch.full_like(columns[0], ODD)
    for column in columns:
        key = (key ^ column) * ODD           # a product carries upwards only: mix the upper half in below
        key = key ^ (key >> 32 & HALF)
    return key


def distinct(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct keys, sorted; the index of each given key among them; and for each of them one row that has it."""
    values, which = keys.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    examples = torch.empty_like(values)
    examples[which] = torch.arange(len(keys), device=keys.device)
    return values, which, examples


@dataclass(frozen=True)
class Observations:
    """Observed contexts and outcomes with counts. They add by concatenation and are merged before estimation."""

    contexts: Tensor    # (M, L)
    outcomes: Tensor    # (M,)
    counts: Tensor      # (M,)

    def __add__(self, other: "Observations") -> "Observations":
        return Observations(*(torch.cat(pair) for pair in zip(self.tensors(), other.tensors())))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.contexts, self.outcomes, self.counts

    def merged(self) -> "Observations":
        """Each distinct observation once, with its count."""
        _, which, examples = distinct(hashed(*self.contexts.unbind(1), self.outcomes))
        counts = self.counts.new_zeros(len(examples)).index_add_(0, which, self.counts)
        return Observations(self.contexts[examples], self.outcomes[examples], counts)


def observe(contexts: Tensor, outcomes: Tensor) -> Observations:
    return Observations(contexts, outcomes, torch.ones_like(outcomes)).merged()


class Interpolation(nn.Module):
    """p(outcome | contexts). Levels below `tokens_from` count each distinct observation once, not each occurrence: they
    are used for unseen events, which resemble rare ones rather than frequent ones (the argument of Kneser & Ney).
    """

    weights: Tensor    # (L,) α

    def __init__(self, levels: int, outcomes: int, tokens_from: int = 0):
        super().__init__()
        self.levels, self.outcomes, self.tokens_from = levels, outcomes, tokens_from
        self.register_buffer("weights", torch.ones(levels, dtype=torch.float64))
        self.forget()
        self.register_load_state_dict_pre_hook(_resize_buffers)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        self.weights.fill_(1)
        for level in range(self.levels):
            sizes = {"keys": 0, "starts": 1, "seen": 0, "counts": 0}
            self._set(level, **{name: self.weights.new_zeros(size).long() for name, size in sizes.items()})

    def _set(self, level: int, **tables: Tensor) -> None:
        for name, table in tables.items():
            self.register_buffer(f"{name}_{level}", table.to(self.weights.device))
        self._lookups: dict[int, Lookup] = {}

    def table(self, name: str, level: int) -> Tensor:
        """keys (N,) sorted; starts (N + 1,): where each context begins; seen (C,) outcomes; counts (C,)."""
        table: Tensor = getattr(self, f"{name}_{level}")
        return table

    # Learning

    def learn(self, observations: Observations) -> None:
        """Counts each level and chooses its weight α by leave-one-out likelihood."""
        contexts, outcomes, counts = observations.merged().tensors()
        kept = torch.full(outcomes.shape, 1 / self.outcomes, dtype=torch.float64, device=outcomes.device)
        deleted = kept                                   # (M,) p(outcome), with and without this observation
        for level in range(self.levels):
            times = (counts if level >= self.tokens_from else torch.ones_like(counts)).double()
            if level == self.tokens_from:
                deleted = torch.where(counts == 1, deleted, kept)   # only without its single occurrence a kind is gone
            has = contexts[:, level] != NO_CONTEXT
            seen, total = self._count(level, contexts[has, level], outcomes[has], times[has])
            weight = _best_weight(seen - 1, total - 1, deleted[has], times[has])
            self.weights[level] = weight
            deleted = deleted.masked_scatter(has, (seen - 1 + weight * deleted[has]) / (total - 1 + weight))
            kept = kept.masked_scatter(has, (seen + weight * kept[has]) / (total + weight))

    def _count(self, level: int, contexts: Tensor, outcomes: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Fills the tables of a level; returns n(c, y) and n(c) of each observation."""
        keys, context, _ = distinct(contexts)
        cells, cell, _ = distinct(context * self.outcomes + outcomes)
        counts = times.new_zeros(len(cells)).index_add_(0, cell, times)
        totals = times.new_zeros(len(keys)).index_add_(0, context, times)
        sizes = torch.bincount(cells // self.outcomes, minlength=len(keys))
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        self._set(level, keys=keys, starts=starts, seen=cells % self.outcomes, counts=counts.long())
        return counts[cell], totals[context]

    # Prediction

    def probabilities(self, contexts: Tensor, below: Tensor | None = None) -> Tensor:
        """(Q, Y). Contexts (Q, l) of the first l levels; or of the last l, given the distributions `below` them."""
        first = 0 if below is None else self.levels - contexts.shape[1]
        shape = (len(contexts), self.outcomes)
        prob = self.weights.new_full(shape, 1 / self.outcomes) if below is None else below.clone()
        for level, column in enumerate(contexts.unbind(1), first):
            place = self._lookup(level).find(column.contiguous())
            rows = (place >= 0).nonzero()[:, 0]
            self._interpolate(prob, level, rows, place[rows].long())
        return prob

    def total(self, level: int, contexts: Tensor) -> Tensor:
        """(Q,): n(c), how often a context of a level was counted; 0 where it was never seen."""
        place, starts = self._lookup(level).find(contexts.contiguous()).long(), self.table("starts", level)
        sums = torch.cat([starts.new_zeros(1), self.table("counts", level).cumsum(0)])
        found = place.clamp(min=0)
        if len(starts) < 2:
            return torch.zeros_like(contexts)
        return (sums[starts[found + 1]] - sums[starts[found]]).where(place >= 0, 0)

    def knows(self, level: int, contexts: Tensor) -> Tensor:
        """(Q,): true where a context was seen."""
        return self._lookup(level).find(contexts) >= 0

    def _interpolate(self, prob: Tensor, level: int, rows: Tensor, place: Tensor) -> None:
        """Updates some rows of the distributions (Q, Y) in place with the counts of their contexts."""
        starts, weight = self.table("starts", level), self.weights[level]
        first, sizes = starts[place], starts[place + 1] - starts[place]
        which = torch.arange(len(place), device=place.device).repeat_interleave(sizes)
        cell = torch.arange(len(which), device=place.device) + (first - sizes.cumsum(0) + sizes)[which]
        counts = self.table("counts", level)[cell].to(prob.dtype)
        total = prob.new_zeros(len(place)).index_add_(0, which, counts)
        prob[rows] *= (weight / (total + weight))[:, None]
        prob[rows[which], self.table("seen", level)[cell]] += counts / (total + weight)[which]

    def _lookup(self, level: int) -> Lookup:
        if level not in self._lookups:
            self._lookups[level] = Lookup(self.table("keys", level))
        return self._lookups[level]

    def _apply(self, *args: Any, **kwargs: Any) -> "Interpolation":
        self._lookups = {}                               # they belong to the old device
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self


def _best_weight(seen: Tensor, total: Tensor, below: Tensor, times: Tensor) -> float:
    """The α that maximises the likelihood of the outcomes, given counts that leave each of them out."""
    nats = [-(times * ((seen + weight * below) / (total + weight)).log()).sum() for weight in WEIGHTS.to(times.device)]
    return float(WEIGHTS[int(torch.stack(nats).argmin())])


def _resize_buffers(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The sizes of the tables depend on the training data, so the buffers take those of the file."""
    for name, buffer in list(module.named_buffers(recurse=False)):
        if prefix + name in state:
            module.register_buffer(name, torch.empty_like(state[prefix + name], device=buffer.device))
    assert isinstance(module, Interpolation)
    module._lookups = {}
    for level in range(module.levels):
        _refuse_broken_level(module, state, prefix, level)


def _refuse_broken_level(module: Interpolation, state: dict[str, Any], prefix: str, level: int) -> None:
    """Tables that point outside each other, as those of a damaged file do."""
    names = [f"{prefix}{name}_{level}" for name in ("keys", "starts", "seen", "counts")]
    if not all(name in state for name in names):
        return                                               # load_state_dict says which is missing
    keys, starts, seen, counts = (state[name] for name in names)
    whole = all(table.dim() == 1 for table in (keys, starts, seen, counts)) and len(starts) == len(keys) + 1
    whole = whole and len(seen) == len(counts) and [int(starts[0]), int(starts[-1])] == [0, len(seen)]
    whole = whole and not bool((starts.diff() < 0).any()) and not bool((keys[1:] <= keys[:-1]).any())
    if not whole or bool(((seen < 0) | (seen >= module.outcomes)).any()) or bool((counts < 0).any()):
        raise ValueError(f"the counts of level {level} are damaged: they do not fit each other")
