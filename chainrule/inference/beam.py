"""Beam search: the likeliest texts that a model can write, as far as `width` beginnings at a time can tell.

At each token every live beginning is followed by every token, and the `width` likeliest of all stay; those of them that
end there, at a boundary, are finished. A finished text of n tokens, its end included, is ranked by

    log p / ((5 + n) / 6) ** alpha                       (Wu et al. 2016; alpha 0: by log p alone)

At `limit` a text must end. Width 1 is greedy; a beam as wide as there are texts is exhaustive.

Shapes: B rows, W width, N best, T tokens written, V vocabulary.
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
from chainrule.inference.decoding import Tokens, begun, read_each
from chainrule.inference.forward import device_of, eval_mode
from chainrule.model import BOUNDARY, Batch, LanguageModel, State, pick

Decode: TypeAlias = Callable[[Sequence[int]], str]
ScoredText: TypeAlias = tuple[str, float]


STRONGEST = 50    # alpha, with which the penalty of any text is still a number


@dataclass(frozen=True)
class Beam:
    width: int = 4                # beginnings kept at each token; 1: greedy
    alpha: float = 0.6            # how much longer texts are favoured: log p / ((5 + n) / 6) ** alpha; 0: not at all
    best: int = 1                 # texts wanted for each row, the best first
    limit: int = 256              # most tokens in a text, its end not counted
    least: int = 0                # fewest tokens in a text, its end not counted

    def __post_init__(self) -> None:
        wanted = {
            "width": (self.width >= 1, "1 (greedy) or more"),
            "alpha": (0 <= self.alpha <= STRONGEST, f"from 0 (by log p alone) to {STRONGEST}"),
            "best": (self.best >= 1, "1 or more"),
            "limit": (self.limit >= 1, "1 or more"),
            "least": (0 <= self.least <= self.limit, f"from 0 to limit={self.limit}"),
        }
        for name, (met, want) in wanted.items():
            if not met:
                raise UserError(f"{name}={getattr(self, name)} will not do: it must be {want}.")

    @property
    def rows(self) -> int:
        """Texts of one source that are under way together."""
        return self.width

    def texts(self, model: LanguageModel, batch: Batch, ids: Sequence[int], decode: Decode) -> list[list[ScoredText]]:
        """The best for each source of a batch."""
        found = search(model, self, source=batch.source, lengths=batch.source_lengths)
        return [[(decode(text.tokens), text.score) for text in answer.texts] for answer in found]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        return {"beam": self.width, "alpha": self.alpha, "limit": self.limit}

    def penalty(self, length: int) -> float:
        """What the log p of a text of `length` tokens, its end included, is divided by."""
        return float(((5 + length) / 6) ** self.alpha)


@dataclass(frozen=True)
class Hypothesis:
    tokens: tuple[int, ...]       # without boundaries
    log_prob: float               # of its end too
    score: float                  # log_prob over the penalty: what texts are ranked by


@dataclass(frozen=True)
class Branch:
    """A beginning that stayed."""

    token: int                    # its last one; a boundary: it is finished
    parent: int                   # what it goes on from: a place among the branches one token before
    score: float                  # log p so far


@dataclass(frozen=True)
class Found:
    texts: tuple[Hypothesis, ...]                          # the best first; fewer than wanted where there are no more
    tree: tuple[tuple[Branch, ...], ...] | None = None     # for each token the branches that stayed, where asked for


PLAIN = Beam()


@torch.inference_mode()
def search(
    model: LanguageModel,
    beam: Beam = PLAIN,
    *,
    source: Tensor | None = None,
    lengths: Tensor | None = None,
    prompts: Sequence[Tokens] = (),
    tree: bool = False,
) -> list[Found]:
    """The best texts for each row of a source of some `lengths`; or, without a source, to go on from each prompt."""
    if source is not None and len(prompts):
        raise ValueError("a beam goes on from a source or from prompts, not from both")
    if source is None and not len(prompts):
        return []
    room = room_for(model.max_tokens(source), beam.limit, beam.least, read=1 + max(map(len, prompts), default=0))
    with eval_mode(model):
        logits, state = _begin(model, source, lengths, prompts)
        growing = Growing(beam, len(logits), room, logits.device)
        rows = growing.rows.repeat_interleave(beam.width)
        logits, state = pick(logits, rows), pick(state, rows)
        for step in range(room + 1):
            growing.grow(logits, step)
            if step == room or growing.over():
                break
            logits, state = model.step(growing.column(), pick(state, growing.parents()))
            logits = logits[:, -1]
    return growing.found(tree)


def _begin(
    model: LanguageModel, source: Tensor | None, lengths: Tensor | None, prompts: Sequence[Tokens]
) -> tuple[Tensor, State]:
    """(B, V) what may come first, and the state before it."""
    if source is None:
        return read_each(model, begun(model, prompts))
    return begin_from(model, source, lengths)


def begin_from(model: LanguageModel, source: Tensor, lengths: Tensor | None) -> tuple[Tensor, State]:
    """(B, V) what a text for each source may begin with, and the state before it."""
    device = device_of(model)
    start = model.start(len(source), source.to(device), None if lengths is None else lengths.to(device))
    logits, state = model.step(torch.full((len(source), 1), BOUNDARY, device=device), start)
    return logits[:, -1], state


def room_for(holds: int | None, limit: int, least: int = 1, read: int = 1) -> int:
    """Tokens that can be written: at most `limit`, and as many as the model holds beside what is `read` before."""
    room = limit if holds is None else min(limit, holds - read)
    if room < max(least, 1):
        raise UserError(f"the model holds {holds} tokens, of which {read} are read before it writes: "
                        f"there is no room for {max(least, 1)} more.")
    return room


class Growing:
    """The beams of all rows, on the model's device, and the best texts that have ended."""

    def __init__(self, beam: Beam, rows: int, room: int, device: torch.device):
        self.beam, self.room = beam, room
        self.rows = torch.arange(rows, device=device)
        self.live = torch.full((rows, beam.width), -math.inf, device=device)       # (B, W) log p of each beginning
        self.live[:, 0] = 0
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []                       # (B, W) tokens, parents, log p
        self.score = torch.full((rows, beam.best), -math.inf, device=device)       # (B, N) of texts that have ended
        self.log_prob = self.score.clone()
        self.end = torch.zeros((rows, beam.best), dtype=torch.long, device=device)     # where: step * W + place

    def grow(self, logits: Tensor, step: int) -> None:
        """Reads (B * W, V): what may follow each beginning."""
        log_probs = logits.float().log_softmax(-1).view(*self.live.shape, -1)
        if step < self.beam.least:
            log_probs[..., BOUNDARY] = -math.inf
        if step == self.room:
            log_probs[..., BOUNDARY + 1 :] = -math.inf
        total, place = (self.live[..., None] + log_probs).flatten(1).topk(self.beam.width)
        parents, tokens = place // log_probs.shape[-1], place % log_probs.shape[-1]
        self.steps.append((tokens, parents, total))
        self._finish(total.where(tokens == BOUNDARY, -math.inf), step)
        self.live = total.masked_fill(tokens == BOUNDARY, -math.inf)

    def _finish(self, ended: Tensor, step: int) -> None:
        """(B, W) log p of the texts that end here; -inf: it does not."""
        here = step * self.beam.width + torch.arange(self.beam.width, device=ended.device).expand_as(ended)
        scores = torch.cat([self.score, ended / self.beam.penalty(step + 1)], 1)
        self.score, best = scores.topk(self.beam.best)
        self.log_prob = torch.cat([self.log_prob, ended], 1).gather(1, best)
        self.end = torch.cat([self.end, here], 1).gather(1, best)

    def over(self) -> bool:
        """Can no live beginning of any row still be among its best? The one look at the device in a step.

        Log p never rises, and no penalty is greater than that of the longest text: so nothing is lost by stopping here.
        """
        hope = self.live.amax(1) / self.beam.penalty(self.room + 1)
        settled = self.score[:, -1] >= hope
        self.live = self.live.masked_fill(settled[:, None], -math.inf)
        return bool(settled.all())

    def column(self) -> Tensor:
        """(B * W, 1) the last token of each beginning."""
        return self.steps[-1][0].flatten()[:, None]

    def parents(self) -> Tensor:
        """(B * W,) the row of the state that each beginning goes on from."""
        return (self.rows[:, None] * self.beam.width + self.steps[-1][1]).flatten()

    def found(self, tree: bool) -> list[Found]:
        tokens, parents, scores = (torch.stack(parts).cpu().numpy() for parts in zip(*self.steps))    # (T, B, W)
        end, log_probs, finals = (tensor.cpu().numpy() for tensor in (self.end, self.log_prob, self.score))
        written = _trace(tokens, parents, end)
        found = []
        for row in range(len(end)):
            ends = zip(end[row] // self.beam.width, written[:, row].T, log_probs[row], finals[row])
            texts = [Hypothesis(tuple(text[:size].tolist()), float(log_prob), float(score))
                     for size, text, log_prob, score in ends if score > -math.inf]
            branches = _branches(tokens[:, row], parents[:, row], scores[:, row]) if tree else None
            found.append(Found(tuple(texts), branches))
        return found


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
    """(T, W) of one row, without what stayed only for want of anything possible."""
    steps, before = [], np.zeros(tokens.shape[1], np.int64)
    for token, parent, score in zip(tokens, parents, scores):
        alive = score > -math.inf
        steps.append(tuple(map(Branch, token[alive].tolist(), before[parent[alive]].tolist(), score[alive].tolist())))
        before = np.cumsum(alive) - 1
    return tuple(step for step in steps if step)
