"""The source that a text is generated from: tokens to translate, or feature vectors (image patches, audio frames).

Shapes: B rows, S source tokens or vectors, F features of a vector.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.settings import BelowOne, Settings, Size


@dataclass(frozen=True)
class SourceSettings(Settings):
    source_vocab: Size | None = None    # size of the source's own vocabulary; none: source and target share one
    source_features: Size | None = None  # dimension of the source's vectors, where it is vectors; none: it is tokens
    label_smoothing: BelowOne = 0.0     # label smoothing: fraction of each target spread evenly over the vocabulary

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_vocab is not None and self.source_features is not None:
            raise UserError("model.source_vocab is of tokens, model.source_features of vectors; a source is either.")


class FeatureProjection(nn.Linear):
    """(…, F) -> (…, D) in the precision of the model, whatever the precision of the features."""

    def forward(self, vectors: Tensor) -> Tensor:
        return super().forward(vectors.to(self.weight.dtype))


def checked_source(
    settings: SourceSettings, rows: int, source: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The source and its lengths (B,), if their shapes agree with the settings; no lengths: no padding."""
    features = settings.source_features
    if source is None:
        raise UserError("this model needs a source, and it was given none: start(rows, source, lengths).")
    shape = " x ".join(map(str, source.shape))
    if source.dim() != (2 if features is None else 3) or (features is not None and source.shape[2] != features):
        expected = "tokens, rows x tokens" if features is None else f"vectors, rows x vectors x {features}"
        raise UserError(f"the source is {shape}, and this model reads {expected}. See model.source_features.")
    if len(source) != rows or source.shape[1] == 0:
        raise UserError(f"the source is {shape} for {rows} texts: each text needs one source, and none may be empty.")
    if lengths is None:
        lengths = torch.full((rows,), source.shape[1], device=source.device)
    return source, lengths
