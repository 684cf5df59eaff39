"""Bootstrap intervals, and the paired bootstrap: which model predicts a text better, and is the difference significant?

A number has the middle 95 % of a thousand draws as its interval, each of the N measured units with replacement (Efron
1979; for translations Koehn 2004; draws and bounds are sacreBLEU's). For bits per byte the held-out text is cut into
blocks of bytes, and the blocks are drawn (block bootstrap, Künsch 1989). Two models are compared on the same draws, so
that what makes a block hard for both cancels out. The interval covers the choice of the text, not the seed of training.

Shapes: N units or tokens, K blocks.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.inference.evaluate import Result, evaluate, require_alike
from chainrule.inference.forward import eval_mode, on_device
from chainrule.inference.score import Nats, Places, Tokens, score_documents, score_stream
from chainrule.model import LanguageModel, state_bytes
from chainrule.text.corpus import Split
from chainrule.text.synthetic import Language
from chainrule.text.tokenizers.tokenizer import Tokenizer

ROUNDS = 1000
SEED = 12345
AT_ONCE = 1 << 16        # units that are drawn at once, in one or more rounds

Weights: TypeAlias = NDArray[np.int64]
"""(N,) how often each unit is drawn."""


@dataclass(frozen=True)
class Score:
    value: float
    low: float            # 95 % of the draws lie between low and high
    high: float

    def as_dict(self, name: str) -> dict[str, Any]:
        """For strict JSON, which has no infinity."""
        return {name: finite(self.value), f"{name}_interval": [finite(self.low), finite(self.high)]}


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def bootstrap(measure: Callable[[Weights], float], count: int, *, rounds: int = ROUNDS, seed: int = SEED) -> Score:
    """`measure` of all units, each counted once, and of each draw; draws without a number (nan) are left out."""
    drawn = np.sort(np.array([measure(weights) for weights in draws(count, rounds, seed)]))
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        raise UserError("the model's scores are not numbers (nan): its weights are damaged, or training diverged. "
                        "Train it again, with a lower train.lr.")
    beyond = len(drawn) // 40
    return Score(measure(np.ones(count, np.int64)), float(drawn[beyond]), float(drawn[len(drawn) - beyond - 1]))


def draws(count: int, rounds: int, seed: int) -> Iterator[Weights]:
    """How often each of `count` units is drawn, in each round. Rounds of few units are drawn at once: the same numbers
    in a tenth of the time."""
    generator, at_once = np.random.default_rng(seed), max(1, AT_ONCE // max(1, count))
    for first in range(0, rounds, at_once):
        some = min(at_once, rounds - first)
        units = generator.integers(0, count, (some, count)) + count * np.arange(some)[:, None]
        yield from np.bincount(units.ravel(), minlength=some * count).reshape(some, count)


def bootstrap_mean(values: NDArray[Any]) -> Score:
    """The mean of (N,) values."""
    return bootstrap(lambda weights: float(weights @ values) / len(values), len(values))


def bootstrap_two_way(values: NDArray[Any], *, rounds: int = ROUNDS, seed: int = SEED) -> Score:
    """The mean of (D, N) values, where both the D draws and the N units are drawn with replacement."""
    random, (draws, units) = np.random.default_rng(seed), values.shape
    means = np.sort([values[random.integers(0, draws, draws)][:, random.integers(0, units, units)].mean()
                     for _ in range(rounds)])
    beyond = rounds // 40
    return Score(float(values.mean()), float(means[beyond]), float(means[rounds - beyond - 1]))


Bits: TypeAlias = NDArray[np.float64]

BLOCKS = 100             # a text is cut into at least about this many,
SHORTEST = 256           # but none has fewer bytes than this,
LONGEST = 4096           # and none has more: words of one page depend on each other, words of two pages hardly do
READ = 128               # tokens after which the size of a state is measured


@dataclass(frozen=True)
class ScoredSplit:
    """The cross-entropy of every token of a text, and where the tokens end in it."""

    result: Result
    nats: Nats           # (N,) -log p, the ends of texts included
    ends: Places         # (N,) bytes of the text up to and with each token

    @property
    def bits(self) -> Bits:
        return self.nats / math.log(2)


def score_split(model: LanguageModel, tokenizer: Tokenizer, split: Split) -> ScoredSplit:
    """`evaluate`, with the nats of every token."""
    kept = np.empty(0)

    def total_nats(model: LanguageModel, tokens: Tokens, stride: int | None) -> float:
        nonlocal kept
        kept = score_documents(model, tokens) if split.packed else score_stream(model, tokens, stride=stride)
        return math.fsum(kept)

    result = evaluate(model, tokenizer, split, total_nats=total_nats)
    return ScoredSplit(result, kept, byte_ends(tokenizer, split.tokens[1:]))


def byte_ends(tokenizer: Tokenizer, tokens: Tokens) -> Places:
    """(N,): bytes of the text up to and with each token. A character of several tokens belongs to the last of them."""
    feed = tokenizer.stream_decoder().feed
    return np.cumsum([len(feed(token).encode()) for token in tokens.tolist()], dtype=np.int64)


@dataclass(frozen=True)
class Blocks:
    """A text cut into blocks of almost equal size, which the bootstrap draws."""

    edges: Places        # (K + 1,) in bytes

    @classmethod
    def of(cls, size: int) -> "Blocks":
        """For a text of `size` bytes."""
        length = min(max(size // BLOCKS, SHORTEST), LONGEST)
        count = size // length
        if count < 2:
            raise UserError(f"the held-out text has {size} bytes; an interval needs {2 * SHORTEST} or more. Give more "
                            "text, a longer --valid F, or a larger text.held_out.")
        return cls(np.linspace(0, size, count + 1).round().astype(np.int64))

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def sizes(self) -> Places:
        return np.diff(self.edges)

    def distribute(self, bits: Bits, ends: Places) -> Bits:
        """(N,) -> (K,): the bits of each block; a token that crosses an edge is divided in proportion to its bytes."""
        so_far = np.interp(self.edges, np.append(0, ends), np.append(0, np.cumsum(bits)))
        so_far[0] = 0    # leading tokens without bytes belong to the first block
        return np.diff(so_far)

    def mean(self, bits: Bits) -> Score:
        """Bits per byte of (K,) bits, or of the difference in bits between two models."""
        sizes = self.sizes
        return bootstrap(lambda weights: float(weights @ bits / (weights @ sizes)), len(self))


@dataclass(frozen=True)
class Difference:
    better: str
    worse: str
    gap: Score           # bits per byte of the worse minus those of the better

    @property
    def real(self) -> bool:
        """Whether the difference is significant: the interval does not contain 0."""
        return self.gap.low > 0

    def as_dict(self) -> dict[str, Any]:
        return {"better": self.better, "worse": self.worse, **self.gap.as_dict("bits_per_byte"), "real": self.real}


@dataclass(frozen=True)
class Comparison:
    """Models on one text. A model that gives a token probability 0 has no bits per byte and is not ranked."""

    blocks: Blocks
    bits: Mapping[str, Bits]             # (K,) by model, the best first
    truth: Bits | None                   # (K,) by the true probabilities, for a synthetic language

    def row(self, name: str) -> dict[str, Any]:
        """The model's bits per byte, and its gap to the true distribution; plain values for JSON."""
        if name not in self.bits:
            return {"bits_per_byte": None, "bits_per_byte_interval": None}
        row = self.blocks.mean(self.bits[name]).as_dict("bits_per_byte")
        if self.truth is not None:
            row |= self.blocks.mean(self.bits[name] - self.truth).as_dict("gap")
        return row

    def differences(self) -> list[Difference]:
        """The paired difference of every two models, from the best down."""
        return [
            Difference(better, worse, self.blocks.mean(self.bits[worse] - self.bits[better]))
            for better, worse in combinations(self.bits, 2)
        ]


def compare_scores(scored: Mapping[str, ScoredSplit], truth: tuple[Bits, Places] | None = None) -> Comparison:
    """Models by name, all on one text. Refuses results with different signatures.

    `truth`: bits by the true probabilities of a synthetic language, and the byte at which each symbol ends.
    """
    require_alike([one.result.signature for one in scored.values()])
    blocks = Blocks.of(next(iter(scored.values())).result.bytes)
    bits = {name: blocks.distribute(one.bits, one.ends) for name, one in scored.items() if np.isfinite(one.nats).all()}
    ranked = dict(sorted(bits.items(), key=lambda item: float(item[1].sum())))
    return Comparison(blocks, ranked, None if truth is None else blocks.distribute(*truth))


def true_bits(language: Language, text: str) -> tuple[Bits, Places]:
    """Bits of each character by the true probabilities of a synthetic language, and the byte at which each ends."""
    return np.fromiter(language.character_bits(text), np.float64), np.cumsum([len(letter.encode()) for letter in text])


@torch.inference_mode()
def state_size(model: LanguageModel, tokens: Tokens) -> tuple[int, float]:
    """Bytes of the state after READ tokens, or as many as the context holds; and the bytes that each token added."""
    read = min(READ, model.context or READ, len(tokens))
    with eval_mode(model):
        empty = model.start(1)
        empty_bytes = state_bytes(empty)
        _, state = model.step(on_device(model, tokens[None, :read]), empty)
    return state_bytes(state), (state_bytes(state) - empty_bytes) / read
