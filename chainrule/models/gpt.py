"""GPT: a Transformer that sees only what is behind it, and says what comes next (Radford et al. 2018).

By default as the best small ones are built today: rotary positions, RMS norms before each part and on queries and keys,
ReLU², no biases, projections that begin at zero; the presets are the published ones. State: the keys and values of what
was read, and its length.

Shapes: B rows, T tokens, D width.
"""

from typing import Any, ClassVar

from torch import Tensor

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
