"""word2vec (Mikolov et al. 2013): word vectors by skip-gram or CBOW with negative sampling.

    skip-gram   Σ over pairs of log σ(u_context · v_word) + k · E[log σ(-u_negative · v_word)],   negatives ~ count^0.75
    CBOW        the same with one pair for each word: v is the mean of the context's vectors, u the word's own

Words are trained in blocks that share their negative samples, so that all computation is products of small matrices.
Many updates of one vector happen at once; `damped_update` makes their sum what sequential updates would come to.

Shapes: B blocks, L words of a block, R the window, M = L + 2R words of a block and around it, K negatives, E embedding.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, normalize, pad, softplus

from chainrule.model import Model
from chainrule.settings import NonNegative, Range, Settings, Size

Blocks = dict[str, Tensor]

SHARED = 32          # negative samples of a block, each weighted by the number that it stands for
NOWHERE = -1         # the text number of the padding of a block
NEVER = 1 << 30      # the distance of a word from itself, which is in no window
SAMPLE = 2           # vectors of each block from which the covariance is estimated
FLAT = 1e-20         # a curvature so small that it damps no step


@dataclass(frozen=True)
class Word2VecSettings(Settings):
    algorithm: Literal["skip-gram", "cbow"] = "skip-gram"  # predict the neighbours from the word, or it from them
    embedding: Size = 100        # embedding dimension
    window: Annotated[int, Range(1, 10_000)] = 5  # largest distance to a neighbour; each word draws its own up to this
    negatives: Annotated[int, Range(1, 10_000)] = 5  # negative samples for each pair
    noise: Annotated[float, Range(0, 10)] = 0.75  # negative samples are drawn in proportion to count to this power
    sample: NonNegative = 1e-3   # subsampling of words whose share of the text is larger than this; 0: none


class PairLogits(NamedTuple):
    """The forward pass over a batch of blocks: pairs of vectors, their logits and labels."""

    pairs: Tensor        # (B, L, M) 1 where two words are in each other's context, else 0
    inputs: Tensor       # (B, L, E) v
    candidates: Tensor   # (B, M + K) ids of u: the words of the block and around it, then the negatives
    outputs: Tensor      # (B, M + K, E) u
    logits: Tensor       # (B, L, M + K)
    labels: Tensor       # (B, L, M) 1: a true pair
    weights: Tensor      # (B, L, M + K) of each pair in the loss


class Word2Vec(Model):
    learns_by = "pairs"
    counts_first = False     # trains on pairs while reading the text
    block = 32               # L
    Settings = Word2VecSettings
    recipe: ClassVar[dict[str, Any]] = {"text.tokenizer": "words", "text.min_count": 5}
    vectors: Tensor
    outputs: Tensor
    kept: Tensor
    negative_cdf: Tensor

    def __init__(self, settings: Word2VecSettings, vocab: int):
        super().__init__()
        self.settings = settings
        self.register_buffer("vectors", torch.zeros(vocab, settings.embedding))     # v
        self.register_buffer("outputs", torch.zeros(vocab, settings.embedding))     # u
        self.register_buffer("kept", torch.ones(vocab), persistent=False)           # probability of keeping a word
        self.register_buffer("negative_cdf", torch.zeros(vocab, dtype=torch.double), persistent=False)
        distance = torch.arange(self.block + 2 * settings.window) - torch.arange(self.block)[:, None] - settings.window
        self.register_buffer("distance", distance.abs() + NEVER * (distance == 0), persistent=False)       # (L, M)
        positive = torch.arange(self.block + 2 * settings.window + SHARED) < self.block + 2 * settings.window
        self.register_buffer("positive", positive.float(), persistent=False)        # (M + K,) 1: no negative sample
        self.distance: Tensor
        self.positive: Tensor

    @property
    def embeddings(self) -> Tensor:
        """(V, E); a word that never occurred has a vector of zeros."""
        return self.vectors

    def surrounded_logits(self, tokens: Tensor) -> Tensor:
        """(T,) -> (T, V): how well each word of the vocabulary fits the window of words around each place.

            cbow        u_w · mean of v_c, as in training        skip-gram   Σ_c u_c · v_w, the logits of all its pairs
        """
        place = torch.arange(len(tokens), device=tokens.device)
        distance = (place - place[:, None]).abs()
        around = ((distance > 0) & (distance <= self.settings.window)).to(self.vectors.dtype)          # (T, T)
        if self.settings.algorithm == "cbow":
            return around @ self.vectors[tokens] / around.sum(1, keepdim=True).clamp(min=1) @ self.outputs.T
        return around @ self.outputs[tokens] @ self.vectors.T

    def initialise(self, counts: Tensor, generator: torch.Generator) -> None:
        """Random vectors, and the sampling distributions of words that occur so often, (V,)."""
        self.set_counts(counts)
        first = torch.rand(self.vectors.shape, generator=generator, device=counts.device, dtype=self.vectors.dtype)
        self.vectors.copy_((2 * first - 1) / self.settings.embedding * (counts > 0)[:, None])
        self.outputs.zero_()

    def set_counts(self, counts: Tensor) -> None:
        """The sampling distributions, which are not saved: of negatives, and of the words that are kept."""
        powers = counts.double() ** self.settings.noise * (counts > 0)
        self.negative_cdf.copy_((powers / powers.sum()).cumsum(0))
        if self.settings.sample:
            surplus = counts / (self.settings.sample * counts.sum())
            self.kept.copy_(((surplus.sqrt() + 1) / surplus.clamp(min=1e-9)).clamp(max=1))

    def collect_pairs(self, tokens: Tensor, texts: Tensor, generator: torch.Generator) -> Blocks:
        """(N,) words and the numbers of their texts, as blocks; subsampling, windows and negatives are drawn here."""
        window, device = self.settings.window, tokens.device
        here = (torch.rand(len(tokens), generator=generator, device=device) < self.kept[tokens]).nonzero()[:, 0]
        rows = self._blocks(tokens[here], 0)
        small = torch.uint8 if window < 256 else torch.int32
        windows = torch.randint(1, window + 1, rows.shape, generator=generator, device=device, dtype=small)
        uniforms = torch.rand((len(rows), SHARED), generator=generator, device=device, dtype=torch.double)
        negatives = torch.searchsorted(self.negative_cdf, uniforms, right=True).clamp(max=len(self.negative_cdf) - 1)
        return {"tokens": rows, "texts": self._blocks(texts[here], NOWHERE), "windows": windows,
                "negatives": negatives}

    def _blocks(self, stream: Tensor, fill: int) -> Tensor:
        """(N,) -> (B, M): each block, with a window of words before and after it."""
        window, short = self.settings.window, -len(stream) % self.block if len(stream) else self.block
        return pad(stream, (window, window + short), value=fill).unfold(0, self.block + 2 * window, self.block)

    @torch.no_grad()
    def pair_loss(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """The summed loss in nats, and the number of pairs."""
        pairs = self._forward(blocks)
        losses = softplus(pairs.logits) - self.positive * pairs.logits
        return (pairs.weights * losses).sum(), pairs.labels.sum()

    @torch.no_grad()
    def train_step(self, blocks: Blocks, lr: float | Tensor) -> None:
        """One step of gradient descent."""
        pairs, window = self._forward(blocks), self.settings.window
        p = pairs.logits.sigmoid()
        errors = self.positive - p
        curvatures = _logit_curvature(pairs.logits, p, errors).mul_(pairs.weights)
        errors.mul_(pairs.weights)
        of_inputs, input_mean = _squared_lengths(pairs.inputs)
        of_outputs, output_mean = _squared_lengths(pairs.outputs)
        gradient, curvature = errors @ pairs.outputs, curvatures @ of_outputs
        words = blocks["tokens"][:, window:-window]
        if self.settings.algorithm == "cbow":        # as in word2vec.c, every word of a window gets the whole gradient
            gradient, curvature, words = pairs.pairs.mT @ gradient, pairs.pairs.mT @ curvature, blocks["tokens"]
        output_gradient, output_curvature = errors.mT @ pairs.inputs, curvatures.mT @ of_inputs
        damped_update(self.outputs, pairs.candidates, output_gradient, output_curvature, input_mean, lr)
        damped_update(self.vectors, words, gradient, curvature, output_mean, lr)

    def _forward(self, blocks: Blocks) -> PairLogits:
        tokens, texts, window = blocks["tokens"], blocks["texts"], self.settings.window
        inside = texts[:, window:-window, None]                                     # (B, L, 1)
        together = (inside == texts[:, None]) & (inside != NOWHERE)
        skip_gram, dtype = self.settings.algorithm == "skip-gram", self.vectors.dtype
        widths = blocks["windows"][:, None] if skip_gram else blocks["windows"][:, window:-window, None]
        pairs = (together & (self.distance <= widths)).to(dtype)
        if skip_gram:
            inputs, labels = embedding(tokens[:, window:-window], self.vectors), pairs
        else:
            size = pairs.sum(2, keepdim=True)
            inputs = (pairs / size.clamp(min=1)) @ embedding(tokens, self.vectors)
            labels = ((self.distance == NEVER) & (size > 0)).to(dtype)
        candidates = torch.cat([tokens, blocks["negatives"]], 1)
        outputs, shared = embedding(candidates, self.outputs), blocks["negatives"].shape[1]
        each = labels.sum(2, keepdim=True) * (self.settings.negatives / shared)     # weight of a shared negative
        weights = torch.cat([labels, each.expand(-1, -1, shared)], 2)
        return PairLogits(pairs, inputs, candidates, outputs, inputs @ outputs.mT, labels, weights)


def _logit_curvature(logits: Tensor, p: Tensor, errors: Tensor) -> Tensor:
    """(B, L, M + K): the second derivative of each pair's loss by its logit, p (1 - p). Where the sign of the logit is
    wrong, so that p is more than a half away from its label, its mean on the way to 0 instead."""
    away = errors.abs()
    return torch.where(away > 0.5, (p - 0.5).div_(logits), away.addcmul(away, away, value=-1))


def _squared_lengths(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N, 2): squared length along the direction of the mean, and at most along any other; and that direction, (E,).
    Twice these, because both vectors of a pair move.

    Of the part orthogonal to the mean, |C| / trace(C) of its covariance C bounds the share along one direction.
    """
    mean = normalize(vectors.mean((0, 1)), dim=0)
    along = (vectors @ mean).square()
    some = vectors[:, :SAMPLE].flatten(0, 1)
    some = some.addr(some @ mean, mean, alpha=-1)
    most = (some.mT @ some).norm() / some.square().sum().clamp(min=1e-30)
    return torch.stack([along, most * (vectors.square().sum(2) - along)], 2).mul_(2), mean


def damped_update(
    table: Tensor, rows: Tensor, gradient: Tensor, curvature: Tensor, mean: Tensor, lr: float | Tensor
) -> None:
    """Adds lr · gradient to rows of the table in place, each scaled down to the sum of many small steps.

    n gradients g for one row, each against curvature h, would one after the other sum to Σ lr · g · (1 - lr·h)^i, about
    g/h · (1 - exp(-lr·n·h)); added at once they overshoot. About half of all curvature is along the direction of
    the mean and is damped there; orthogonal to it steps can stay long.
    """
    rows, gradient = rows.flatten(), gradient.flatten(0, 1)
    against = table.new_zeros(len(table), 2).index_add_(0, rows, curvature.flatten(0, 1)).clamp_(min=FLAT)
    rates = (torch.expm1(against * -lr) / against)[rows]                            # from -lr, where all is flat, to 0
    along = (gradient @ mean) * (rates[:, 0] - rates[:, 1])
    table.index_add_(0, rows, gradient.mul_(rates[:, 1:]).addr_(along, mean), alpha=-1)
