"""A Transformer encoder: every token sees all of its text, before it and behind it (Devlin et al. 2019).

Words that were hidden from it are foretold from both sides: its task is `mask`. Its vectors serve heads (heads.py), and
their mean stands for a sentence. With BERT's settings it reads BERT's files (formats/bert.py). It cannot go on.

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
from chainrule.layers.blocks import ACTIVATIONS, Embedding, TransformerStack, make_norm, make_output, reset_output
from chainrule.layers.cross_entropy import chunked_cross_entropy
from chainrule.layers.embedding import PretrainedVectors
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Batch, Model, State
from chainrule.settings import Range


@dataclass(frozen=True)
class EncoderSettings(TransformerSettings, PretrainedVectors):
    tied: bool | None = None    # weight tying: output matrix = embedding; none: where it saves a fifth of the weights
    segments: Annotated[int, Range(0, 1000)] = 0  # segment embeddings, as for BERT's pairs of texts; 0: none
    transform: bool = False     # linear layer, activation and norm before the output, and an output bias (BERT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None:
            raise UserError(f"model.window={self.window}: an encoder sees all of its text. Leave it out.")
        if self.transform and self.activation == "swiglu":
            raise UserError("model.transform has no gates, and model.activation=swiglu needs them. Choose another.")


class TransformerEncoder(Model):
    tasks = ("mask", "classify", "tag")
    bidirectional = True
    embedding_parameters = ("embedding", "segments", "stack.bias")
    Settings = EncoderSettings
    recipe: ClassVar[dict[str, Any]] = {"train.optimizer": "muon"}
    backward = 0

    def __init__(self, settings: EncoderSettings, vocab: int):
        super().__init__()
        self.settings, self.context = settings, settings.context
        self.width = self.inputs = settings.width
        self.embedding = Embedding(settings, nn.Embedding(vocab, settings.width))
        self.segments = nn.Embedding(settings.segments, settings.width) if settings.segments else None
        self.stack = TransformerStack(settings, causal=False)
        self.transform = Transform(settings) if settings.transform else nn.Identity()
        self.output = make_output(settings, settings.tied, vocab, self.stack)
        self.bias = nn.Parameter(torch.zeros(vocab)) if settings.transform else None
        self._reset()

    @property
    def embeddings(self) -> Tensor:
        """(V, D): the vectors by which it knows its tokens."""
        return self.embedding.words.weight

    def _reset(self) -> None:
        self.embedding.reset(compared=self.output is None)
        if self.segments is not None:
            nn.init.normal_(self.segments.weight, std=self.settings.init or 0.02)
        if self.output is not None:
            reset_output(self.settings, self.output)

    @property
    def matrix(self) -> Tensor:
        """(V, D): what a vector is compared with to foretell the word that was hidden."""
        weight: Tensor = (self.output or self.embedding.words).weight
        return weight

    def encode(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        more: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """(B, T) -> (B, T, D). `more` is added to the vectors of words; `segments` (B, T), without which all is one."""
        kv_cache.refuse_more(tokens.shape[1], self.context)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if self.segments is not None:
            which = self.segments(torch.zeros_like(tokens) if segments is None else segments)
            more = which if more is None else which + more
        vectors: Tensor = self.stack(self.embedding(tokens, places, more), places, lengths)[0]
        return vectors

    def forward(self, batch: Batch) -> Tensor:
        return linear(self.transform(self.encode(batch.tokens, batch.lengths)), self.matrix, self.bias)

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        vectors, counted = self.encode(batch.tokens, batch.lengths), batch.loss_mask
        if not vectors.is_cuda and counted.any():    # few words were hidden; a GPU would have to wait to know how many
            vectors, batch = vectors[counted], Batch(batch.tokens[counted], batch.targets[counted])
        return *chunked_cross_entropy(self.transform(vectors), self.matrix, self.bias, batch), None


class Transform(nn.Module):
    """What BERT does to a vector before it is compared with the words."""

    def __init__(self, settings: EncoderSettings):
        super().__init__()
        self.map = nn.Linear(settings.width, settings.width, settings.biases)
        self.activation = ACTIVATIONS[settings.activation]
        self.norm = make_norm(settings, settings.width)
        nn.init.normal_(self.map.weight, std=settings.init or 1 / math.sqrt(settings.width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.activation(self.map(x)))
        return out
