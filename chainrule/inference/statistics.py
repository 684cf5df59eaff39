"""A piece of held-out text to look at, token by token: what each cost a model that had read all before it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.inference.bootstrap import Score, bootstrap
from chainrule.inference.evaluate import Result, evaluate, require_alike
from chainrule.inference.forward import at_rest, on_device
from chainrule.inference.score import Nats, Places, Tokens, score_stream
from chainrule.model import LanguageModel, state_bytes
from chainrule.text.corpus import Split
from chainrule.text.synthetic import Language
from chainrule.text.tokenizers.tokenizer import Tokenizer

# Which model foretells a text better, and is the gap real?
#
# The held-out text is cut into blocks of bytes, and every model's bits are laid on them, whatever its tokens are.
# Blocks
# are drawn again, as many as there are and with repetition (Künsch 1989): of a thousand such texts the middle 95 %
# of the
# bits per byte are the interval. Two models are compared on the same draws, so what makes a block hard for both cancels
# out. This speaks for the choice of the text alone: training again with another seed is a chance of its own.
#
# Shapes: N tokens, K blocks.

Bits: TypeAlias = NDArray[np.float64]

BLOCKS = 100             # there are about so many at least,
SHORTEST = 256           # unless they would have fewer bytes than this;
LONGEST = 4096           # and no more than this: words of one page hang together, those of two hardly
READ = 128               # tokens after which a state is weighed


@dataclass(frozen=True)
class Scored:
    """A model's surprise at every token of a text, and where the tokens lie."""

    result: Result
    nats: Nats           # (N,) ends of texts included
    ends: Places         # (N,) bytes of the text up to and with each token

    @property
    def bits(self) -> Bits:
        return self.nats / math.log(2)


def score(model: LanguageModel, tokenizer: Tokenizer, split: Split) -> Scored:
    """`evaluate`, with what it was added up from."""
    kept = np.empty(0)

    def total_nats(model: LanguageModel, tokens: Tokens, stride: int | None) -> float:
        nonlocal kept
        kept = score_stream(model, tokens, stride=stride)
        return math.fsum(kept)

    result = evaluate(model, tokenizer, split, total_nats=total_nats)
    return Scored(result, kept, byte_ends(tokenizer, split.tokens[1:]))


def byte_ends(tokenizer: Tokenizer, tokens: Tokens) -> Places:
    """(N,): bytes of the text up to and with each token. A character that several tokens spell is the last one's."""
    feed = tokenizer.pieces().feed
    return np.cumsum([len(feed(token).encode()) for token in tokens.tolist()], dtype=np.int64)


@dataclass(frozen=True)
class Blocks:
    """A text cut into parts of like size."""

    edges: Places        # (K + 1,) in bytes

    @classmethod
    def of(cls, size: int) -> "Blocks":
        """For a text of so many bytes."""
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

    def lay(self, bits: Bits, ends: Places) -> Bits:
        """(N,) -> (K,): the bits of each block; a token that lies on an edge is shared out by its bytes."""
        so_far = np.interp(self.edges, np.append(0, ends), np.append(0, np.cumsum(bits)))
        so_far[0] = 0    # what has no bytes, at the very beginning, is the first block's
        return np.diff(so_far)

    def mean(self, bits: Bits) -> Score:
        """Bits per byte of (K,) bits, or of how much more one model needs than another."""
        sizes = self.sizes
        return bootstrap(lambda weights: float(weights @ bits / (weights @ sizes)), len(self))


@dataclass(frozen=True)
class Difference:
    better: str
    worse: str
    gap: Score           # bits per byte that the worse one needs more

    @property
    def real(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.gap.low > 0

    def as_dict(self) -> dict[str, Any]:
        return {"better": self.better, "worse": self.worse, **self.gap.as_dict("bits_per_byte"), "real": self.real}


@dataclass(frozen=True)
class Comparison:
    """Models on one text. Those that hold a part of it for impossible have no number, and no place in the order."""

    blocks: Blocks
    bits: Mapping[str, Bits]             # (K,) by model, the best first
    truth: Bits | None                   # (K,) what the text costs by its true probabilities, where they are known

    def row(self, name: str) -> dict[str, Any]:
        """The model's number, and its gap to the truth; plain values for JSON."""
        if name not in self.bits:
            return {"bits_per_byte": None, "bits_per_byte_interval": None}
        row = self.blocks.mean(self.bits[name]).as_dict("bits_per_byte")
        if self.truth is not None:
            row |= self.blocks.mean(self.bits[name] - self.truth).as_dict("gap")
        return row

    def differences(self) -> list[Difference]:
        """Of every pair, from the best down."""
        return [
            Difference(better, worse, self.blocks.mean(self.bits[worse] - self.bits[better]))
            for better, worse in combinations(self.bits, 2)
        ]


def compare(scored: Mapping[str, Scored], truth: tuple[Bits, Places] | None = None) -> Comparison:
    """Models by name, all of one text. Refuses results that were not measured alike.

    `truth`: bits of the text by its true probabilities, and where what they are of ends, in bytes.
    """
    require_alike([one.result.signature for one in scored.values()])
    blocks = Blocks.of(next(iter(scored.values())).result.bytes)
    bits = {name: blocks.lay(one.bits, one.ends) for name, one in scored.items() if np.isfinite(one.nats).all()}
    ranked = dict(sorted(bits.items(), key=lambda item: float(item[1].sum())))
    return Comparison(blocks, ranked, None if truth is None else blocks.lay(*truth))


def true_bits(language: Language, text: str) -> tuple[Bits, Places]:
    """Of each character of a text in a language whose probabilities are known; and where each ends, in bytes."""
    return np.fromiter(language.surprises(text), np.float64), np.cumsum([len(letter.encode()) for letter in text])


@torch.inference_mode()
def weigh_state(model: LanguageModel, tokens: Tokens) -> tuple[int, float]:
    """Bytes of a text's state when READ tokens of it have been read, or all that the model holds; and bytes that each
    of them has added."""
    read = min(READ, model.context or READ, len(tokens))
    with at_rest(model):
        before = model.start(1)
        at_first = state_bytes(before)
        _, after = model.step(on_device(model, tokens[None, :read]), before)
    return state_bytes(after), (state_bytes(after) - at_first) / read


LENGTH = 1200     # bytes
PROMPT = 32       # characters


@dataclass(frozen=True)
class Excerpt:
    begin: int    # in bytes of the whole text
    text: str

    @classmethod
    def of(cls, whole: str) -> "Excerpt":
        """From the first line that begins in the second third; where there are no lines, from there on."""
        third = len(whole) // 3
        line = whole.find("\n", third, 2 * third) + 1
        begin = line or third
        text = whole[begin : begin + LENGTH]
        return cls(len(whole[:begin].encode()), text)

    @property
    def end(self) -> int:
        return self.begin + len(self.text.encode())

    @property
    def prompt(self) -> str:
        """Its first words, for samples to go on from."""
        head = self.text[:PROMPT]
        return head[: head.rfind(" ") + 1] or head


@dataclass(frozen=True)
class Strip:
    """The tokens of an excerpt as text, whole characters only, and the bits of each."""

    begin: int                               # in bytes of the whole text
    pieces: Sequence[tuple[str, float]]


def strip(excerpt: Excerpt, scored: Scored, tokenizer: Tokenizer, tokens: Tokens) -> Strip:
    """Those tokens that lie wholly in the excerpt; `tokens`: all that were scored."""
    begins = np.append(0, scored.ends[:-1])
    first = int(np.searchsorted(begins, excerpt.begin))
    last = max(first, int(np.searchsorted(scored.ends, excerpt.end, "right")))
    begin = int(begins[first]) if first < len(begins) else excerpt.end
    return Strip(begin, pieces(tokenizer, tokens[first:last].tolist(), scored.bits[first:last]))


def pieces(tokenizer: Tokenizer, tokens: Sequence[int], bits: Bits) -> list[tuple[str, float]]:
    """What the tokens spell, and their bits; a token without text of its own counts to the next that has some."""
    feed, waiting, shown = tokenizer.pieces().feed, 0.0, list[tuple[str, float]]()
    for token, cost in zip(tokens, bits.tolist(), strict=True):
        text, waiting = feed(token), waiting + cost
        if text:
            shown.append((text, waiting))
            waiting = 0.0
    return shown
