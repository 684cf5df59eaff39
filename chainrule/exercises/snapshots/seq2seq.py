"""Snapshots of the lesson seq2seq: context, beam-search."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.inference.beam import Beam
from chainrule.inference.beam import beam_search as search
from chainrule.model import BOUNDARY, LanguageModel, watch
from chainrule.models.seq2seq import GlobalAttention

Random = np.random.Generator


def context(random: Random) -> dict[str, Any]:
    rows, targets, source, hidden = 3, 4, 5, 6
    q, h = (torch.from_numpy(random.normal(size=(rows, length, hidden))) for length in (targets, source))
    lengths = torch.tensor([5, 2, 3])
    dot, bilinear = GlobalAttention("dot", hidden).double(), GlobalAttention("bilinear", hidden).double()
    assert bilinear.keys is not None
    with torch.no_grad(), watch(bilinear, "alignment") as seen:
        vectors = bilinear(q, bilinear.keys_and_values(h, lengths))
        scores = bilinear.scores(q, bilinear.keys(h))
    return {
        "q": q,
        "h": h,
        "lengths": lengths,
        "W": bilinear.keys.weight,
        "dot": dot.scores(q, h),
        "multiplicative": scores,
        "alpha": seen["alignment"][0],
        "context": vectors,
    }


class TrigramTable(LanguageModel):
    """log p of a token after the two before it, from a table (V, V, V); boundaries stand before the text."""

    def __init__(self, table: Tensor):
        super().__init__()
        self.table = torch.nn.Buffer(table)

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return torch.full((rows, 1), BOUNDARY)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        history = torch.cat([state, tokens], 1)
        return self.table[history[:, :-1], history[:, 1:]], history[:, -1:]


def beam_search(random: Random) -> dict[str, Any]:
    vocab, limit = 5, 6
    widths, alphas = np.repeat([1, 2, 4], 2), np.tile([0.0, 1.0], 3)
    while True:  # until widths and penalties find different texts
        logits = random.normal(size=(vocab, vocab, vocab)) * 1.3
        logits[:, :, BOUNDARY] -= 0.3
        table = torch.from_numpy(logits).log_softmax(-1)
        model = TrigramTable(table.float())
        found = [
            search(model, Beam(int(width), float(alpha), limit=limit), prompts=[np.array([], int)])[0].texts[0]
            for width, alpha in zip(widths, alphas)
        ]
        if len({text.tokens for text in found}) >= 3 and found[-1].tokens != found[-2].tokens:
            break
    return {
        "table": table,
        "limit": limit,
        "widths": widths,
        "alphas": alphas,
        "texts": [" ".join(map(str, text.tokens)) for text in found],
        "scores": [text.score for text in found],
    }
