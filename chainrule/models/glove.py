"""GloVe (Pennington et al. 2014): word vectors whose dot products fit the logarithms of co-occurrence counts.

    J = Σ over pairs of f(X_ij) (w_i · c_j + b_i + d_j - log X_ij)²,   f(x) = min(1, x / cap)^power

X_ij sums 1/distance over all co-occurrences of i and j in a symmetric window. It is counted once and stored sparse; J
is minimised by AdaGrad. The vectors are w + c.

Shapes: N words of a text, C cells of X that are not 0 and on or above the diagonal, E embedding.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding

from chainrule.model import Model
from chainrule.settings import Positive, Range, Settings, Size

Cells = dict[str, Tensor]


@dataclass(frozen=True)
class GloVeSettings(Settings):
    embedding: Size = 100        # embedding dimension
    window: Annotated[int, Range(1, 10_000)] = 10  # largest distance to a neighbour, in words
    cap: Positive = 100.0        # x_max: counts above this weigh no more
    power: Annotated[float, Range(above=0, most=10)] = 0.75  # α: the weight of a count x below x_max is (x / x_max)^α


class GloVe(Model):
    learns_by = "pairs"
    counts_first = True      # counts the pairs of the whole text before it trains on them
    block = 1
    Settings = GloVeSettings
    recipe: ClassVar[dict[str, Any]] = {
        "text.tokenizer": "words", "text.min_count": 5, "train.epochs": 25, "train.lr": 0.05, "train.final_lr": 1.0,
    }
    words: Tensor
    contexts: Tensor
    word_squares: Tensor
    context_squares: Tensor

    def __init__(self, settings: GloVeSettings, vocab: int):
        super().__init__()
        self.settings = settings
        shape = vocab, settings.embedding + 1
        self.register_buffer("words", torch.zeros(shape))                 # w, and last b
        self.register_buffer("contexts", torch.zeros(shape))              # c, and last d
        self.register_buffer("word_squares", torch.ones(shape), persistent=False)     # AdaGrad's sums
        self.register_buffer("context_squares", torch.ones(shape), persistent=False)

    @property
    def embeddings(self) -> Tensor:
        """(V, E); a word that never occurred has a vector of zeros."""
        return (self.words + self.contexts)[:, :-1]

    def surrounded_logits(self, tokens: Tensor) -> Tensor:
        """(T,) -> (T, V): Σ_c log X_wc, of each word w of the vocabulary and the window of words c around each place.

        The biases of the words c are the same for all w and left out.
        """
        place = torch.arange(len(tokens), device=tokens.device)
        distance = (place - place[:, None]).abs()
        around = ((distance > 0) & (distance <= self.settings.window)).to(self.words.dtype)            # (T, T)
        products = self.contexts[tokens][:, :-1] @ self.words[:, :-1].T + self.words[:, -1]            # (T, V)
        return around @ products

    def initialise(self, counts: Tensor, generator: torch.Generator) -> None:
        """Random vectors for words that occur so often, (V,)."""
        for table in (self.words, self.contexts):
            first = torch.rand(table.shape, generator=generator, device=counts.device, dtype=table.dtype)
            table.copy_((first - 0.5) / self.settings.embedding * (counts > 0)[:, None])
        for squares in (self.word_squares, self.context_squares):
            squares.fill_(1)

    def collect_pairs(self, tokens: Tensor, texts: Tensor, generator: torch.Generator) -> Cells:
        """(N,) words and the numbers of their texts -> co-occurrence counts. A key is a pair and its distance."""
        window, keys = self.settings.window, []
        for distance in range(1, min(window, len(tokens) - 1) + 1):
            left, right = tokens[:-distance], tokens[distance:]
            pair = torch.minimum(left, right) * len(self.words) + torch.maximum(left, right)
            keys.append((pair * window + distance - 1)[texts[:-distance] == texts[distance:]])
        found = torch.cat([tokens.new_empty(0), *keys]).sort().values
        return _sum_by_key(found // window, 1 / (found % window + 1))

    def add(self, one: Cells, other: Cells) -> Cells:
        keys, order = torch.cat([one["pairs"], other["pairs"]]).sort()
        return _sum_by_key(keys, torch.cat([one["counts"], other["counts"]])[order])

    def shuffled(self, cells: Cells, generator: torch.Generator) -> Cells:
        """The cells in random order, as training examples. One on the diagonal was counted from one side only."""
        order = torch.randperm(len(cells["pairs"]), generator=generator, device=generator.device)
        pairs, counts = cells["pairs"][order], cells["counts"][order]
        rows, columns = pairs // len(self.words), pairs % len(self.words)
        return {"rows": rows, "columns": columns, "counts": counts * (1 + (rows == columns))}

    @torch.no_grad()
    def pair_loss(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """J, summed over both triangles of X, and the number of its cells."""
        words, contexts, logs, weights = self._symmetric(cells)
        errors = _errors(embedding(words, self.words), embedding(contexts, self.contexts), logs)
        return (weights * errors.square()).sum(), (weights > 0).sum()

    @torch.no_grad()
    def train_step(self, cells: Cells, lr: float | Tensor) -> None:
        """One step of AdaGrad. All squared gradients of a row are summed before it moves, so it does not overshoot."""
        words, contexts, logs, weights = self._symmetric(cells)
        w, c = embedding(words, self.words), embedding(contexts, self.contexts)
        errors = (weights * _errors(w, c, logs))[:, None]
        w[:, -1] = c[:, -1] = 1                                           # the factor of a bias
        _adagrad(self.words, self.word_squares, words, errors * c, lr)
        _adagrad(self.contexts, self.context_squares, contexts, errors * w, lr)

    def _symmetric(self, cells: Cells) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Words, contexts, log X and f(X) of (2C,) cells: those given, and their transposes unless on the diagonal."""
        rows, columns, counts = cells["rows"], cells["columns"], cells["counts"]
        weights = (counts / self.settings.cap).clamp(max=1) ** self.settings.power
        weights = torch.cat([weights, weights * (rows != columns)])
        return torch.cat([rows, columns]), torch.cat([columns, rows]), counts.log().repeat(2), weights


def _errors(w: Tensor, c: Tensor, logs: Tensor) -> Tensor:
    return (w[:, :-1] * c[:, :-1]).sum(1) + w[:, -1] + c[:, -1] - logs


def _sum_by_key(keys: Tensor, counts: Tensor) -> Cells:
    """Sorted keys, each once, and the sum of its counts."""
    pairs, place = torch.unique_consecutive(keys, return_inverse=True)
    return {"pairs": pairs, "counts": counts.new_zeros(len(pairs)).index_add_(0, place, counts)}


def _adagrad(table: Tensor, squares: Tensor, rows: Tensor, gradient: Tensor, lr: float | Tensor) -> None:
    squares.index_add_(0, rows, gradient.square())
    table.index_add_(0, rows, gradient.div_(embedding(rows, squares).sqrt_()).mul_(lr), alpha=-1)
