"""Transformer encoder: bidirectional attention and masked language modelling (BERT, Devlin et al. 2019).

Every token attends to all of its text. Tokens that were masked are predicted from both sides: the task is `mask`. The
hidden vectors serve heads that classify or tag (heads.py), and their mean is the vector of a sentence. With BERT's
settings it reads BERT's files (formats/hugging_face.py). It has no state and cannot generate text.

Shapes: B rows, T tokens, D width, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule.errors import UserError
from chainrule.layers import kv_cache
from chainrule.layers.blocks import (
    ACTIVATIONS,
    InputEmbedding,
    TransformerStack,
    make_norm,
    output_projection,
    reset_output_projection,
)
from chainrule.layers.cross_entropy import chunked_cross_entropy
from chainrule.layers.embedding import FeatureProjection, FrameSettings, PretrainedVectors
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Batch, Model, State
from chainrule.settings import Range


@dataclass(frozen=True)
class EncoderSettings(TransformerSettings, PretrainedVectors, FrameSettings):
    tied: bool | None = None    # weight tying: output matrix = embedding; none: where it saves a fifth of the weights
    segments: Annotated[int, Range(0, 1000)] = 0  # segment embeddings, as for BERT's pairs of texts; 0: none
    transform: bool = False     # linear layer, activation and norm before the output, and an output bias (BERT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "sliding" in self.attention:
            raise UserError(f"model.window={self.window}: an encoder attends to all of its text. Leave it out, or use "
                            "model.attention=local.")
        if self.features is not None and (self.segments or self.transform or self.vectors):
            raise UserError("model.segments, model.transform and model.vectors are for tokens, and model.features says "
                            "that vectors are read. Leave one or the other out.")
        if self.transform and self.gated:
            raise UserError(f"model.transform has no gates, and model.activation={self.activation} needs them. Choose "
                            "another.")


class TransformerEncoder(Model):
    tasks = ("mask", "classify", "tag")
    bidirectional = True
    embedding_parameters = ("embedding", "segments", "stack.bias")
    begins_from = ("gpt:GPT",)                  # the same blocks; they learn to see both sides by `--task mask`
    Settings = EncoderSettings
    recipe: ClassVar[dict[str, Any]] = {"train.optimizer": "muon"}
    backward = 0

    def __init__(self, settings: EncoderSettings, vocab: int):
        super().__init__()
        self.settings, self.context = settings, settings.context
        self.width = self.inputs = settings.width
        self.embedding = InputEmbedding(settings, _inputs(settings, vocab))
        self.segments = nn.Embedding(settings.segments, settings.width) if settings.segments else None
        self.stack = TransformerStack(settings, causal=False)
        self.transform = Transform(settings) if settings.transform else nn.Identity()
        tied = settings.tied if settings.features is None else True                    # no token is predicted of frames
        self.output = output_projection(settings, tied, vocab, self.stack)             # None: tied to the embedding
        self.bias = nn.Parameter(torch.zeros(vocab)) if settings.transform else None
        self._reset()

    @property
    def embeddings(self) -> Tensor:
        """(V, D): the vectors of the tokens."""
        return self.embedding.tokens.weight

    def _reset(self) -> None:
        self.embedding.reset(tied=self.output is None and self.settings.features is None)
        if self.segments is not None:
            nn.init.normal_(self.segments.weight, std=self.settings.init or 0.02)
        if self.output is not None:
            reset_output_projection(self.settings, self.output)

    @property
    def output_matrix(self) -> Tensor:
        """(V, D): the logits are its products with a hidden vector."""
        weight: Tensor = (self.output or self.embedding.tokens).weight
        return weight

    def encode(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        more: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """(B, T) or (B, T, F) -> (B, T, D). `more` (B, T, D) is added to the inputs; `segments` (B, T): None is 0."""
        kv_cache.check_length(tokens.shape[1], self.context)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if self.segments is not None:
            segment = self.segments(torch.zeros_like(tokens) if segments is None else segments)
            more = segment if more is None else segment + more
        hidden: Tensor = self.stack(self.embedding(tokens, positions, more), positions, lengths)[0]
        return hidden

    def forward(self, batch: Batch) -> Tensor:
        return self.logits(self.encode(batch.tokens, batch.lengths))

    def masked_logits(self, batch: Batch) -> Tensor:
        """(N, V): of the targets that count, row by row."""
        return self.logits(self.encode(batch.tokens, batch.lengths)[batch.loss_mask])

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, V)"""
        return linear(self.transform(hidden), self.output_matrix, self.bias)

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        hidden, mask = self.encode(batch.tokens, batch.lengths), batch.loss_mask
        if not hidden.is_cuda and mask.any():    # few tokens are masked; a GPU would wait for their number
            hidden, batch = hidden[mask], Batch(batch.tokens[mask], batch.targets[mask])
        return *chunked_cross_entropy(self.transform(hidden), self.output_matrix, self.bias, batch), None


def _inputs(settings: EncoderSettings, vocab: int) -> nn.Embedding | nn.Linear:
    if settings.features is not None:
        return FeatureProjection(settings.features, settings.width)
    return nn.Embedding(vocab, settings.width)


class Transform(nn.Module):
    """The prediction head of BERT between the last hidden vector and the output matrix."""

    def __init__(self, settings: EncoderSettings):
        super().__init__()
        self.map = nn.Linear(settings.width, settings.width, settings.biases)
        self.activation = ACTIVATIONS[settings.activation]
        self.norm = make_norm(settings, settings.width)
        nn.init.normal_(self.map.weight, std=settings.init or 1 / math.sqrt(settings.width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.activation(self.map(x)))
        return out
