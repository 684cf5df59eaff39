"""word2vec (Mikolov et al. 2013): a vector for each word, such that it foretells the words that stand near.

    skip-gram   Σ over near pairs of log σ(u_near · v_word) + k · E[log σ(-u_noise · v_word)],   noise ~ count^0.75
    CBOW        the same of one pair a word: v is the mean of those near it, u its own

Words come in blocks, and a block shares its noise, so all is products of small matrices. Many words move a vector at
once, so it moves as far as it would have one by one; see `move`.

Shapes: B blocks, L words of a block, R the window, M = L + 2R words in sight of them, K noise words, E embedding.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, normalize, pad, softplus

from chainrule.model import Model
from chainrule.settings import NonNegative, Range, Settings, Size

Blocks = dict[str, Tensor]

SHARED = 32          # noise words drawn for a block; each weighs as many as it stands for
NOWHERE = -1         # the text of what fills up a block
SAMPLE = 2           # vectors of each block by which it is judged in how many directions they lie


@dataclass(frozen=True)
class Word2VecSettings(Settings):
    algorithm: Literal["skip-gram", "cbow"] = "skip-gram"  # predict the neighbours from the word, or it from them
    embedding: Size = 100        # embedding dimension
    window: Annotated[int, Range(1, 10_000)] = 5  # largest distance to a neighbour; each word draws its own up to this
    negatives: Annotated[int, Range(1, 10_000)] = 5  # negative samples for each pair
    noise: Annotated[float, Range(0, 10)] = 0.75  # negative samples are drawn in proportion to count to this power
    sample: NonNegative = 1e-3   # subsampling of words whose share of the text is larger than this; 0: none


class Met(NamedTuple):
    """What a batch of blocks comes to: which vectors meet, and how they should have answered."""

    pairs: Tensor        # (B, L, M) which words are near which, as 0 and 1
    inputs: Tensor       # (B, L, E) v
    answers: Tensor      # (B, M + K) ids of u: the words in sight, then the noise
    outputs: Tensor      # (B, M + K, E) u
    logits: Tensor       # (B, L, M + K)
    labels: Tensor       # (B, L, M + K) 1: a true pair
    weights: Tensor      # (B, L, M + K) how often a pair counts


class Word2Vec(Model):
    learns_by = "pairs"
    whole = False        # pairs are learned from as the text passes
    block = 32           # L
    Settings = Word2VecSettings
    recipe: ClassVar[dict[str, Any]] = {"text.tokenizer": "words", "text.min_count": 5}
    vectors: Tensor
    outputs: Tensor
    kept: Tensor
    drawn: Tensor

    def __init__(self, settings: Word2VecSettings, vocab: int):
        super().__init__()
        self.settings = settings
        self.register_buffer("vectors", torch.zeros(vocab, settings.embedding))     # v
        self.register_buffer("outputs", torch.zeros(vocab, settings.embedding))     # u
        self.register_buffer("kept", torch.ones(vocab), persistent=False)           # chance not to be passed over
        self.register_buffer("drawn", torch.zeros(vocab, dtype=torch.double), persistent=False)  # chance of noise up to
        distance = torch.arange(self.block + 2 * settings.window) - torch.arange(self.block)[:, None] - settings.window
        self.register_buffer("distance", distance.abs(), persistent=False)          # (L, M)
        self.distance: Tensor

    @property
    def embeddings(self) -> Tensor:
        """(V, E); a word that was never met has a vector of zeros."""
        return self.vectors

    def begin(self, counts: Tensor, generator: torch.Generator) -> None:
        """First vectors, for words that occur so often, (V,)."""
        first = torch.rand(self.vectors.shape, generator=generator, device=counts.device, dtype=self.vectors.dtype)
        self.vectors.copy_((2 * first - 1) / self.settings.embedding * (counts > 0)[:, None])
        self.outputs.zero_()
        chances = counts.double() ** self.settings.noise * (counts > 0)
        self.drawn.copy_((chances / chances.sum()).cumsum(0))
        if self.settings.sample:
            surplus = counts / (self.settings.sample * counts.sum())
            self.kept.copy_(((surplus.sqrt() + 1) / surplus.clamp(min=1e-9)).clamp(max=1))

    def meet(self, tokens: Tensor, texts: Tensor, generator: torch.Generator) -> Blocks:
        """(N,) words and the texts they stand in, as blocks; all that is left to chance is drawn here."""
        window, device = self.settings.window, tokens.device
        here = torch.rand(len(tokens), generator=generator, device=device) < self.kept[tokens]
        rows = self._blocks(tokens[here], 0)
        small = torch.uint8 if window < 256 else torch.int32
        reach = torch.randint(1, window + 1, rows.shape, generator=generator, device=device, dtype=small)
        chance = torch.rand((len(rows), SHARED), generator=generator, device=device, dtype=torch.double)
        noise = torch.searchsorted(self.drawn, chance, right=True).clamp(max=len(self.drawn) - 1)
        return {"tokens": rows, "texts": self._blocks(texts[here], NOWHERE), "reach": reach, "noise": noise}

    def _blocks(self, stream: Tensor, fill: int) -> Tensor:
        """(N,) -> (B, M): each block has in sight what is before and behind it."""
        window, short = self.settings.window, -len(stream) % self.block if len(stream) else self.block
        return pad(stream, (window, window + short), value=fill).unfold(0, self.block + 2 * window, self.block)

    @torch.no_grad()
    def pair_loss(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """A sum in nats, and how many pairs it is over."""
        met = self._met(blocks)
        return (met.weights * softplus(met.logits) - met.labels * met.logits).sum(), met.labels.sum()

    @torch.no_grad()
    def learn(self, blocks: Blocks, lr: float) -> None:
        """One step up the gradient."""
        met, window = self._met(blocks), self.settings.window
        likely = met.logits.sigmoid()
        expected = likely * met.weights
        errors, steep = met.labels - expected, _steepness(met, likely)
        up, up_common = _curvature(met.inputs)
        down, down_common = _curvature(met.outputs)
        pushes, slopes, read = errors @ met.outputs, steep @ down, blocks["tokens"][:, window:-window]
        if self.settings.algorithm == "cbow":        # as in word2vec.c, every word of a window takes the whole push
            pushes, slopes, read = met.pairs.mT @ pushes, met.pairs.mT @ slopes, blocks["tokens"]
        move(self.outputs, met.answers, errors.mT @ met.inputs, steep.mT @ up, up_common, lr)
        move(self.vectors, read, pushes, slopes, down_common, lr)

    def _met(self, blocks: Blocks) -> Met:
        tokens, texts, window = blocks["tokens"], blocks["texts"], self.settings.window
        inside = texts[:, window:-window, None]                                     # (B, L, 1)
        together = (inside == texts[:, None]) & (inside != NOWHERE)
        around, dtype = self.settings.algorithm == "skip-gram", self.vectors.dtype
        reach = blocks["reach"][:, None] if around else blocks["reach"][:, window:-window, None]    # of who is foretold
        pairs = (together & (self.distance > 0) & (self.distance <= reach)).to(dtype)
        if around:
            inputs, labels = embedding(tokens[:, window:-window], self.vectors), pairs
        else:
            near = pairs.sum(2, keepdim=True)
            inputs = (pairs / near.clamp(min=1)) @ embedding(tokens, self.vectors)
            labels = ((self.distance == 0) & (near > 0)).to(dtype)
        answers = torch.cat([tokens, blocks["noise"]], 1)
        outputs, shared = embedding(answers, self.outputs), blocks["noise"].shape[1]
        often = labels.sum(2, keepdim=True) * (self.settings.negatives / shared)    # each noise word, for each word
        weights = torch.cat([labels, often.expand(-1, -1, shared)], 2)
        return Met(pairs, inputs, answers, outputs, inputs @ outputs.mT, pad(labels, (0, shared)), weights)


def _steepness(met: Met, likely: Tensor) -> Tensor:
    """(B, L, M + K): the curvature of each pair's loss along its logit, or its mean on the way back to where the pair
    is no longer taken for its opposite; twice that, for both ends of a pair move."""
    wrong = (met.logits > 0) != (met.labels > 0)
    back = ((likely - 0.5) / met.logits).nan_to_num_(0.25)
    return 2 * met.weights * torch.where(wrong, back, likely * (1 - likely))


def _curvature(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N, 2): squared length along the direction that all share, and at most along any other; and the first, (E,).

    Of what lies across, |C| / trace(C) of its covariance C is the most that can lie along one direction.
    """
    common = normalize(vectors.mean((0, 1)), dim=0)
    along = (vectors @ common).square()
    some = vectors[:, :SAMPLE].flatten(0, 1)
    some = some.addr(some @ common, common, alpha=-1)
    most = (some.mT @ some).norm() / some.square().sum().clamp(min=1e-30)
    return torch.stack([along, most * (vectors.square().sum(2) - along)], 2), common


def move(table: Tensor, rows: Tensor, pushes: Tensor, slopes: Tensor, common: Tensor, lr: float) -> None:
    """Adds lr · pushes to rows of the table, each shortened, in place, to what many small steps would have come to.

    Where n pushes g act on one row at once, each against curvature h, they would one by one have come to a sum of
    lr · g · (1 - lr · h)^i, about g/h · (1 - exp(-lr · n · h)); added up they overshoot. About half of all curvature
    lies along one direction, that of the mean, and is damped there; across it steps can stay long.
    """
    rows, pushes = rows.flatten(), pushes.flatten(0, 1)
    against = table.new_zeros(len(table), 2).index_add_(0, rows, slopes.flatten(0, 1), alpha=lr)
    short = torch.where(against > 0, -torch.expm1(-against) / against, 1.0)[rows]
    along = (pushes @ common) * (short[:, 0] - short[:, 1])
    table.index_add_(0, rows, pushes.mul_(short[:, 1:]).addr_(along, common), alpha=lr)
