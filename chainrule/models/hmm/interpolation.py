"""Successive abstraction (Samuelsson 1996): what is rare is estimated by way of what is general.

    p_l(y | c_l) = (n(c_l, y) + α_l p_{l-1}(y)) / (n(c_l) + α_l)        p_0: every answer alike

A question is a row of contexts, from the general to the special: an ending of one letter, of two, …, the word. A
context that was never seen adds nothing. How much each level leans on the one below, α_l, is what makes the
observations likeliest when each is foretold without itself (deleted interpolation, Jelinek & Mercer 1980).

Shapes: M observations, Q questions, L levels, Y answers, N contexts of a level, C pairs of context and answer of it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.models.ngram.lookup import Lookup

WEIGHTS = 2.0 ** torch.arange(-4, 13, dtype=torch.float64)    # from which α is chosen
ODD = -7046029254386353131                                    # 2^64 / φ, as in lookup.py
HALF = (1 << 32) - 1
NOTHING = 0                                                   # in the place of a context that a question does not have


def mixed(*columns: Tensor) -> Tensor:
    """One number for each row of several, as good as never the same for two."""
    key = torch.full_like(columns[0], ODD)
    for column in columns:
        key = (key ^ column) * ODD           # a product carries upwards only, so the upper half is brought down
        key = key ^ (key >> 32 & HALF)
    return key


def distinct(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different ones, rising; for each key given its place among them; and for each of them one place of it."""
    values, which = keys.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    examples = torch.empty_like(values)
    examples[which] = torch.arange(len(keys), device=keys.device)
    return values, which, examples


@dataclass(frozen=True)
class Observations:
    """They add by being kept, and are merged when something is learned from them."""

    contexts: Tensor    # (M, L)
    answers: Tensor     # (M,)
    counts: Tensor      # (M,)

    def __add__(self, other: "Observations") -> "Observations":
        return Observations(*(torch.cat(pair) for pair in zip(self.tensors(), other.tensors())))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.contexts, self.answers, self.counts

    def merged(self) -> "Observations":
        """Each kind of observation once, with its count."""
        _, which, examples = distinct(mixed(*self.contexts.unbind(1), self.answers))
        counts = self.counts.new_zeros(len(examples)).index_add_(0, which, self.counts)
        return Observations(self.contexts[examples], self.answers[examples], counts)


def observe(contexts: Tensor, answers: Tensor) -> Observations:
    return Observations(contexts, answers, torch.ones_like(answers)).merged()


class Abstraction(nn.Module):
    """p(answer | contexts). Levels below `tokens_from` count each kind of observation once, however often it came: they
    are asked about what was never seen, which is like what is rare rather than like what is frequent (Kneser & Ney).
    """

    weights: Tensor    # (L,) α

    def __init__(self, levels: int, answers: int, tokens_from: int = 0):
        super().__init__()
        self.levels, self.answers, self.tokens_from = levels, answers, tokens_from
        self.register_buffer("weights", torch.ones(levels, dtype=torch.float64))
        self.forget()
        self.register_load_state_dict_pre_hook(_make_room)  # type: ignore[no-untyped-call]

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
        """keys (N,) rising; starts (N + 1,): where the answers of each context lie; seen (C,) answers; counts (C,)."""
        table: Tensor = getattr(self, f"{name}_{level}")
        return table

    # Learning

    def learn(self, observations: Observations) -> None:
        """Count each level, and weigh it by how well it foretells what is left out of it."""
        contexts, answers, counts = observations.merged().tensors()
        kept = torch.full(answers.shape, 1 / self.answers, dtype=torch.float64, device=answers.device)
        deleted = kept                                   # (M,) p(answer), with and without one observation of it
        for level in range(self.levels):
            times = (counts if level >= self.tokens_from else torch.ones_like(counts)).double()
            if level == self.tokens_from:
                deleted = torch.where(counts == 1, deleted, kept)   # without a second of its kind, the kind is gone
            has = contexts[:, level] != NOTHING
            seen, total = self._count(level, contexts[has, level], answers[has], times[has])
            weight = _best_weight(seen - 1, total - 1, deleted[has], times[has])
            self.weights[level] = weight
            deleted = deleted.masked_scatter(has, (seen - 1 + weight * deleted[has]) / (total - 1 + weight))
            kept = kept.masked_scatter(has, (seen + weight * kept[has]) / (total + weight))

    def _count(self, level: int, contexts: Tensor, answers: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Fill the tables of a level; n(c, y) and n(c) of each observation."""
        keys, context, _ = distinct(contexts)
        cells, cell, _ = distinct(context * self.answers + answers)
        counts = times.new_zeros(len(cells)).index_add_(0, cell, times)
        totals = times.new_zeros(len(keys)).index_add_(0, context, times)
        sizes = torch.bincount(cells // self.answers, minlength=len(keys))
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        self._set(level, keys=keys, starts=starts, seen=cells % self.answers, counts=counts.long())
        return counts[cell], totals[context]

    # Answering

    def probabilities(self, contexts: Tensor, below: Tensor | None = None) -> Tensor:
        """(Q, Y). Contexts (Q, l) of the first l levels; or of the last, given what those `below` say (Q, Y)."""
        first = 0 if below is None else self.levels - contexts.shape[1]
        shape = (len(contexts), self.answers)
        answer = self.weights.new_full(shape, 1 / self.answers) if below is None else below.clone()
        for level, column in enumerate(contexts.unbind(1), first):
            place = self._lookup(level).find(column.contiguous())
            rows = (place >= 0).nonzero()[:, 0]
            self._refine(answer, level, rows, place[rows].long())
        return answer

    def knows(self, level: int, contexts: Tensor) -> Tensor:
        """(Q,): true where a context was seen."""
        return self._lookup(level).find(contexts) >= 0

    def _refine(self, answer: Tensor, level: int, rows: Tensor, place: Tensor) -> None:
        """Some rows of answers (Q, Y), in place, by what was counted in their contexts."""
        starts, weight = self.table("starts", level), self.weights[level]
        first, sizes = starts[place], starts[place + 1] - starts[place]
        which = torch.arange(len(place), device=place.device).repeat_interleave(sizes)
        cell = torch.arange(len(which), device=place.device) + (first - sizes.cumsum(0) + sizes)[which]
        counts = self.table("counts", level)[cell].to(answer.dtype)
        total = answer.new_zeros(len(place)).index_add_(0, which, counts)
        answer[rows] *= (weight / (total + weight))[:, None]
        answer[rows[which], self.table("seen", level)[cell]] += counts / (total + weight)[which]

    def _lookup(self, level: int) -> Lookup:
        if level not in self._lookups:
            self._lookups[level] = Lookup(self.table("keys", level))
        return self._lookups[level]

    def _apply(self, *args: Any, **kwargs: Any) -> "Abstraction":
        self._lookups = {}                               # they belong to the device they were made on
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self


def _best_weight(seen: Tensor, total: Tensor, below: Tensor, times: Tensor) -> float:
    """The α under which answers seen so often among so many, themselves not counted, are likeliest."""
    nats = [-(times * ((seen + weight * below) / (total + weight)).log()).sum() for weight in WEIGHTS.to(times.device)]
    return float(WEIGHTS[int(torch.stack(nats).argmin())])


def _make_room(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Tables have whatever size the observations gave them, so those of a file replace ours."""
    for name, buffer in list(module.named_buffers(recurse=False)):
        if prefix + name in state:
            module.register_buffer(name, torch.empty_like(state[prefix + name], device=buffer.device))
    assert isinstance(module, Abstraction)
    module._lookups = {}
