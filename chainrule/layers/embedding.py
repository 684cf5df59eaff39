"""Embedding of tokens, with the output projection and weight tying; of words by a character CNN; of a source's vectors.

    x = E[token], or one-hot: x = e_token;   logits = U h + b,  where U = E if tied (Press & Wolf 2017)
    x_w = W max_i relu(filters · [e_i, e_{i+1}, …]),  filters 2 to 5 bytes wide (Kim et al. 2016)

Shapes: B rows, T tokens, V vocabulary, E embedding, H hidden units, S source tokens or vectors, F features of a vector,
or bytes of the longest word, N words, K filters.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad

from chainrule.errors import UserError
from chainrule.kernels.cpu.dropout import Dropout, dropout
from chainrule.layers.cross_entropy import chunked_cross_entropy
from chainrule.layers.pictures import PictureEncoder, map_size
from chainrule.model import Batch, LanguageModel, State
from chainrule.settings import BelowOne, Settings, Size

OneHot: TypeAlias = Literal["onehot"]
ONE_HOT: OneHot = "onehot"
MOST_ONE_HOT = 1 << 14      # numbers: the vectors of such a vocabulary take 1 GB


@dataclass(frozen=True, kw_only=True)
class PretrainedVectors(Settings):
    """Settings of kinds whose embedding can start from pretrained word vectors; training/finetune.py reads them."""

    vectors: str | None = None      # file of word vectors, or a run, to initialise the embedding from; none: random
    vectors_frozen: bool = False    # freeze the embedding that model.vectors initialised
    vectors_normalised: bool = False  # scale each vector of model.vectors to mean square 1: rare words have short ones

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self, "embedding", None) != ONE_HOT:
            return
        if getattr(self, "features", None) is not None:
            raise UserError("model.embedding=onehot is for tokens, and model.features says that vectors are read. "
                            "Leave one out.")
        if getattr(self, "tied", False):
            raise UserError("model.embedding=onehot has no embedding matrix for the output to share. Add "
                            "model.tied=false.")
        if self.vectors is not None:
            raise UserError(f"model.vectors={self.vectors} initialises an embedding, and model.embedding=onehot has "
                            "none. Use one of them.")


@dataclass(frozen=True, kw_only=True)
class FrameSettings(Settings):
    """Settings of kinds that can classify and tag sequences of vectors (frames) as well as text."""

    features: Size | None = None    # dimension of the input vectors, where frames are read; none: tokens are read


class TokenEmbedding(nn.Module):
    weight: Tensor                        # (V, E)

    def __init__(self, vocab: int, size: int, hidden: int | None, *, tied: bool = True, dropout: float = 0.0):
        """`hidden`: H, the input size of the output projection; None: an embedding without one."""
        super().__init__()
        self.dropout = dropout            # probability of dropping a word type during training
        self.label_smoothing = 0.0        # label smoothing during training
        self.weight = nn.Parameter(torch.empty(vocab, size).uniform_(-0.1, 0.1))
        self.project = self.output = self.bias = None
        if hidden is not None:
            self.project = nn.Linear(hidden, size, bias=False) if tied and hidden != size else None
            self.output = None if tied else nn.Linear(hidden, vocab, bias=False)
            self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, E). Word dropout zeroes a word everywhere in the batch (Gal & Ghahramani 2016)."""
        vectors = embedding(tokens, self.weight)
        if not self.training or self.dropout == 0:
            return vectors
        kept = dropout(vectors.new_ones(len(self.weight)), self.dropout)
        return vectors * kept[tokens][..., None]

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)"""
        return linear(self._projected(hidden), self.output_matrix, self.bias)

    def loss(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        smoothing = self.label_smoothing if self.training else 0.0
        hidden = self._projected(hidden)
        return chunked_cross_entropy(
            hidden, self.output_matrix, self.bias, batch, weights=weights, label_smoothing=smoothing
        )

    def set_embeddings(self, matrix: Tensor, frozen: bool = False) -> None:
        """Replaces the embedding by pretrained vectors; frozen: training leaves them as they are."""
        if matrix.shape != self.weight.shape:
            got, expected = (" x ".join(map(str, part.shape)) for part in (matrix, self.weight))
            raise UserError(f"the word vectors are {got}, and this model's are {expected}; set model.embedding to fit.")
        with torch.no_grad():
            self.weight.copy_(matrix)
        self.weight.requires_grad_(not frozen)

    @property
    def output_matrix(self) -> Tensor:
        """(V, E) or (V, H): the embedding itself if the weights are tied."""
        return self.weight if self.output is None else self.output.weight

    def _projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.project is None else self.project(hidden)


class OneHotEmbedding(TokenEmbedding):
    """x = e_i, the one-hot vector of token i (E = V), with nothing to learn; a matrix that reads x has V columns."""

    def __init__(self, vocab: int, hidden: int | None, *, dropout: float = 0.0):
        if vocab > MOST_ONE_HOT:
            raise UserError(f"model.embedding=onehot with a vocabulary of {vocab:,}: a one-hot vector may have at most "
                            f"{MOST_ONE_HOT:,} numbers. Use a smaller text.vocab, or an embedding.")
        super().__init__(vocab, 1, hidden, tied=False, dropout=dropout)
        del self.weight
        self.register_buffer("weight", torch.eye(vocab), persistent=False)


def embed_tokens(
    size: int | OneHot, vocab: int, hidden: int | None, *, tied: bool, dropout: float = 0.0
) -> TokenEmbedding:
    """An embedding of so many numbers, or one-hot vectors."""
    if isinstance(size, str):
        return OneHotEmbedding(vocab, hidden, dropout=dropout)
    return TokenEmbedding(vocab, size, hidden, tied=tied, dropout=dropout)


class NeuralLanguageModel(LanguageModel):
    """A network between a token embedding and an output projection. A kind defines `start` and `hidden_states`."""

    embedding: TokenEmbedding
    embedding_parameters: ClassVar[tuple[str, ...]] = ("embedding.weight",)

    @property
    def embeddings(self) -> Tensor:
        """(V, E): the vector of each token."""
        return self.embedding.weight

    def hidden_states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) -> (B, T, H): the vectors from which the next tokens are predicted. The old state is used up."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.hidden_states(tokens, state)
        return self.embedding.logits(hidden), state

    def next_logits(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.hidden_states(tokens, state)
        return self.embedding.logits(hidden[:, -1:])[:, 0], state

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        hidden, state = self.hidden_states(batch.tokens, self.begin(batch, state))
        return *self.embedding.loss(hidden, batch), state

    def loss_from(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`loss` of the predictions from (B, T, H) vectors; `weights` (B, T): a weight for each target."""
        return self.embedding.loss(hidden, batch, weights)

    def set_embeddings(self, matrix: Tensor, frozen: bool = False) -> None:
        self.embedding.set_embeddings(matrix, frozen)


# A character CNN, so that unknown words get a meaningful vector

WIDTHS = (2, 3, 4, 5)
BANDS = (4, 7, 11)      # bytes: words of like length are convolved together


class CharCNN(nn.Module):
    def __init__(
        self,
        size: int,               # E, the embedding size of the body: its `inputs`
        embedding: int = 32,     # embedding size of a byte
        filters: int = 64,       # of each width
        dropout: float = 0.0,    # of the pooled features
        *,
        zero_init: bool = False,    # its vectors are 0 at first: under a pretrained body, which is to begin as it is
    ):
        super().__init__()
        self.embedding = nn.Embedding(256, embedding, padding_idx=0)
        self.filters = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in WIDTHS)
        self.dropout = Dropout(dropout)
        self.project = nn.Linear(filters * len(WIDTHS), size, bias=False)
        if zero_init:
            nn.init.zeros_(self.project.weight)

    def forward(self, characters: Tensor | None) -> Tensor:
        """(B, T, F) -> (B, T, E). The result for a word without characters, such as padding, is not defined."""
        if characters is None:
            raise UserError("this tagger reads characters: a batch needs them as its source, rows x words x bytes.")
        words = characters.flatten(0, 1).long()                                            # (N, F)
        features = self._features_once(words) if words.device.type == "cpu" else self._features(words)
        vectors: Tensor = self.project(self.dropout(features))
        return vectors.view(*characters.shape[:2], -1)

    def _features(self, words: Tensor) -> Tensor:
        """(N, F) -> (N, filters of all widths)"""
        x = self.embedding(words).mT                                                       # (N, E, F)
        return torch.cat([self._max_pooled(x, words, filters) for filters in self._convolutions()], -1)

    def _features_once(self, words: Tensor) -> Tensor:
        """`_features` with half of the work: of each word once, and of short words without the width of long ones."""
        distinct, place = torch.unique(words, dim=0, return_inverse=True)
        lengths, order = (distinct != 0).sum(1).sort()
        shares = torch.bincount(torch.bucketize(lengths, lengths.new_tensor(BANDS))).tolist()
        parts = distinct[order].split(shares)
        longest = [int((part != 0).sum(1).max()) if len(part) else 0 for part in parts]
        features = [self._features(part[:, : max(1, width)]) for part, width in zip(parts, longest) if len(part)]
        return torch.cat(features)[order.argsort()[place]]

    def _convolutions(self) -> list[nn.Conv1d]:
        return [filters for filters in self.filters if isinstance(filters, nn.Conv1d)]

    def _max_pooled(self, x: Tensor, words: Tensor, filters: nn.Conv1d) -> Tensor:
        """(N, K): the maximum of each filter over all positions where it covers a character, the ends included."""
        beyond = filters.kernel_size[0] - 1
        outputs = filters(pad(x, (beyond, beyond)))                                        # (N, K, F + beyond)
        positions = torch.arange(outputs.shape[-1], device=x.device)
        covered = positions < (words != 0).sum(1, keepdim=True) + beyond                   # (N, F + beyond)
        pooled: Tensor = outputs.masked_fill(~covered[:, None], -math.inf).amax(-1).relu()
        return pooled


# The source that a text is generated from: tokens to translate, or feature vectors (image patches, audio frames)

@dataclass(frozen=True)
class SourceSettings(Settings):
    source_vocab: Size | None = None    # size of the source's own vocabulary; none: source and target share one
    source_features: Size | None = None  # dimension of the source's vectors, where it is vectors; none: it is tokens
    picture: tuple[Size, ...] | None = None  # height, width and channels of pictures, where the source is one; of a
                                        # video the number of its frames first; none: it is none
    convolutions: tuple[Size, ...] = (32, 64, 64)  # channels of each convolution over a picture; pooling between them
    label_smoothing: BelowOne = 0.0     # label smoothing: fraction of each target spread evenly over the vocabulary

    @property
    def vector_size(self) -> int | None:
        """Dimension of the source's vectors, or of those of a picture's feature map; None: the source is tokens."""
        return self.source_features if self.picture is None else self.convolutions[-1]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.picture is not None:
            self._check_picture()
        if self.source_vocab is not None and self.source_features is not None:
            raise UserError("model.source_vocab is of tokens, model.source_features of vectors; a source is either.")


    def _check_picture(self) -> None:
        given = ",".join(map(str, self.picture or ()))
        if len(self.picture or ()) not in (3, 4) or not self.convolutions:
            raise UserError(f"model.picture={given}: it is height, width and channels, such as 32,32,3, and needs a "
                            "convolution or more.")
        if self.source_vocab is not None or self.source_features is not None:
            raise UserError("model.picture is of pictures, model.source_vocab of tokens, model.source_features of "
                            "vectors; a source is one of them.")


class FeatureProjection(nn.Linear):
    """(…, F) -> (…, D) in the precision of the model, whatever the precision of the features."""

    def forward(self, vectors: Tensor) -> Tensor:
        return super().forward(vectors.to(self.weight.dtype))


def make_picture_encoder(settings: SourceSettings) -> PictureEncoder | None:
    return None if settings.picture is None else PictureEncoder(settings.picture, settings.convolutions)


def checked_source(
    settings: SourceSettings, rows: int, source: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The source and its lengths (B,), if their shapes agree with the settings; no lengths: no padding."""
    features = settings.source_features
    if source is None:
        raise UserError("this model needs a source, and it was given none: start(rows, source, lengths).")
    shape = " x ".join(map(str, source.shape))
    if settings.picture is not None:
        if source.shape != (rows, *settings.picture):
            raise UserError(f"the source is {shape} for {rows} texts, and this model reads pictures, rows x "
                            f"{' x '.join(map(str, settings.picture))}.")
        places = map_size(settings.picture, settings.convolutions)
        return source, torch.full((rows,), places, device=source.device)
    if source.dim() != (2 if features is None else 3) or (features is not None and source.shape[2] != features):
        expected = "tokens, rows x tokens" if features is None else f"vectors, rows x vectors x {features}"
        raise UserError(f"the source is {shape}, and this model reads {expected}. See model.source_features.")
    if len(source) != rows or source.shape[1] == 0:
        raise UserError(f"the source is {shape} for {rows} texts: each text needs one source, and none may be empty.")
    if lengths is None:
        lengths = torch.full((rows,), source.shape[1], device=source.device)
    return source, lengths
