"""HMM part-of-speech tagger: a second-order HMM whose states are the tags, trained by counting (TnT, Brants 2000).

    p(words, tags) = Π p(t_i | t_{i-1}, t_{i-2}, w_{i-1}) · p(w_i | t_i, t_{i-1})

The lecture's a and b with longer contexts: a tag depends on the two before it and on the word before it, a word on its
tag and on the tag before it (Thede & Harper 1999; Lee et al. 2000). Every table is interpolated with more general ones,
down to suffixes and shapes for unknown words. `forward` gives p(tag | the whole sentence), `viterbi` the best path.

Shapes: B rows, T words, F features of a word, P = B·T positions, K tags, G = K + 1 with the boundary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule.model import IGNORE, Batch, Model
from chainrule.models.hmm.forward_backward import (
    PackedTexts,
    Potentials,
    pack_texts,
    second_order_forward,
    second_order_pairs,
    second_order_posteriors,
    second_order_viterbi,
)
from chainrule.models.hmm.interpolation import NO_CONTEXT, Interpolation, Observations, distinct, hashed, observe
from chainrule.models.hmm.word_features import FEATURES, tagging_batch
from chainrule.settings import Range, Settings

STEP = 1 << 20          # numbers of one time step of a block of texts: 4 MB of float32, so that they stay in the cache
LEAST = 1e-15           # least potential, where the largest is 1: a product of two does not underflow in float32
WORDS = 1 << 15         # words that `predict` reads at a time, padding included


@dataclass(frozen=True)
class HMMTaggerSettings(Settings):
    order: Annotated[int, Range(1, 2)] = 2  # order of the Markov chain: a tag depends on 1 or 2 tags before it
    lexical: bool = True    # a tag depends on the previous word too, and a word on the previous tag; false: TnT's HMM


@dataclass(frozen=True)
class TagStatistics:
    """Observed tags: of words, after tags and words, before tags and words."""

    lexicon: Observations
    transitions: Observations
    previous: Observations
    nats: float = math.nan

    def __add__(self, other: "TagStatistics") -> "TagStatistics":
        return TagStatistics(
            self.lexicon + other.lexicon, self.transitions + other.transitions, self.previous + other.previous
        )

    def tensors(self) -> list[Tensor]:
        return [tensor for part in (self.lexicon, self.transitions, self.previous) for tensor in part.tensors()]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "TagStatistics":
        lexicon, transitions, previous = (Observations(*tensors[place : place + 3]) for place in (0, 3, 6))
        return cls(lexicon, transitions, previous)


@dataclass(frozen=True)
class TagMessages:
    """Of one sentence; the last number of each axis of tags is the boundary, which is before the first word."""

    alpha: Tensor     # (T, G, G): p(tag, tag before | the words so far)
    delta: Tensor     # (T, G, G): the best path to both tags; scaled to a maximum of one at each word
    pairs: Tensor     # (T, G, G): p(tag, tag before | the whole sentence)


class HMMTagger(Model):
    """Reads word features in `batch.source` (`tagging_batch` makes such batches) and predicts tags."""

    learns_by = "counting"
    Settings = HMMTaggerSettings

    def __init__(self, settings: HMMTaggerSettings, tags: int):
        super().__init__()
        self.settings, self.tags = settings, tags
        self.plain = 1 + settings.order                                            # levels of transitions without words
        self.lexicon = Interpolation(FEATURES, tags, tokens_from=FEATURES - 2)     # p(t_i | features of w_i)
        self.transitions = Interpolation(self.plain + settings.lexical * settings.order, tags + 1)
        self.previous = Interpolation(2, tags + 1)                                 # p(t_{i-1} | t_i), and with w_i

    # Learning

    def forget(self, generator: torch.Generator) -> None:
        for part in (self.lexicon, self.transitions, self.previous):
            part.forget()

    def collect(self, batch: Batch) -> TagStatistics:
        features = _features(batch)
        word = features[..., -1]
        real = word != NO_CONTEXT
        tags = batch.targets.masked_fill(~real, self.tags)        # the boundary is before and after the words
        third, second = _shifted(tags, 0, self.tags), _shifted(tags, 1, self.tags)
        first = _shifted(second[:, :-1], 1, self.tags)
        predicted = _shifted(real, 0, False) | _shifted(real, 1, False)   # every word, and the boundary after the last
        known = predicted & (third != IGNORE) & (second != IGNORE)
        tagged, whole = known[:, :-1] & real, known & (first != IGNORE)
        alone = real & (tags != IGNORE)
        histories = self._histories(first[whole], second[whole], _shifted(word, 1, NO_CONTEXT)[whole])
        arrivals = torch.stack([hashed(tags[tagged]), hashed(tags[tagged], word[tagged])], 1)
        return TagStatistics(
            observe(features[alone], tags[alone]),
            observe(histories, third[whole]),
            observe(arrivals, second[:, :-1][tagged]),
        )

    def update(self, statistics: TagStatistics) -> None:
        self.lexicon.learn(statistics.lexicon)
        self.transitions.learn(statistics.transitions)
        self.previous.learn(statistics.previous)

    def _histories(self, first: Tensor, second: Tensor, word: Tensor) -> Tensor:
        """(Q, levels): the contexts that predict a tag, from the empty one to the longest."""
        contexts = [torch.ones_like(second), hashed(second), hashed(first, second)][: self.plain]
        if self.settings.lexical:
            contexts += [hashed(second, word), hashed(first, second, word)][: self.settings.order]
        return torch.stack(contexts, 1)

    # Prediction

    def forward(self, batch: Batch) -> Tensor:
        """(B, T, K): log p(tag | the whole sentence); its argmax maximises the expected number of correct tags."""
        gamma = self._each(batch, second_order_posteriors, torch.ones(batch.targets.numel(), self.tags + 1))
        return gamma[:, :-1].log().view(*batch.targets.shape, self.tags)

    def viterbi(self, batch: Batch) -> Tensor:
        """(B, T): the tags of the best path; IGNORE where there is no word."""
        path = self._each(batch, second_order_viterbi, torch.full((batch.targets.numel(),), IGNORE))
        return path.view_as(batch.targets)

    def tag_messages(self, batch: Batch) -> "TagMessages":
        """α, δ and ξ of one sentence, (1, T), by a word's tag and the one before it."""
        given = self._potentials(batch)
        real = _features(batch)[..., -1] != NO_CONTEXT
        (packed,) = pack_texts(torch.ones_like(batch.targets), real, (self.tags + 1) ** 2)
        alpha, delta = (second_order_forward(packed, given, best) for best in (False, True))
        pairs = second_order_pairs(packed, given)
        return TagMessages(alpha / alpha.sum((1, 2), keepdim=True), delta, pairs)

    def predict(self, sentences: Sequence[Sequence[str]], best_path: bool = False) -> list[list[int]]:
        """The tags of each sentence: the most probable tag of each word, or the best path."""
        tags: dict[int, list[int]] = {}
        for some in _batches(sentences):
            batch = tagging_batch([sentences[number] for number in some]).to(self.transitions.weights.device)
            found = self.viterbi(batch) if best_path else self(batch).argmax(-1)
            tags |= {number: row[: len(sentences[number])] for number, row in zip(some, found.tolist())}
        return [tags[number] for number in range(len(sentences))]

    def _each(self, batch: Batch, search: Callable[[PackedTexts, Potentials], Tensor], result: Tensor) -> Tensor:
        """`result` (P, …) with the output of `search` where there are words."""
        given, real = self._potentials(batch), _features(batch)[..., -1] != NO_CONTEXT
        result, states = result.to(real.device), (self.tags + 1) ** 2
        for packed in pack_texts(torch.ones_like(batch.targets), real, states, max(states, STEP // (self.tags + 1))):
            result[packed.positions] = search(packed, given)
        return result

    def _potentials(self, batch: Batch) -> Potentials:
        features = _features(batch).flatten(0, 1)
        words, word, _ = distinct(features[:, -1])
        transitions, blocks = self._transitions(torch.cat([words.new_full((1,), NO_CONTEXT), words]))
        emissions, kinds = self._emissions(features)
        return Potentials(transitions.clamp(min=LEAST).float(), blocks[0], blocks[1:][word], emissions.float(), kinds)

    def _transitions(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks (…, G, G) of p(c | a, b, word), as [a, c]; and for each word and b (W, G) the block to use.

        The first G blocks are those of words that were never seen with a tag.
        """
        every = torch.arange(self.tags + 1, device=words.device)
        second, first = (axis.flatten() for axis in torch.meshgrid(every, every, indexing="ij"))
        below = self.transitions.probabilities(self._histories(first, second, first)[:, : self.plain])
        plain, blocks = below.view(len(every), len(every), -1), every.repeat(len(words), 1)
        if not self.settings.lexical:
            return plain, blocks
        pairs = hashed(every.repeat(len(words)), words.repeat_interleave(len(every)))
        known = self.transitions.knows(self.plain, pairs)
        word, second = known.view_as(blocks).nonzero().unbind(1)
        blocks[word, second] = torch.arange(len(word), device=words.device) + len(every)
        first, second, word = every.repeat(len(word)), *(part.repeat_interleave(len(every)) for part in (second, word))
        contexts = self._histories(first, second, words[word])[:, self.plain :]
        lexical = self.transitions.probabilities(contexts, plain[second, first])
        return torch.cat([plain, lexical.view(-1, *plain.shape[1:])]), blocks

    def _emissions(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """p(w | c, b) / p(w), as [b, c], of each kind of word (W, G, G), by Bayes; and the kind of each word (P,).

            p(w | c, b) / p(w) = p(c | w) / p(c) · p(b | c, w) / p(b | c)

        Each is scaled to a maximum of one, which changes no result.
        """
        _, kinds, examples = distinct(hashed(*features.unbind(1)))
        words = features[examples]
        tags = torch.arange(self.tags, device=words.device)
        prior = self.transitions.probabilities(torch.ones_like(tags[:1])[:, None])[:, :-1]            # p(c)
        emissions = (self.lexicon.probabilities(words) / prior)[:, None].repeat(1, self.tags + 1, 1)  # (W, G, K)
        if self.settings.lexical:
            emissions *= self._previous_tags(words[:, -1]).mT
        emissions /= emissions.amax((1, 2), keepdim=True)
        return pad(emissions.clamp(min=LEAST), (0, 1)), kinds

    def _previous_tags(self, words: Tensor) -> Tensor:
        """(W, K, G): p(b | c, word) / p(b | c)."""
        tags = torch.arange(self.tags, device=words.device)
        plain = self.previous.probabilities(hashed(tags)[:, None])
        contexts = hashed(tags.repeat(len(words)), words.repeat_interleave(self.tags))[:, None]
        lexical = self.previous.probabilities(contexts, plain.repeat(len(words), 1))
        return lexical.view(len(words), *plain.shape) / plain


def _features(batch: Batch) -> Tensor:
    """(B, T, F); zeros where there is no word."""
    if batch.source is None:
        raise ValueError("HMMTagger reads word features in batch.source: make the batch with `tagging_batch`")
    return batch.source


def _shifted(columns: Tensor, places: int, edge: int) -> Tensor:
    """(B, T) -> (B, T + 1), moved to the right by 0 or 1 and filled with `edge`."""
    return pad(columns, (places, 1 - places), value=edge)


def _batches(sentences: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    """Indices of sentences to read together: of similar length, and so few that memory is bounded."""
    some: list[int] = []
    for number in sorted(range(len(sentences)), key=lambda number: len(sentences[number])):
        if some and len(sentences[number]) * (len(some) + 1) > WORDS:
            yield some
            some = []
        some.append(number)
    if some:
        yield some
