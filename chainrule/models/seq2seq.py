"""Sequence to sequence: a recurrent encoder reads the source, a recurrent decoder writes the target, with attention.

    encoder        recurrent, or feed-forward over a window of source tokens (`model.encoder=feedforward`)
    no attention   the decoder starts from the encoder's last state, the bottleneck (Sutskever et al. 2014)
    attention      e_ti = score(s_t, h_i);   α = softmax(e);   c_t = Σ_i α_ti h_i;   o_t = tanh(W [s_t, c_t] + b)
    score          dot s·h,  bilinear s·Wh (Luong et al. 2015),  additive v·tanh(Ws + Uh + b) (Bahdanau et al. 2015)

The queries are the hidden states of the decoder's first layers, and the layers above read the context vectors, so that
teacher forcing runs all tokens of a text at once, in fused kernels. State: the encoder's vectors and their keys, and
the decoder's hidden states.

Shapes: B rows, T tokens, S source tokens or vectors, L layers, H hidden units, E embedding.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from chainrule.errors import UserError
from chainrule.layers.attention import padding_mask
from chainrule.layers.cells import CELLS, Vectors
from chainrule.layers.embedding import (
    FeatureProjection,
    NeuralLanguageModel,
    SourceSettings,
    TokenEmbedding,
    checked_source,
    make_picture_encoder,
)
from chainrule.layers.recurrent import RecurrentStack
from chainrule.model import State, Tap
from chainrule.models.rnn import StackSettings, make_dropouts, make_stack
from chainrule.settings import Count, Range, Size


@dataclass(frozen=True)
class Seq2SeqSettings(StackSettings, SourceSettings):
    cell: Literal["lstm", "gru", "tanh", "relu", "sigmoid"] = "lstm"  # the last three: Elman's cell with that σ
    embedding: Size | None = None            # embedding dimension; none: as many as hidden units
    bidirectional: bool = True               # half of the encoder's units read from right to left
    attention: Literal["none", "dot", "bilinear", "additive"] = "bilinear"  # the score function; none: no attention
    encoder: Literal["recurrent", "feedforward"] = "recurrent"  # feedforward: each vector from a window of the source
    encoder_window: Annotated[int, Range(0, 1000)] = 1  # source tokens on each side in that window; 0: the token alone
    query_layers: Count = 1                  # decoder layers below the attention; those above read its output

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query_layers > self.layers:
            raise UserError(f"model.query_layers={self.query_layers}: it must be at most model.layers={self.layers}.")


class Seq2Seq(NeuralLanguageModel):
    tasks = ("translate", "caption", "span", "denoise")
    needs_source = True
    embedding_parameters = ("embedding.weight", "source_embedding", "pictures")
    source_parameters = ("encoder.*", "source_embedding.*", "attention.keys.*")
    stacked_on: ClassVar[dict[str, str]] = {"above": "below"}
    Settings = Seq2SeqSettings
    recipe: ClassVar[dict[str, Any]] = {"model.dropout": 0.3, "train.lr": 2e-3}

    def __init__(self, settings: Seq2SeqSettings, vocab: int):
        super().__init__()
        self.settings, size, hidden = settings, settings.embedding or settings.hidden, settings.hidden
        below = settings.layers if settings.attention == "none" else settings.query_layers
        above = settings.layers - below
        self.drop_input, self.between, self.drop_output = make_dropouts(settings)
        self.embedding = TokenEmbedding(vocab, size, hidden, tied=settings.tied, dropout=settings.embedding_dropout)
        self.label_smoothing = self.embedding.label_smoothing = settings.label_smoothing
        self.pictures = make_picture_encoder(settings)
        self.source_embedding = self._source_embedding(size)
        self.encoder = self._encoder(size)
        self.below = self._decoder_layers(size, below)
        self.above = self._decoder_layers(2 * hidden, above) if above else None
        self.attention = None if settings.attention == "none" else GlobalAttention(settings.attention, hidden)
        self.combine = nn.Linear(2 * hidden, hidden) if self.attention else None
        self.hidden = Tap()                                    # (B, T, H): the vectors that predict the next tokens

    def _encoder(self, size: int) -> "RecurrentStack | WindowEncoder":
        if self.settings.encoder == "feedforward":
            return WindowEncoder(self.settings, size)
        return make_stack(self.settings, self.settings.cell, size, self.between)

    def _decoder_layers(self, inputs: int, layers: int) -> RecurrentStack:
        """Their initial state is the encoder's last."""
        settings = self.settings
        return RecurrentStack(
            settings.cell, inputs, settings.hidden, layers, between=self.between, weight_dropout=settings.weight_dropout
        )

    def _source_embedding(self, size: int) -> nn.Module | None:
        """None: source and target share one embedding."""
        settings = self.settings
        if settings.vector_size is not None:
            return FeatureProjection(settings.vector_size, size)
        if settings.source_vocab is not None:
            return TokenEmbedding(settings.source_vocab, size, None, dropout=settings.embedding_dropout)
        return None

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        """Runs the encoder."""
        source, real_lengths = checked_source(self.settings, rows, source, lengths)
        source, lengths = (source, lengths) if self.pictures is None else (self.pictures(source), None)
        x = self.drop_input((self.source_embedding or self.embedding)(source))
        vectors, end = self.encoder(x, self.encoder.start(rows), lengths)                  # (B, S, H), (B, L, H)
        below, above = _cut(end, len(self.below.layers))
        if self.attention is None:
            return {"below": below}
        return {"below": below, "above": above, "source": self.attention.keys_and_values(vectors, real_lengths)}

    def hidden_states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, below = self.below(self.drop_input(self.embedding(tokens)), state["below"])
        if self.attention is None or self.combine is None:
            return self.drop_output(self.hidden(hidden)), {"below": below}
        context, above = self.attention(hidden, state["source"]), state["above"]
        if self.above is not None:
            hidden, above = self.above(self.between(torch.cat([hidden, context], -1)), above)
        hidden = torch.tanh(self.combine(torch.cat([hidden, context], -1)))
        return self.drop_output(self.hidden(hidden)), {**state, "below": below, "above": above}


class WindowEncoder(nn.Module):
    """A feed-forward encoder: it computes the vectors of all source tokens independently, each from a window.

        h_i = tanh(W [x_{i-n}, …, x_i, …, x_{i+n}] + b);   the decoder's initial state: tanh(V mean_i(h_i) + c)
    """

    def __init__(self, settings: Seq2SeqSettings, inputs: int):
        super().__init__()
        self.names, self.layers, self.around = CELLS[settings.cell].state, settings.layers, settings.encoder_window
        self.window = nn.Linear((2 * self.around + 1) * inputs, settings.hidden)
        self.state = nn.Linear(settings.hidden, len(self.names) * settings.layers * settings.hidden)

    def start(self, rows: int) -> Vectors:
        return {}

    def forward(self, x: Tensor, state: Vectors, lengths: Tensor | None = None) -> tuple[Tensor, Vectors]:
        """(B, S, E) -> (B, S, H), and the decoder's initial state (B, L, H) by name. Padding counts as zeros."""
        here = x.new_ones(x.shape[:2], dtype=torch.bool)[..., None]                                # (B, S, 1)
        if lengths is not None:
            here = (torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None])[..., None]
        padded = pad(x.where(here, 0), (0, 0, self.around, self.around))
        windows = padded.unfold(1, 2 * self.around + 1, 1).flatten(2)                              # (B, S, E · window)
        vectors = torch.tanh(self.window(windows)).where(here, 0)
        mean = vectors.sum(1) / here.sum(1)
        parts = torch.tanh(self.state(mean)).view(len(x), len(self.names), self.layers, -1)
        return vectors, dict(zip(self.names, parts.unbind(1)))


class GlobalAttention(nn.Module):
    """Attention of every target token to all vectors of its source (Luong et al. 2015, Bahdanau et al. 2015)."""

    def __init__(self, score: str, hidden: int):
        super().__init__()
        self.additive = score == "additive"
        self.keys = None if score == "dot" else nn.Linear(hidden, hidden, bias=self.additive)
        self.queries = nn.Linear(hidden, hidden, bias=False) if self.additive else nn.Identity()
        self.sum = nn.Linear(hidden, 1, bias=False) if self.additive else None
        self.alignment = Tap()                                 # (B, T, S): α

    def keys_and_values(self, vectors: Tensor, lengths: Tensor) -> Vectors:
        """(B, S, H), (B,): computed once for a source. With the dot score the vectors are their own keys."""
        keys = {} if self.keys is None else {"keys": self.keys(vectors)}
        return {"values": vectors, "length": lengths} | keys

    def forward(self, hidden: Tensor, source: Vectors) -> Tensor:
        """(B, T, H) -> (B, T, H): the context vectors."""
        scores = self.scores(hidden, source.get("keys", source["values"])).float()
        mask = padding_mask(source["length"], scores.shape[-1])[:, 0]                              # (B, 1, S)
        weights = self.alignment(scores.masked_fill(~mask, -math.inf).softmax(-1))
        context: Tensor = weights.to(source["values"].dtype) @ source["values"]
        return context

    def scores(self, hidden: Tensor, keys: Tensor) -> Tensor:
        """(B, T, H), (B, S, H) -> (B, T, S)"""
        queries = self.queries(hidden)
        if self.sum is None:
            scores: Tensor = queries @ keys.mT
        else:
            scores = self.sum(torch.tanh(queries[:, :, None] + keys[:, None]))[..., 0]     # all pairs: (B, T, S, H)
        return scores


def _cut(state: Vectors, layers: int) -> tuple[Vectors, Vectors]:
    """The state of the first layers, and of the rest."""
    below = {name: part[:, :layers] for name, part in state.items()}
    return below, {name: part[:, layers:] for name, part in state.items()}
