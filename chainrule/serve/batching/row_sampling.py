"""Sampling of rows that each have settings of their own, and log-probabilities: from the logits of a step to tokens.

A row may still be reading its prompt: then its next token is given, and only its log-probability is of interest. On a
CPU each row is sampled by itself, by the code of `chainrule sample`. On a GPU all rows are sampled together: their
settings are columns of a tensor, and the whole is a CUDA graph.

Shapes: R rows, V vocabulary, K most probable tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule.device import CudaGraph
from chainrule.inference.decoding import Values, capture_step
from chainrule.inference.sampling import BLOCK, Sampling, SamplingStrategy, draw
from chainrule.model import BOUNDARY
from chainrule.serve.batching.row_groups import to_pinned
from chainrule.serve.requests import TOP, Request

SAMPLED = -1       # in the place of a next token that is not given
ALIGNED = BLOCK    # numbers: rows of a multiple begin at aligned addresses, on which the order of a GPU's sums depends


@dataclass(frozen=True)
class LogProbs:
    chosen: Tensor                       # (R,) log p of the next token, at temperature 1
    top: Tensor                          # (R, K) the highest
    ids: Tensor                          # (R, K) of these tokens

    def numbers(self) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
        """For each row the number of its token, and the most probable ones."""
        chosen, top = self.chosen.double().tolist(), self.top.double().tolist()
        return [(p, tuple(zip(ids, some))) for p, some, ids in zip(chosen, top, self.ids.tolist())]


@dataclass(frozen=True)
class Chosen:
    """The next token of each row of a step, and what is known of it."""

    tokens: Tensor                       # (R,) SAMPLED where the model gives no token a probability
    log_probs: LogProbs | None = None

    def to_host(self) -> "Chosen":
        """A copy of it, which is there when the GPU has come so far."""
        if not self.tokens.is_cuda:
            return self
        log_probs = self.log_probs
        if log_probs is not None:
            log_probs = LogProbs(*(_pinned(part) for part in (log_probs.chosen, log_probs.top, log_probs.ids)))
        return Chosen(_pinned(self.tokens), log_probs)


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def log_probs_of(logits: Tensor, tokens: Tensor, vocab: int) -> LogProbs:
    """(R, V or more), (R,): computed once, as `score` does. Always for TOP tokens, since ties may be in any order."""
    log_probs = logits.log_softmax(-1)
    top, ids = log_probs[:, :vocab].topk(min(TOP, vocab))
    return LogProbs(log_probs.gather(-1, tokens[:, None])[:, 0], top, ids)


def aligned(logits: Tensor) -> Tensor:
    """(R, V) -> (R, V or more) float32: with columns of probability 0, so that all rows are aligned alike on a GPU."""
    rows, vocab = logits.shape
    if not logits.is_cuda or vocab % ALIGNED == 0:
        return logits.float()
    padded = torch.full((rows, vocab + -vocab % ALIGNED), -math.inf, device=logits.device)
    padded[:, :vocab] = logits
    return padded


# On a CPU


class RowSamplers:
    """The decoding strategy of every row of a group, one after another, exactly as `chainrule sample` has it."""

    def __init__(self, rows: int):
        self.strategies: list[SamplingStrategy | None] = [None] * rows
        self.values: list[Values] = [{} for _ in range(rows)]

    def put(self, slot: int, request: Request) -> None:
        prompt = np.asarray(request.prompt, np.int64)
        self.strategies[slot] = SamplingStrategy(request.sampling, request.ends, [prompt])
        self.values[slot] = {}

    def release(self, slot: int) -> None:
        self.strategies[slot] = None

    def choose(
        self, logits: Tensor, given: Sequence[int], uniform: Sequence[float], log_probs: bool, into: Tensor
    ) -> Chosen:
        """(R, V) -> the next token of each row: the one that is given, or a random one by the row's number.

        `into` (R, 1): where they are to be read.
        """
        tokens = torch.tensor([BOUNDARY if token == SAMPLED else token for token in given])
        found = tokens.clone()
        for slot, strategy in enumerate(self.strategies):
            if strategy is not None and given[slot] == SAMPLED:
                row = logits[slot : slot + 1]
                values = self.values[slot] or strategy.begin(row)
                values = self.values[slot] = strategy.choose(row, values, torch.tensor([uniform[slot]]))
                tokens[slot] = values["tokens"][0]
                found[slot] = tokens[slot] if values["possible"][0] else SAMPLED
        into[:, 0] = tokens
        if not log_probs:
            return Chosen(found)
        vocab, rows = logits.shape[-1], [slice(slot, slot + 1) for slot in range(len(tokens))]
        each = [log_probs_of(logits[row].float(), tokens[row], vocab) for row in rows]
        parts = (torch.cat(part) for part in zip(*((one.chosen, one.top, one.ids) for one in each)))
        return Chosen(found, LogProbs(*parts))


# On a GPU


class Columns(NamedTuple):
    """The settings of all rows, (R, 1) each."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor                      # log of the repetition penalty


def column_values(sampling: Sampling) -> list[float]:
    top_k = math.inf if sampling.top_k is None else sampling.top_k
    return [sampling.temperature, top_k, sampling.top_p, sampling.min_p, math.log(sampling.repetition_penalty)]


def sample_rows(
    logits: Tensor, columns: Columns, uniform: Tensor, seen: Tensor | None, cuts: bool, vocab: int, hot: bool = True
) -> tuple[Tensor, Tensor]:
    """`sampling.sample_token` for rows with settings of their own: (R, V or more) -> (R,), (R,).

    `seen` (R, V): None where no row has a penalty; `cuts`: whether some row leaves tokens out; `hot`: whether some
    row may have an infinite temperature. What other rows need changes no bit of a row.
    """
    if seen is not None:
        logits = logits - columns.penalty * pad(seen, (0, logits.shape[-1] - vocab))
    highest, best = logits.max(-1, keepdim=True)
    coldest = torch.finfo(logits.dtype).tiny
    scaled = (logits - highest).div_(columns.temperature.clamp(coldest, torch.finfo(logits.dtype).max))
    if hot:
        alike = pad(torch.zeros_like(scaled[:, :vocab]), (0, logits.shape[-1] - vocab), value=-math.inf)
        scaled = scaled.where(columns.temperature < math.inf, alike)
    if cuts:
        scaled = scaled.masked_fill(~_kept_rows(logits, columns), -math.inf)
    drawn, possible = draw(scaled.softmax(-1), uniform)
    greedy = columns.temperature[:, 0] == 0
    return torch.where(greedy, best[:, 0], drawn), torch.where(greedy, highest[:, 0] > -math.inf, possible)


def _kept_rows(logits: Tensor, columns: Columns) -> Tensor:
    """(R, V): True for tokens that pass every cut."""
    probs = logits.softmax(-1)
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(-1) - ranked                      # the probability of all tokens that are more likely
    rank = torch.arange(logits.shape[-1], device=logits.device)
    inside = (rank < columns.top_k) & ((before < columns.top_p) | (columns.top_p == 1))
    kept = torch.zeros_like(inside).scatter(-1, order, inside)
    return kept & (probs >= columns.min_p * probs.amax(-1, keepdim=True))


class DeviceSamplers:
    """All rows of a group sampled together, as a CUDA graph for each of the few combinations of what is needed."""

    def __init__(self, rows: int, vocab: int, device: torch.device, captures: bool):
        """`captures`: the logits are always in the same place, so that graphs can read them."""
        self.rows, self.vocab, self.device, self.captures = rows, vocab, device, captures
        self.values = np.tile(column_values(Sampling()), (rows, 1)).astype(np.float32)
        self.settings = torch.from_numpy(self.values).to(device)           # (R, 5)
        self.inputs = torch.zeros(2, rows, dtype=torch.float64, device=device)    # given tokens, uniform numbers
        self.seen = torch.zeros(rows, vocab, dtype=torch.bool, device=device)
        self.members: dict[int, Sampling] = {}
        self.needs = False, False, False
        self.graphs: dict[tuple[bool, ...], tuple[CudaGraph, list[Chosen]] | None] = {}

    def put(self, slot: int, request: Request) -> None:
        self.members[slot] = request.sampling
        self.values[slot] = column_values(request.sampling)
        self.settings.copy_(to_pinned(self.values), non_blocking=True)
        if request.sampling.repetition_penalty != 1:
            self.seen[slot] = False
            prompt = to_pinned(np.asarray(request.prompt, np.int64)).to(self.device, non_blocking=True)
            self.seen[slot].index_fill_(0, prompt, True)
            self.seen[slot, BOUNDARY] = False

        self._find_needs()

    def release(self, slot: int) -> None:
        del self.members[slot]
        self._find_needs()

    def _find_needs(self) -> None:
        """Whether some row leaves tokens out, has a penalty, has an infinite temperature."""
        every = self.members.values()
        self.needs = (
            any(sampling.cuts for sampling in every),
            any(sampling.repetition_penalty != 1 for sampling in every),
            any(sampling.temperature == math.inf for sampling in every),
        )

    def choose(
        self, logits: Tensor, given: Sequence[int], uniform: Sequence[float], log_probs: bool, into: Tensor
    ) -> Chosen:
        """As RowSamplers.choose. `logits` must be the same tensor in every call, and so must `into`."""
        self.inputs.copy_(to_pinned(np.array([given, uniform])), non_blocking=True)
        variant = *self.needs, log_probs
        if (known := self.graphs.get(variant)) is not None:
            known[0].replay(())
            return known[1][-1]
        chosen = self._choose(logits, into, *variant)        # also the warm-up of what is captured
        if self.captures and variant not in self.graphs:
            self._capture(logits, into, variant)
        return chosen

    def _capture(self, logits: Tensor, into: Tensor, variant: tuple[bool, bool, bool, bool]) -> None:
        made: list[Chosen] = []

        def step() -> list[Tensor]:
            made.append(self._choose(logits, into, *variant))
            return []

        graph = capture_step(step, [], [])
        self.graphs[variant] = None if graph is None else (graph, made)

    def _choose(self, logits: Tensor, into: Tensor, cuts: bool, penalty: bool, hot: bool, log_probs: bool) -> Chosen:
        given, uniform = self.inputs[0].long(), self.inputs[1]
        logits = aligned(logits)
        columns = Columns(*self.settings.unsqueeze(-1).unbind(1))
        seen = self.seen if penalty else None
        drawn, possible = sample_rows(logits, columns, uniform, seen, cuts, self.vocab, hot)
        tokens = torch.where(given == SAMPLED, drawn, given)
        if penalty:
            self.seen.scatter_(1, tokens[:, None], (tokens != BOUNDARY)[:, None])
        into.copy_(tokens[:, None])
        found = torch.where(possible | (given != SAMPLED), tokens, SAMPLED)
        return Chosen(found, log_probs_of(logits, tokens, self.vocab) if log_probs else None)
