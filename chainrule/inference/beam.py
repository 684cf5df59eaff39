"""Beam search: the most likely texts that a search over `width` partial texts (hypotheses) finds.

At each step every live hypothesis is extended by every token, and the `width` most likely of all stay; those that end
there, with a boundary, are finished. A finished text of n tokens, its end included, is ranked with a length penalty:

    log p / ((5 + n) / 6) ** alpha                       (Wu et al. 2016; alpha 0: by log p alone)

At `limit` a text must end. Width 1 is greedy decoding; a beam as wide as there are texts is exhaustive search.

Shapes: B rows, W width, N best, T steps, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.captured.captured_step import Block
from chainrule.inference.decoding import (
    DecodeLoop,
    Prefilled,
    Tokens,
    Values,
    prefill_prompts,
    prefill_source,
    sync_every,
)
from chainrule.inference.forward import eval_mode
from chainrule.model import BOUNDARY, Batch, LanguageModel

Decode: TypeAlias = Callable[[Sequence[int]], str]
ScoredText: TypeAlias = tuple[str, float]

MAX_ALPHA = 50          # with which the length penalty of any text is still a finite number
MAX_WIDTH = 1 << 16     # hypotheses of a source: far more than is of use, and far fewer than a tensor can hold
MAX_LIMIT = 1 << 20     # tokens of a text: a model may never end one


@dataclass(frozen=True)
class Beam:
    width: int = 4                # hypotheses kept at each step; 1: greedy
    alpha: float = 0.6            # length penalty, which favours longer texts: log p / ((5 + n) / 6) ** alpha; 0: none
    best: int = 1                 # texts returned for each row, the best first
    limit: int = 256              # most tokens in a text, its end not counted
    least: int = 0                # fewest tokens in a text, its end not counted

    def __post_init__(self) -> None:
        wanted = {
            "width": (1 <= self.width <= MAX_WIDTH, f"from 1 (greedy) to {MAX_WIDTH:,}"),
            "alpha": (0 <= self.alpha <= MAX_ALPHA, f"from 0 (by log p alone) to {MAX_ALPHA}"),
            "best": (1 <= self.best <= MAX_WIDTH, f"from 1 to {MAX_WIDTH:,}"),
            "limit": (1 <= self.limit <= MAX_LIMIT, f"from 1 to {MAX_LIMIT:,}"),
            "least": (0 <= self.least <= self.limit, f"from 0 to limit={self.limit}"),
        }
        for name, (met, want) in wanted.items():
            if not met:
                raise UserError(f"{name}={getattr(self, name)} is not valid: it must be {want}.")

    @property
    def rows(self) -> int:
        """Rows that one source has in the decode loop."""
        return self.width

    def texts(self, model: LanguageModel, batch: Batch, ids: Sequence[int], decode: Decode) -> list[list[ScoredText]]:
        """The best texts for each source of a batch."""
        found = beam_search(model, self, source=batch.source, lengths=batch.source_lengths)
        return [[(decode(text.tokens), text.score) for text in result.texts] for result in found]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        return {"beam": self.width, "alpha": self.alpha, "limit": self.limit}

    def length_penalty(self, length: int) -> float:
        """The divisor of log p of a text of `length` tokens, its end included."""
        return float(((5 + length) / 6) ** self.alpha)


@dataclass(frozen=True)
class Hypothesis:
    """A finished text."""

    tokens: tuple[int, ...]       # without boundaries
    log_prob: float               # of the text and its end
    score: float                  # log_prob over the length penalty, by which texts are ranked


@dataclass(frozen=True)
class Branch:
    """A hypothesis that stayed in the beam at one step."""

    token: int                    # its last one; a boundary: it is finished
    parent: int                   # the branch of the step before that it extends
    score: float                  # log p so far


@dataclass(frozen=True)
class SearchResult:
    texts: tuple[Hypothesis, ...]                          # the best first; fewer than `best` where there are no more
    tree: tuple[tuple[Branch, ...], ...] | None = None     # the branches that stayed at each step, if asked for


DEFAULT = Beam()


@torch.inference_mode()
def beam_search(
    model: LanguageModel,
    beam: Beam = DEFAULT,
    *,
    source: Tensor | None = None,
    lengths: Tensor | None = None,
    prompts: Sequence[Tokens] = (),
    tree: bool = False,
) -> list[SearchResult]:
    """The best texts for each row of a source, whose `lengths` are not padding; or, without a source, that continue
    each prompt."""
    if source is not None and len(prompts):
        raise ValueError("a beam search continues a source or prompts, not both")
    if source is None and not len(prompts):
        return []
    steps = max_new_tokens(model.max_tokens(source), beam.limit, beam.least, read=1 + max(map(len, prompts), default=0))
    with eval_mode(model):
        begun = prefill_prompts(model, prompts) if source is None else prefill_source(model, source, lengths)
        return beam_from(model, begun, beam, steps, tree)


def beam_from(
    model: LanguageModel, begun: Prefilled, beam: Beam, steps: int, tree: bool = False
) -> list[SearchResult]:
    """The best texts of at most so many tokens that continue rows which have been read."""
    strategy = BeamStrategy(beam, steps)
    loop = DecodeLoop(model, begun.repeat(beam.width), strategy)
    taken = _run(loop, strategy, torch.arange(steps + 1, device=begun.logits.device)[:, None])
    return strategy.results(loop.values, taken, tree)


def _run(loop: DecodeLoop, strategy: "BeamStrategy", numbers: Tensor) -> int:
    """Runs the steps of these (T, 1) numbers, until the best texts of all rows are known. Returns how many it ran."""
    steps, at_once = len(numbers) - 1, sync_every(numbers.device)
    for first in range(0, steps, at_once):
        some = numbers[first : min(first + at_once, steps)]
        loop.next_tokens(some, steps - first)
        if loop.values["settled"].all():                   # the one question to the device
            return first + len(some)
    strategy.must_end = True
    loop.next_token(numbers[steps], 1)
    return steps + 1


def max_new_tokens(capacity: int | None, limit: int, least: int = 1, read: int = 1) -> int:
    """Tokens that can be written: at most `limit`, and as many as the context holds after the `read` ones."""
    tokens = limit if capacity is None else min(limit, capacity - read)
    if tokens < max(least, 1):
        raise UserError(f"the model holds {capacity} tokens, of which {read} are read before it writes: "
                        f"{max(least, 1)} more do not fit.")
    return tokens


class BeamStrategy:
    """The beams of all rows and the best texts that are finished, as tensors on the model's device."""

    def __init__(self, beam: Beam, steps: int):
        self.beam, self.steps = beam, steps
        self.reorders = beam.width > 1                     # a single hypothesis always extends itself
        self.must_end = False                              # in the last step

    def begin(self, logits: Tensor) -> Values:
        """(B * W, V)"""
        beam, device = self.beam, logits.device
        rows = len(logits) // beam.width
        self.first_row = torch.arange(0, len(logits), beam.width, device=device)[:, None]    # (B, 1) of each beam
        self.places = torch.arange(beam.width, device=device)
        self.penalties = torch.tensor([beam.length_penalty(1 + step) for step in range(self.steps + 1)], device=device)
        live = torch.full((rows, beam.width), -math.inf, device=device)
        live[:, 0] = 0                                     # at first all hypotheses of a row are the same one
        score = torch.full((rows, beam.best), -math.inf, device=device)
        written = torch.zeros((self.steps + 1, rows, beam.width), dtype=torch.long, device=device)
        return {
            "live": live,                                  # (B, W) log p of each hypothesis; -inf: it is finished
            "score": score,                                # (B, N) of the best finished texts,
            "log_prob": score.clone(),                     # their log p
            "end": torch.zeros_like(score, dtype=torch.long),    # and where they ended: step * W + place in the beam
            "tokens_at": written,                          # (T, B, W) the beam at each step: last tokens,
            "parents_at": written.clone(),                 # hypotheses that these extend,
            "scores_at": written.float(),                  # and log p
        }

    def choose(self, logits: Tensor, values: Values, inputs: Tensor) -> Values:
        """`inputs` (1,): the number of the step."""
        log_probs = self._log_probs(logits, inputs).view(*values["live"].shape, -1)          # (B, W, V)
        total, place = (values["live"][..., None] + log_probs).flatten(1).topk(self.beam.width)
        parents, tokens = place // log_probs.shape[-1], place % log_probs.shape[-1]
        finished = self._finish(values, total.where(tokens == BOUNDARY, -math.inf), inputs)
        live = total.masked_fill(tokens == BOUNDARY, -math.inf)
        settled = self._settled(live, finished["score"])
        return {
            "tokens": tokens.flatten(),
            "parents": (self.first_row + parents).flatten(),
            "live": live.masked_fill(settled[:, None], -math.inf),
            "settled": settled,
            **finished,
            "tokens_at": values["tokens_at"].index_copy_(0, inputs, tokens[None]),
            "parents_at": values["parents_at"].index_copy_(0, inputs, parents[None]),
            "scores_at": values["scores_at"].index_copy_(0, inputs, total[None]),
        }

    def choose_in_place(self, logits: Tensor, values: Values, block: Block) -> bool:
        return False

    def _log_probs(self, logits: Tensor, step: Tensor) -> Tensor:
        log_probs = logits.float().log_softmax(-1)
        if self.beam.least:
            log_probs[:, BOUNDARY].masked_fill_(step < self.beam.least, -math.inf)
        if self.must_end:
            log_probs[:, BOUNDARY + 1 :] = -math.inf
        return log_probs

    def _finish(self, values: Values, ended: Tensor, step: Tensor) -> Values:
        """(B, W) log p of the hypotheses that end here, -inf for others: the best N of these and of earlier ones."""
        here = (step * self.beam.width + self.places).expand_as(ended)
        scores = torch.cat([values["score"], ended / self.penalties.index_select(0, step)], 1)
        score, best = scores.topk(self.beam.best)
        return {
            "score": score,
            "log_prob": torch.cat([values["log_prob"], ended], 1).gather(1, best),
            "end": torch.cat([values["end"], here], 1).gather(1, best),
        }

    def _settled(self, live: Tensor, score: Tensor) -> Tensor:
        """(B,): True where no live hypothesis can still be among the best of its row.

        Log p never rises, and no length penalty is greater than that of the longest text: so stopping loses no text.
        """
        bound = live.amax(1) / self.beam.length_penalty(self.steps + 1)
        return score[:, -1] >= bound

    def results(self, values: Values, taken: int, tree: bool) -> list[SearchResult]:
        """Of a search that took so many steps."""
        beams = ("tokens_at", "parents_at", "scores_at")
        tokens, parents, scores = (values[name][:taken].cpu().numpy() for name in beams)
        end, log_probs, finals = (values[name].cpu().numpy() for name in ("end", "log_prob", "score"))
        written = _trace(tokens, parents, end)
        results = []
        for row in range(len(end)):
            ends = zip(end[row] // self.beam.width, written[:, row].T, log_probs[row], finals[row])
            texts = [Hypothesis(tuple(text[:size].tolist()), float(log_prob), float(score))
                     for size, text, log_prob, score in ends if score > -math.inf]
            branches = _branches(tokens[:, row], parents[:, row], scores[:, row]) if tree else None
            results.append(SearchResult(tuple(texts), branches))
        return results


def _trace(tokens: NDArray[np.int64], parents: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """(T, B, N) the tokens of each text, traced back from its end."""
    rows = np.arange(len(end))[:, None]
    step, place = np.divmod(end, tokens.shape[2])
    written = np.zeros((len(tokens), *end.shape), np.int64)
    for at in range(len(tokens) - 1, -1, -1):
        inside = at <= step
        written[at] = np.where(inside, tokens[at, rows, place], BOUNDARY)
        place = np.where(inside, parents[at, rows, place], place)
    return written


def _branches(
    tokens: NDArray[np.int64], parents: NDArray[np.int64], scores: NDArray[np.float32]
) -> tuple[tuple[Branch, ...], ...]:
    """(T, W) of one row, without hypotheses of probability 0."""
    steps, before = [], np.zeros(tokens.shape[1], np.int64)
    for token, parent, score in zip(tokens, parents, scores):
        alive = score > -math.inf
        steps.append(tuple(map(Branch, token[alive].tolist(), before[parent[alive]].tolist(), score[alive].tolist())))
        before = np.cumsum(alive) - 1
    return tuple(step for step in steps if step)
