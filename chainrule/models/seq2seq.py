"""Sequence to sequence: a recurrent encoder reads the source, a recurrent decoder goes on from where it ended.

    no attention   all that passes is C, the encoder's last state: the bottleneck (Sutskever et al. 2014)
    attention      e_ti = score(s_t, h_i);   α = softmax(e);   c_t = Σ_i α_ti h_i;   o_t = tanh(W [s_t, c_t] + b)
    score          dot s·h,  bilinear s·Wh (Luong et al. 2015),  additive v·tanh(Ws + Uh + b) (Bahdanau et al. 2015)

Attention asks with the decoder's first layers, and those above read what it found, so all tokens of a text are learned
at once by fused kernels. State: the encoder's vectors and what is compared with them, the decoder's vectors.

Shapes: B rows, T tokens, S source tokens or vectors, L layers, H hidden units, E embedding.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.layers.attention import padding_mask
from chainrule.layers.cells import Vectors
from chainrule.layers.embedding import NeuralLanguageModel, TokenEmbedding
from chainrule.layers.recurrent import Stack
from chainrule.layers.source import FromVectors, SourceSettings, told
from chainrule.model import State, Tap
from chainrule.models.rnn import RecurrentSettings, make_dropouts, make_reader
from chainrule.settings import Count


@dataclass(frozen=True)
class Seq2SeqSettings(RecurrentSettings, SourceSettings):
    cell: Literal["lstm", "gru", "tanh", "relu", "sigmoid"] = "lstm"  # the last three: Elman's cell with that σ
    bidirectional: bool = True               # half of the encoder's units read from right to left
    attention: Literal["none", "dot", "bilinear", "additive"] = "bilinear"  # the score function; none: no attention
    asks: Count = 1                          # decoder layers below the attention; those above read its output

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.asks > self.layers:
            raise UserError(f"model.asks={self.asks}: it must be at most model.layers={self.layers}.")


class Seq2Seq(NeuralLanguageModel):
    tasks = ("translate", "caption")
    needs_source = True
    Settings = Seq2SeqSettings
    recipe: ClassVar[dict[str, Any]] = {"model.dropout": 0.3, "train.lr": 2e-3}

    def __init__(self, settings: Seq2SeqSettings, vocab: int):
        super().__init__()
        self.settings, size, hidden = settings, settings.embedding or settings.hidden, settings.hidden
        below = settings.layers if settings.attention == "none" else settings.asks
        above = settings.layers - below
        self.drop_input, self.between, self.drop_output = make_dropouts(settings)
        self.words = TokenEmbedding(vocab, size, hidden, tied=settings.tied, dropout=settings.embedding_dropout)
        self.words.label_smoothing = settings.label_smoothing
        self.source_words = self._source_words(size)
        self.encoder = make_reader(settings, settings.cell, size, self.between)
        self.below = self._stack(size, below)
        self.above = self._stack(2 * hidden, above) if above else None
        self.attention = None if settings.attention == "none" else Attention(settings.attention, hidden)
        self.combine = nn.Linear(2 * hidden, hidden) if self.attention else None
        self.hidden = Tap()                                    # (B, T, H): from which words are foretold

    def _stack(self, inputs: int, layers: int) -> Stack:
        """Layers of the decoder, which begin where the encoder ended."""
        settings = self.settings
        return Stack(
            settings.cell, inputs, settings.hidden, layers, between=self.between, weight_dropout=settings.weight_dropout
        )

    def _source_words(self, size: int) -> nn.Module | None:
        """What reads the source; None: the words of the text do."""
        settings = self.settings
        if settings.source_features is not None:
            return FromVectors(settings.source_features, size)
        if settings.source_vocab is not None:
            return TokenEmbedding(settings.source_vocab, size, None, dropout=settings.embedding_dropout)
        return None

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        source, real_lengths = told(self.settings, rows, source, lengths)
        x = self.drop_input((self.source_words or self.words)(source))
        vectors, end = self.encoder(x, self.encoder.start(rows), lengths)                  # (B, S, H), (B, L, H)
        below, above = _cut(end, len(self.below.layers))
        if self.attention is None:
            return {"below": below}
        return {"below": below, "above": above, "source": self.attention.remember(vectors, real_lengths)}

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, below = self.below(self.drop_input(self.words(tokens)), state["below"])
        if self.attention is None or self.combine is None:
            return self.drop_output(self.hidden(hidden)), {"below": below}
        found, above = self.attention(hidden, state["source"]), state["above"]
        if self.above is not None:
            hidden, above = self.above(self.between(torch.cat([hidden, found], -1)), above)
        hidden = torch.tanh(self.combine(torch.cat([hidden, found], -1)))
        return self.drop_output(self.hidden(hidden)), {**state, "below": below, "above": above}


class Attention(nn.Module):
    """How much each token of a text takes of each vector of its source, and what that makes together."""

    def __init__(self, score: str, hidden: int):
        super().__init__()
        self.additive = score == "additive"
        self.keys = None if score == "dot" else nn.Linear(hidden, hidden, bias=self.additive)
        self.queries = nn.Linear(hidden, hidden, bias=False) if self.additive else nn.Identity()
        self.sum = nn.Linear(hidden, 1, bias=False) if self.additive else None
        self.alignment = Tap()                                 # (B, T, S): α

    def remember(self, vectors: Tensor, lengths: Tensor) -> Vectors:
        """(B, S, H), (B,): what must be known of a source. A dot product compares the vectors themselves."""
        keys = {} if self.keys is None else {"keys": self.keys(vectors)}
        return {"values": vectors, "length": lengths} | keys

    def forward(self, hidden: Tensor, source: Vectors) -> Tensor:
        """(B, T, H) -> (B, T, H)"""
        scores = self.scores(hidden, source.get("keys", source["values"])).float()
        seen = padding_mask(source["length"], scores.shape[-1])[:, 0]                      # (B, 1, S)
        pattern = self.alignment(scores.masked_fill(~seen, -math.inf).softmax(-1))
        found: Tensor = pattern.to(source["values"].dtype) @ source["values"]
        return found

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
