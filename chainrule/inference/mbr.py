"""Minimum Bayes risk (MBR) decoding: of many texts that a model writes by chance, the one that is most like the others.

    argmax over texts of  1/N Σ over samples of ROUGE-L(text, sample)      (minimum Bayes risk; Goel & Byrne 2000)

The likeliest text is often a short one that says little: it is likely because it is short, and it is like few others.
What many samples share is what the model is surer of. Each source has its own luck, whatever is beside it.

Shapes: B sources, N samples of each, T tokens written, R = B * N rows, V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.beam import Decode, ScoredText, begin_from, room_for
from chainrule.inference.evaluate import DIVERGED
from chainrule.inference.forward import eval_mode
from chainrule.inference.metrics import common_share, words_of
from chainrule.inference.sampling import Sampling, sample_token, uniforms
from chainrule.model import BOUNDARY, Batch, LanguageModel, pick


@dataclass(frozen=True)
class MinimumBayesRisk:
    samples: int = 64                                             # texts written by chance for each source
    sampling: Sampling = field(default_factory=Sampling)
    limit: int = 256                                              # most tokens in a text, its end not counted

    def __post_init__(self) -> None:
        for name in ("samples", "limit"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} will not do: it must be 1 or more.")

    @property
    def rows(self) -> int:
        """Texts of one source that are under way together."""
        return self.samples

    def texts(self, model: LanguageModel, batch: Batch, ids: Sequence[int], decode: Decode) -> list[list[ScoredText]]:
        """Those drawn for each source of a batch, which is the `ids`-th of all; the likest first."""
        assert batch.source is not None
        drawn = draw_texts(model, self, batch.source, batch.source_lengths, ids)
        return [rank_by_similarity([decode(tokens) for tokens in texts]) for texts in drawn]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        return {"samples": self.samples, "temperature": self.sampling.as_dict()["temperature"], "limit": self.limit}


@torch.inference_mode()
def draw_texts(
    model: LanguageModel, how: MinimumBayesRisk, source: Tensor, lengths: Tensor | None, ids: Sequence[int]
) -> list[list[list[int]]]:
    """The tokens of N texts for each source, which is the `ids`-th of all."""
    room = room_for(model.max_tokens(source), how.limit)
    written: list[Tensor] = []
    with eval_mode(model):
        logits, state = begin_from(model, source, lengths)
        going = torch.arange(len(source) * how.samples, device=logits.device)                    # rows not ended yet
        each = going // how.samples
        logits, state = pick(logits, each), pick(state, each)
        for step in range(room):
            luck = uniforms(how.sampling.seed, step, (max(ids) + 1) * how.samples).view(-1, how.samples)[ids].flatten()
            tokens, possible = sample_token(logits, how.sampling, luck.to(logits.device)[going])
            if not possible.all():
                raise UserError(f"{DIVERGED}.")
            column = torch.full((len(source) * how.samples,), BOUNDARY, device=logits.device)
            written.append(column.scatter(0, going, tokens))
            alive = (tokens != BOUNDARY).nonzero()[:, 0]
            if not len(alive) or step + 1 == room:
                break
            if len(alive) < len(going):
                tokens, state, going = tokens[alive], pick(state, alive), going[alive]
            logits, state = model.step(tokens[:, None], state)
            logits = logits[:, -1]
    texts = torch.stack(written, 1).view(len(source), how.samples, -1)                           # (B, N, T)
    return [[list(takewhile(lambda token: token != BOUNDARY, text)) for text in some] for some in texts.tolist()]


def rank_by_similarity(texts: Sequence[str]) -> list[ScoredText]:
    """Each different text once, with how like it is to all of them on average, from 0 to 1; the likest first."""
    counts = Counter(texts)
    words = [words_of(text) for text in counts]
    likeness = [
        sum(many * common_share(ours, theirs) for theirs, many in zip(words, counts.values())) / len(texts)
        for ours in words
    ]
    return sorted(zip(counts, likeness), key=lambda pair: -pair[1])
