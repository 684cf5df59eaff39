"""Recurrent language models: Elman RNN, GRU and LSTM, trained by truncated backpropagation through time (BPTT).

    h_t = cell(h_{t-1}, E[w_t]);   logits_t = V h_t + b_y

The cells are in layers/cells.py, the layers in layers/recurrent.py. State: the hidden vector of each layer. Dropout is
that of Zaremba et al. 2014, or that of AWD-LSTM (Merity et al. 2018): variational, of embeddings and of weights.

Shapes: B rows, T tokens, L layers, E embedding, H hidden units, G gates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.kernels.cpu.dropout import Dropout, dropout
from chainrule.layers.cells import Vectors
from chainrule.layers.embedding import (
    FeatureProjection,
    FrameSettings,
    NeuralLanguageModel,
    OneHot,
    PretrainedVectors,
    embed_tokens,
)
from chainrule.layers.recurrent import RecurrentStack
from chainrule.model import Tap
from chainrule.settings import BelowOne, Range, Size

if TYPE_CHECKING:
    from chainrule.defaults.budgets import Budget, CorpusSize


class VariationalDropout(nn.Module):
    """One dropout mask for all tokens of a row, a new one for every batch (Gal & Ghahramani 2016)."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * dropout(x.new_ones(len(x), 1, x.shape[-1]), self.p)


@dataclass(frozen=True)
class StackSettings(PretrainedVectors):
    """Of recurrent layers, wherever they stand: in a language model, an encoder or a decoder."""

    layers: Annotated[int, Range(1, 10_000)] = 2  # stacked layers
    hidden: Size = 512                       # hidden units in a layer
    embedding: Size | OneHot | None = None   # embedding dimension; none: as many as hidden units; onehot: x is the
                                             # one-hot vector of a token, and nothing is embedded
    tied: bool = True                        # weight tying: output matrix = embedding (h is projected if sizes differ)
    start: Literal["zero", "learned"] = "zero"  # initial hidden state
    bidirectional: bool = False              # half of the units read from right to left; only to classify and to tag
    dropout: BelowOne = 0.0                  # dropout of the input, between layers, and of the output
    input_dropout: BelowOne | None = None    # dropout of the input; none: as dropout
    between_dropout: BelowOne | None = None  # dropout between layers; none: as dropout
    output_dropout: BelowOne | None = None   # dropout of the output; none: as dropout
    locked_dropout: bool = False             # these three use one mask for all tokens of a row (variational dropout)
    embedding_dropout: BelowOne = 0.0        # dropout of whole words: a dropped word is 0 wherever it occurs in a batch
    weight_dropout: BelowOne = 0.0           # dropout of the hidden-to-hidden weights (DropConnect)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bidirectional and self.hidden % 2:
            raise UserError(f"model.hidden={self.hidden} is odd; model.bidirectional=true needs an even number.")


@dataclass(frozen=True)
class RecurrentSettings(StackSettings, FrameSettings):
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features is not None and self.vectors is not None:
            raise UserError("model.vectors are of words, and model.features says that vectors are read. Leave one out.")


@dataclass(frozen=True)
class ElmanSettings(RecurrentSettings):
    nonlinearity: Literal["tanh", "relu", "sigmoid", "identity"] = "tanh"  # activation σ in h' = σ(Wh + Ux + b)


TRUNCATED_BPTT = {"train.batching": "streams", "train.length": 128, "train.tokens": 4096}
AWD = {"model.dropout": 0.4, "model.locked_dropout": True, "model.weight_dropout": 0.4, "train.lr": 3e-3}


class RecurrentModel(NeuralLanguageModel):
    """All that the three kinds share; they differ in the cell."""

    tasks = ("lm", "classify", "tag")
    compiles = False    # the loop over tokens is a fused kernel already

    def __init__(self, settings: RecurrentSettings, vocab: int, cell: str):
        super().__init__()
        size = settings.embedding or settings.features or settings.hidden
        self.inputs, self.width = vocab if isinstance(size, str) else size, settings.hidden
        self.bidirectional = settings.bidirectional
        self.backward = settings.hidden // 2 if settings.bidirectional else 0
        self.drop_input, between, self.drop_output = make_dropouts(settings)
        self.project = make_frame_projection(settings)
        if self.project is None:
            output = None if settings.bidirectional else settings.hidden
            self.embedding = embed_tokens(size, vocab, output, tied=settings.tied, dropout=settings.embedding_dropout)
        self.stack = make_stack(settings, cell, self.inputs, between)
        self.activations = {name: Tap(self.stack.gates if name == "gates" else ()) for name in self.stack.activations}
        for name, tap in self.activations.items():
            self.add_module(name, tap)    # hidden, and cell: (B, T, L, H); gates: (B, T, L, G, H)

    @classmethod
    def candidate_settings(
        cls, widths: Sequence[int], budget: "Budget", corpus: "CorpusSize"
    ) -> list[dict[str, Any]]:
        """One layer; in float32 on a CPU, where the fused kernels have no fast bfloat16."""
        fixed: dict[str, Any] = {"model.layers": 1, "train.length": 32 if budget.is_small else 128}
        fixed |= {"model.weight_dropout": 0.0} if "model.weight_dropout" in cls.recipe else {}
        fixed |= {} if budget.gpu else {"train.precision": "float32"}
        return [{**fixed, "model.hidden": width} for width in widths]

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Vectors:
        if self.project is not None:
            raise UserError("model.features says that vectors are read, so it predicts no token; it can only classify "
                            "and tag.")
        if self.bidirectional:
            raise UserError("model.bidirectional=true reads the next token, so it cannot predict it; it can only "
                            "classify and tag.")
        return self.stack.start(rows)

    def hidden_states(self, tokens: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        return self._run(self.embedding(tokens), state)

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, more: Tensor | None = None) -> Tensor:
        """The body of a head (heads.py): (B, T) or (B, T, F) -> (B, T, H); `more` (B, T, E) is added to the inputs."""
        x = self.embedding(tokens) if self.project is None else self.project(tokens)
        x = x if more is None else x + more
        lengths = lengths if self.bidirectional else None    # left to right, padding is read last and does no harm
        return self._run(x, self.stack.start(len(tokens)), lengths)[0]

    def _run(self, x: Tensor, state: Vectors, lengths: Tensor | None = None) -> tuple[Tensor, Vectors]:
        x = self.drop_input(x)
        if any(tap.watched for tap in self.activations.values()):
            hidden, state, activations = self.stack.unrolled(x, state, lengths)
            for name, tap in self.activations.items():
                tap(activations[name])
        else:
            hidden, state = self.stack(x, state, lengths)
        return self.drop_output(hidden), state


def make_frame_projection(settings: RecurrentSettings) -> nn.Module | None:
    """(B, T, F) -> (B, T, E). Without model.embedding the cell reads the vectors as they are; None: it reads tokens."""
    if settings.features is None:
        return None
    size = settings.embedding
    return FeatureProjection(settings.features, size) if isinstance(size, int) else nn.Identity()


def make_dropouts(settings: StackSettings) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Of the input, between layers, of the output."""
    given = (settings.input_dropout, settings.between_dropout, settings.output_dropout)
    kind = VariationalDropout if settings.locked_dropout else Dropout
    first, between, last = (kind(settings.dropout if p is None else p) for p in given)
    return first, between, last


def make_stack(settings: StackSettings, cell: str, inputs: int, between: nn.Module) -> RecurrentStack:
    """All layers of the settings, with the initial state of the start of a text."""
    directions = 2 if settings.bidirectional else 1
    return RecurrentStack(
        cell, inputs, settings.hidden // directions, settings.layers, directions=directions,
        between=between, weight_dropout=settings.weight_dropout, learned_start=settings.start == "learned",
    )


class Elman(RecurrentModel):
    Settings = ElmanSettings
    recipe: ClassVar[dict[str, Any]] = {**TRUNCATED_BPTT, "model.layers": 1, "model.dropout": 0.5, "train.lr": 1e-3}

    def __init__(self, settings: ElmanSettings, vocab: int):
        super().__init__(settings, vocab, settings.nonlinearity)


class GRU(RecurrentModel):
    """Gates: reset, update."""

    Settings = RecurrentSettings
    recipe: ClassVar[dict[str, Any]] = {**TRUNCATED_BPTT, **AWD}

    def __init__(self, settings: RecurrentSettings, vocab: int):
        super().__init__(settings, vocab, "gru")


class LSTM(RecurrentModel):
    """Gates: input, forget, cell candidate, output."""

    Settings = RecurrentSettings
    recipe: ClassVar[dict[str, Any]] = {**TRUNCATED_BPTT, **AWD}

    def __init__(self, settings: RecurrentSettings, vocab: int):
        super().__init__(settings, vocab, "lstm")
