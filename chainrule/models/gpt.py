"""GPT: a Transformer that sees only what is behind it, and says what comes next (Radford et al. 2018).

By default as the best small ones are built today: rotary positions, RMS norms before each part and on queries and keys,
ReLU², no biases, projections that begin at zero; the presets are the published ones. State: the keys and values of what
was read, and its length. With a source, the text goes on from it in one row: 0 x1 … xm 0 y1 … yn.

Shapes: B rows, T tokens, S source tokens, D width.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from chainrule.model import BOUNDARY, Batch
from chainrule.models.cache import Cache
from chainrule.models.decoder import Decoder, DecoderSettings

GPTSettings = DecoderSettings


class GPT(Decoder):
    Settings = GPTSettings
    recipe: ClassVar[dict[str, Any]] = {"train.optimizer": "muon"}
    backward = 0

    def __init__(self, settings: GPTSettings, vocab: int):
        super().__init__(settings, vocab)
        self.width = self.inputs = settings.width

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, more: Tensor | None = None) -> Tensor:
        """A body for heads (heads.py): (B, T) -> (B, T, D). Padding is behind all that is real, so nothing sees it."""
        return self._from_nothing(tokens, more=more)[0]

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        state = super().start(rows)
        if source is None:
            return state
        _, state = self.read(_begun(source), state)
        return state if lengths is None else {**state, "length": lengths.clone()}    # what lies behind is written over

    def room(self, source: Tensor | None) -> int:
        return self.context - (0 if source is None else source.shape[1])

    def _whole(self, batch: Batch) -> Tensor:
        if batch.source is None:
            return super()._whole(batch)
        rows, behind = _begun(batch.source), batch.source_lengths
        if behind is None:
            behind = torch.full((len(rows),), rows.shape[1], device=rows.device)
        places = behind[:, None] + torch.arange(batch.tokens.shape[1], device=rows.device)             # (B, T)
        joined = torch.cat([rows, torch.full_like(batch.tokens, BOUNDARY)], 1).scatter(1, places, batch.tokens)
        hidden, _ = self._from_nothing(joined)                                                         # (B, S + T, D)
        return hidden.gather(1, places[..., None].expand(-1, -1, self.width))


def _begun(source: Tensor) -> Tensor:
    """(B, S): x1 … xm 0 as 0 x1 … xm, for a text begins with the boundary, and so does the one that goes on from it."""
    return torch.cat([torch.full_like(source[:, :1], BOUNDARY), source[:, :-1]], 1)
