"""What a text is about: tokens of the same vocabulary, of one of their own, or vectors (frames, features of images).

Shapes: B rows, S source tokens or vectors, F numbers in a vector.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chainrule.errors import UserError


@dataclass(frozen=True)
class SourceSettings:
    source_vocab: int | None = None     # tokens in a vocabulary of the source's own; none: text and source share one
    source_features: int | None = None  # numbers in each vector of the source, where it is vectors; none: it is tokens
    label_smoothing: float = 0.0              # share of each target that learning spreads evenly over all words

    def check_source(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"model.label_smoothing={self.label_smoothing:g}: it is a share, from 0 to less than 1.")
        for name in ("source_vocab", "source_features"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise UserError(f"model.{name}={size}: it is 1 or more, or none.")
        if self.source_vocab is not None and self.source_features is not None:
            raise UserError("model.source_vocab is of tokens, model.source_features of vectors; a source is either.")


class FromVectors(nn.Linear):
    """(…, F) -> (…, D) in the precision of the model, whichever the vectors come in."""

    def forward(self, vectors: Tensor) -> Tensor:
        return super().forward(vectors.to(self.weight.dtype))


def told(settings: SourceSettings, rows: int, source: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The source and its lengths (B,), if it is such as the settings say; without lengths all of it is real."""
    features = settings.source_features
    if source is None:
        raise UserError("this model writes about a source, and it was given none: start(rows, source, lengths).")
    shape = " x ".join(map(str, source.shape))
    if source.dim() != (2 if features is None else 3) or (features is not None and source.shape[2] != features):
        wanted = "tokens, rows x tokens" if features is None else f"vectors, rows x vectors x {features}"
        raise UserError(f"the source is {shape}, and this model reads {wanted}. See model.source_features.")
    if len(source) != rows or source.shape[1] == 0:
        raise UserError(f"the source is {shape} for {rows} texts: each text has a source, and none is empty.")
    if lengths is None:
        lengths = torch.full((rows,), source.shape[1], device=source.device)
    return source, lengths
