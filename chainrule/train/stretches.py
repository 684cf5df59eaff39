"""Where pairs come from: the text, stretch by stretch, on the model's device. Each stretch is a round of training.

Chance is drawn from the seed and the number of the round, so any round can be had again without those before it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.model import BOUNDARY, changed
from chainrule.progress import bar
from chainrule.text.batches import Tokens
from chainrule.text.tokenizer import Tokenizer
from chainrule.text.units.words import UNKNOWN

STRETCH = 1 << 20       # tokens, or cells of a table, in a round


class Words:
    """A text in stretches that end where a line or document ends, if one does; without words that have no vector."""

    def __init__(self, tokens: Tokens, tokenizer: Tokenizer, device: torch.device):
        self.tokens, self.device = tokens, device
        self.unknown = tokenizer.id(UNKNOWN)
        self.ends = list(_ends(tokens))

    def __len__(self) -> int:
        return len(self.ends)

    def at(self, place: int) -> tuple[Tensor, Tensor]:
        """(N,) words, and a number for the text that each stands in."""
        begin = self.ends[place - 1] if place else 0
        tokens = torch.from_numpy(self.tokens[begin : self.ends[place]].astype(np.int32)).to(self.device).long()
        texts, known = (tokens == BOUNDARY).cumsum(0), tokens != BOUNDARY
        if self.unknown is not None:
            known &= tokens != self.unknown
        return tokens[known], texts[known]

    def counts(self, vocab: int) -> Tensor:
        """(V,) how often each word occurs."""
        total = torch.zeros(vocab, dtype=torch.long, device=self.device)
        for place in range(len(self)):
            total += torch.bincount(self.at(place)[0], minlength=vocab)
        return total


class Passing:
    """Rounds of pairs that are met as the text passes."""

    unit = "words"

    def __init__(self, model: Any, words: Words, counts: Tensor, seed: int):
        self.model, self.words, self.seed = model, words, seed
        near = any(bool((texts[1:] == texts[:-1]).any()) for _, texts in map(words.at, range(len(words))))
        self.size = int(counts.sum()) if near else 0       # words in an epoch, if any two stand side by side

    def at(self, number: int) -> tuple[Any, int]:
        """Examples, and how many words they are of."""
        tokens, texts = self.words.at(number % len(self.words))
        return self.model.meet(tokens, texts, chance_of(self.seed, 1 + number, tokens.device)), len(tokens)


class Gathered:
    """Rounds of cells that were added up over the whole text."""

    unit = "pairs"

    def __init__(self, model: Any, words: Words, counts: Tensor, seed: int):
        chance, sums = chance_of(seed, 1, counts.device), []
        with bar("counting pairs", int(counts.sum()), "words") as advance:
            for place in range(len(words)):
                tokens, texts = words.at(place)
                sums.append(model.meet(tokens, texts, chance))
                while len(sums) > 1 and len(sums[-2]["pairs"]) < 2 * len(sums[-1]["pairs"]):    # like meets like
                    sums.append(model.add(sums.pop(), sums.pop()))
                advance(len(tokens))
        while len(sums) > 1:
            sums.append(model.add(sums.pop(), sums.pop()))
        self.examples = model.examples(sums[0], chance)
        self.size = len(self.examples["counts"])

    def at(self, number: int) -> tuple[Any, int]:
        rounds = max(1, -(-self.size // STRETCH))
        examples = rows_of(self.examples, number % rounds * STRETCH, STRETCH)
        return examples, len(examples["counts"])


def rows_of(examples: Any, begin: int, size: int) -> Any:
    return changed(examples, lambda tensor: tensor[begin : begin + size])


def chance_of(seed: int, number: int, device: torch.device) -> torch.Generator:
    state = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state) >> 1)


def _ends(tokens: Tokens) -> Iterator[int]:
    """Where stretches end: before the last boundary that comes soon enough, if one does."""
    begin = 0
    while begin < len(tokens):
        end = min(begin + STRETCH, len(tokens))
        if end < len(tokens) and len(found := np.flatnonzero(tokens[begin + 1 : end] == BOUNDARY)):
            end = begin + 1 + int(found[-1])
        yield end
        begin = end
