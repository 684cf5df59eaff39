"""Hidden Markov model whose states were seen: tags, counted in tagged sentences (Church 1988; TnT, Brants 2000).

    p(words, tags) = Π p(t_i | t_{i-1}, t_{i-2}, w_{i-1}) · p(w_i | t_i, t_{i-1})

The lecture's a and b, with more to go by: a tag is foretold by the two before it and by the word before it, a word by
its tag and by the tag before it (Thede & Harper 1999; Lee et al. 2000). Every table falls back on more general ones,
down to endings and shapes for words never seen. `forward` gives p(tag | the whole sentence), `viterbi` the best path.

Shapes: B rows, T words, F keys of a word (spelling.py), P = B·T places, K tags, G = K + 1 with the boundary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule.model import IGNORE, Batch, Model
from chainrule.models.hmm import second_order
from chainrule.models.hmm.forward_backward import Packed, pack
from chainrule.models.hmm.interpolation import NOTHING, Abstraction, Observations, distinct, mixed, observe
from chainrule.models.hmm.second_order import Potentials
from chainrule.models.hmm.word_features import KEYS, spelled
from chainrule.settings import Range, Settings

STEP = 1 << 20          # numbers of one time step of a block of texts: 4 MB of float32, so that they stay in the cache
LEAST = 1e-15           # beside the likeliest; so that a move and an emission never vanish together in float32
WORDS = 1 << 15         # words that `predict` reads at a time, padding included


@dataclass(frozen=True)
class TaggerSettings(Settings):
    order: Annotated[int, Range(1, 2)] = 2  # tags before it that a tag depends on
    lexical: bool = True    # a tag depends on the word before it too, and a word on the tag before it; false: TnT's HMM


@dataclass(frozen=True)
class TagStatistics:
    """What was seen: tags of words, tags after tags and words, tags before tags and words."""

    words: Observations
    moves: Observations
    before: Observations
    nats: float = math.nan

    def __add__(self, other: "TagStatistics") -> "TagStatistics":
        return TagStatistics(self.words + other.words, self.moves + other.moves, self.before + other.before)

    def tensors(self) -> list[Tensor]:
        return [tensor for part in (self.words, self.moves, self.before) for tensor in part.tensors()]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "TagStatistics":
        words, moves, before = (Observations(*tensors[place : place + 3]) for place in (0, 3, 6))
        return cls(words, moves, before)


class Tagger(Model):
    """Reads `batch.source`, which has the spelling of words (`spelled` makes such batches); answers with tags."""

    tasks = ("tag",)
    learns_by = "counting"
    Settings = TaggerSettings

    def __init__(self, settings: TaggerSettings, tags: int):
        super().__init__()
        self.settings, self.tags = settings, tags
        plain = 1 + settings.order
        self.words = Abstraction(KEYS, tags, tokens_from=KEYS - 2)                # p(t | spelling)
        self.moves = Abstraction(plain + settings.lexical * settings.order, tags + 1)
        self.before = Abstraction(2, tags + 1)                                    # p(t_{i-1} | t_i), and with w_i
        self.plain = plain                                                        # levels of moves without the word

    # Learning

    def forget(self, generator: torch.Generator) -> None:
        for part in (self.words, self.moves, self.before):
            part.forget()

    def collect(self, batch: Batch) -> TagStatistics:
        spelling = _spelling(batch)
        word = spelling[..., -1]
        real = word != NOTHING
        tags = batch.targets.masked_fill(~real, self.tags)        # around the words lies the boundary
        third, second = _shifted(tags, 0, self.tags), _shifted(tags, 1, self.tags)
        first = _shifted(second[:, :-1], 1, self.tags)
        foretold = _shifted(real, 0, False) | _shifted(real, 1, False)    # every word, and the boundary behind the last
        known = foretold & (third != IGNORE) & (second != IGNORE)
        tagged, whole = known[:, :-1] & real, known & (first != IGNORE)
        alone = real & (tags != IGNORE)
        histories = self._histories(first[whole], second[whole], _shifted(word, 1, NOTHING)[whole])
        return TagStatistics(
            observe(spelling[alone], tags[alone]),
            observe(histories, third[whole]),
            observe(_arrivals(tags[tagged], word[tagged]), second[:, :-1][tagged]),
        )

    def update(self, statistics: TagStatistics) -> None:
        self.words.learn(statistics.words)
        self.moves.learn(statistics.moves)
        self.before.learn(statistics.before)

    def _histories(self, first: Tensor, second: Tensor, word: Tensor) -> Tensor:
        """(Q, levels): what a tag is foretold by, from nothing to all of it."""
        contexts = [torch.ones_like(second), mixed(second), mixed(first, second)][: self.plain]
        if self.settings.lexical:
            contexts += [mixed(second, word), mixed(first, second, word)][: self.settings.order]
        return torch.stack(contexts, 1)

    # Answering

    def forward(self, batch: Batch) -> Tensor:
        """(B, T, K): log p(tag | the whole sentence), so that the best of each is right as often as can be."""
        answer = self._each(batch, second_order.posteriors, torch.ones(batch.targets.numel(), self.tags + 1))
        return answer[:, :-1].log().view(*batch.targets.shape, self.tags)

    def viterbi(self, batch: Batch) -> Tensor:
        """(B, T): the tags of the best path; IGNORE where there is no word."""
        answer = self._each(batch, second_order.best_paths, torch.full((batch.targets.numel(),), IGNORE))
        return answer.view_as(batch.targets)

    def predict(self, sentences: Sequence[Sequence[str]], best_path: bool = False) -> list[list[int]]:
        """The tags of each word: the likeliest of each, or those of the best path."""
        tags: dict[int, list[int]] = {}
        for some in _batches(sentences):
            batch = spelled([sentences[number] for number in some]).to(self.moves.weights.device)
            found = self.viterbi(batch) if best_path else self(batch).argmax(-1)
            tags |= {number: row[: len(sentences[number])] for number, row in zip(some, found.tolist())}
        return [tags[number] for number in range(len(sentences))]

    def _each(self, batch: Batch, search: Callable[[Packed, Potentials], Tensor], answer: Tensor) -> Tensor:
        """`answer` (P, …) filled in where words stand."""
        given, real = self._potentials(batch), _spelling(batch)[..., -1] != NOTHING
        answer, states = answer.to(real.device), (self.tags + 1) ** 2
        for packed in pack(torch.ones_like(batch.targets), real, states, max(states, STEP // (self.tags + 1))):
            answer[packed.places] = search(packed, given)
        return answer

    def _potentials(self, batch: Batch) -> Potentials:
        spelling = _spelling(batch).flatten(0, 1)
        words, word, _ = distinct(spelling[:, -1])
        moves, blocks = self._moves(torch.cat([words.new_full((1,), NOTHING), words]))
        emits, kinds = self._emissions(spelling)
        return Potentials(moves.clamp(min=LEAST).float(), blocks[0], blocks[1:][word], emits.float(), kinds)

    def _moves(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks (F, G, G) of p(c | a, b, word), as [a, c]; and for each word and b (W, G) which of them holds.

        The first G blocks are those of words that were never seen with a tag.
        """
        every = torch.arange(self.tags + 1, device=words.device)
        second, first = (axis.flatten() for axis in torch.meshgrid(every, every, indexing="ij"))
        below = self.moves.probabilities(self._histories(first, second, first)[:, : self.plain])
        plain, blocks = below.view(len(every), len(every), -1), every.repeat(len(words), 1)
        if not self.settings.lexical:
            return plain, blocks
        known = self.moves.knows(self.plain, mixed(every.repeat(len(words)), words.repeat_interleave(len(every))))
        word, second = known.view_as(blocks).nonzero().unbind(1)
        blocks[word, second] = torch.arange(len(word), device=words.device) + len(every)
        first, second, word = every.repeat(len(word)), *(part.repeat_interleave(len(every)) for part in (second, word))
        contexts = self._histories(first, second, words[word])[:, self.plain :]
        special = self.moves.probabilities(contexts, plain[second, first])
        return torch.cat([plain, special.view(-1, *plain.shape[1:])]), blocks

    def _emissions(self, spelling: Tensor) -> tuple[Tensor, Tensor]:
        """p(w | c, b) / p(w), as [b, c], of each kind of word (W, G, G), by Bayes; and the kind of each word (P,).

            p(w | c, b) / p(w) = p(c | w) / p(c) · p(b | c, w) / p(b | c)

        Each is scaled to a maximum of one, which changes no answer.
        """
        _, kinds, examples = distinct(mixed(*spelling.unbind(1)))
        words = spelling[examples]
        tags = torch.arange(self.tags, device=words.device)
        every = self.moves.probabilities(torch.ones_like(tags[:1])[:, None])[:, :-1]             # p(c)
        emits = (self.words.probabilities(words) / every)[:, None].repeat(1, self.tags + 1, 1)   # (W, G, K)
        if self.settings.lexical:
            emits *= self._tags_before(words[:, -1]).mT
        emits /= emits.amax((1, 2), keepdim=True)
        return pad(emits.clamp(min=LEAST), (0, 1)), kinds

    def _tags_before(self, words: Tensor) -> Tensor:
        """(W, K, G): p(b | c, word) / p(b | c)."""
        tags = torch.arange(self.tags, device=words.device)
        plain = self.before.probabilities(mixed(tags)[:, None])
        contexts = mixed(tags.repeat(len(words)), words.repeat_interleave(self.tags))[:, None]
        special = self.before.probabilities(contexts, plain.repeat(len(words), 1))
        return special.view(len(words), *plain.shape) / plain


def _spelling(batch: Batch) -> Tensor:
    """(B, T, F); zeros where no word stands."""
    if batch.source is None:
        raise ValueError("a tagger reads how words are spelled, in batch.source: make the batch by `spelled`")
    return batch.source


def _shifted(columns: Tensor, places: int, edge: int) -> Tensor:
    """(B, T) -> (B, T + 1), moved to the right by 0 or 1; what is not there is the edge."""
    return pad(columns, (places, 1 - places), value=edge)


def _arrivals(tags: Tensor, words: Tensor) -> Tensor:
    return torch.stack([mixed(tags), mixed(tags, words)], 1)


def _batches(sentences: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    """Which sentences to read together: of like length, and so many that memory is bounded."""
    some: list[int] = []
    for number in sorted(range(len(sentences)), key=lambda number: len(sentences[number])):
        if some and len(sentences[number]) * (len(some) + 1) > WORDS:
            yield some
            some = []
        some.append(number)
    if some:
        yield some
