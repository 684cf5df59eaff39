"""Minimum Bayes risk (MBR) decoding: of many sampled texts, the one that is most similar to all the others.

    argmax over texts of  1/N Σ over samples of ROUGE-L(text, sample)      (Goel & Byrne 2000)

The most likely text is often a short one that says little: it is likely because it is short, and few others are similar
to it. What many samples share is what the model is more certain of. The random numbers of a source do not depend on the
sources that are in the same batch.

Shapes: B sources, N samples of each, T steps, R = B * N rows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.beam import MAX_LIMIT, MAX_WIDTH, Beam, Decode, ScoredText, max_new_tokens
from chainrule.inference.decoding import DecodeLoop, prefill_source, sync_every
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.metrics import rouge_words, subsequence_f1
from chainrule.inference.sampling import Sampling, SamplingStrategy, require_possible, uniform_blocks, uniforms
from chainrule.model import BOUNDARY, Batch, LanguageModel

GOING_SHARE = 0.5    # on a GPU, ended rows are dropped once at most this share goes on: another shape needs a new graph


@dataclass(frozen=True)
class MinimumBayesRisk:
    samples: int = 64                                             # texts sampled for each source
    sampling: Sampling = field(default_factory=Sampling)
    limit: int = 256                                              # most tokens in a text, its end not counted

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= MAX_WIDTH:
            raise UserError(f"samples={self.samples} is not valid: it must be from 1 to {MAX_WIDTH:,}.")
        if not 1 <= self.limit <= MAX_LIMIT:
            raise UserError(f"limit={self.limit} is not valid: it must be from 1 to {MAX_LIMIT:,}.")

    @property
    def rows(self) -> int:
        """Rows that one source has in the decode loop."""
        return self.samples

    def texts(self, model: LanguageModel, batch: Batch, ids: Sequence[int], decode: Decode) -> list[list[ScoredText]]:
        """The samples for each source of a batch, the most similar first; `ids`: the number of each source."""
        assert batch.source is not None
        drawn = draw_texts(model, self, batch.source, batch.source_lengths, ids)
        return [rank_by_similarity([decode(tokens) for tokens in texts]) for texts in drawn]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        return {"samples": self.samples, "temperature": self.sampling.as_dict()["temperature"], "limit": self.limit}


def choose_search(
    width: int | None = None, alpha: float | None = None, limit: int | None = None, samples: int | None = None,
    temperature: float = 1.0,
) -> Beam | MinimumBayesRisk:  # fmt: skip
    """How texts are searched for: by a beam, or, where `samples` are asked for, by minimum Bayes risk."""
    given: dict[str, Any] = {"width": width, "alpha": alpha, "limit": limit}
    beam = Beam(**{name: value for name, value in given.items() if value is not None})
    return beam if samples is None else MinimumBayesRisk(samples, Sampling(temperature), beam.limit)


@torch.inference_mode()
def draw_texts(
    model: LanguageModel, mbr: MinimumBayesRisk, source: Tensor, lengths: Tensor | None, ids: Sequence[int]
) -> list[list[list[int]]]:
    """The tokens of N samples for each source; `ids` are their numbers among all sources."""
    limit = max_new_tokens(model.max_tokens(source), mbr.limit)
    with eval_mode(model):
        begun = prefill_source(model, source, lengths).repeat(mbr.samples)
        loop = DecodeLoop(model, begun, SamplingStrategy(mbr.sampling, ends=True))
        columns = torch.cat(list(_blocks(loop, mbr, limit, ids, device_of(model))))              # (T, R)
    texts = columns.T.reshape(len(source), mbr.samples, -1)                                      # (B, N, T)
    return [[list(takewhile(lambda token: token != BOUNDARY, text)) for text in some] for some in texts.tolist()]


def _blocks(
    loop: DecodeLoop, mbr: MinimumBayesRisk, limit: int, ids: Sequence[int], device: torch.device
) -> Iterator[Tensor]:
    """(T, R) tokens of a few steps at a time, until all rows have ended. Rows that have ended are boundaries."""
    at_once, share = sync_every(device), 1.0 if device.type == "cpu" else GOING_SHARE
    going = torch.arange(len(ids) * mbr.samples, device=device)        # the rows that are still in the loop
    random = uniform_blocks(lambda step: _uniforms(mbr, step, ids), at_once, device)
    uniform = next(random)
    for first in range(0, limit, at_once):
        columns = loop.next_tokens(uniform[: limit - first, going], limit - first)
        uniform = next(random)                                         # while a GPU is still at work
        require_possible(loop)
        written = torch.full((len(columns), len(ids) * mbr.samples), BOUNDARY, device=device)
        yield written.index_copy(1, going, columns)
        alive = (columns[-1] != BOUNDARY).nonzero()[:, 0]
        if not len(alive):
            return
        if len(alive) < len(going) and len(alive) <= share * len(going):
            loop.select(alive)
            going = going[alive]


def _uniforms(mbr: MinimumBayesRisk, step: int, ids: Sequence[int]) -> Tensor:
    """(R,): the random numbers of a step, which depend on the number of a source only."""
    every = uniforms(mbr.sampling.seed, step, (max(ids) + 1) * mbr.samples)
    return every.view(-1, mbr.samples)[ids].flatten()


def rank_by_similarity(texts: Sequence[str]) -> list[ScoredText]:
    """Each different text once, with its mean ROUGE-L to all of them, from 0 to 1; the most similar first."""
    counts = Counter(texts)
    words = [rouge_words(text) for text in counts]
    similarity = [
        sum(many * subsequence_f1(ours, theirs) for theirs, many in zip(words, counts.values())) / len(texts)
        for ours in words
    ]
    return sorted(zip(counts, similarity), key=lambda pair: -pair[1])
