"""A text to be restored: an ordinary corpus, whose tokenizer has the tokens that stand for what was taken away."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chainrule.recipe import Text
from chainrule.text.batches import InOrder, Streams, Windows
from chainrule.text.corpus import Corpus, prepare
from chainrule.text.corruption import MASK, Masked, Spans, sentinel_names, span_count
from chainrule.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CorruptedCorpus(Corpus):
    task: str = "mask"
    sentinels: int = 0              # tokens that stand for spans
    ordinary: int = 0               # tokens of the text itself, the boundary included
    length: int = 0                 # tokens in a row

    def corrupted(self, order: Windows | Streams | InOrder, seed: int) -> Masked | Spans:
        """The rows of an order, each made incomplete."""
        if self.task == "mask":
            return Masked(order, self._id(MASK), np.arange(1, self.ordinary), seed)
        names = sentinel_names(self.sentinels)
        return Spans(order, np.array([self._id(name) for name in names]), seed)

    def _id(self, name: str) -> int:
        id = self.tokenizer.id(name)
        assert id is not None, f"{name} was added when the corpus was made"
        return id


def prepare_corrupted(
    task: str,
    texts: Sequence[str],
    settings: Text,
    length: int,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
) -> CorruptedCorpus:
    """A corpus for rows of `length` tokens. `tokenizer`: one that comes from elsewhere; it is given what it lacks."""
    corpus = prepare(texts, settings, valid=valid, test=test, tokenizer=tokenizer)
    sentinels = span_count(length)[1] if task == "span" else 0
    names = (MASK,) if task == "mask" else sentinel_names(sentinels)
    known = [name for name in names if corpus.tokenizer.id(name) is not None]
    grown = corpus.tokenizer.with_special([name for name in names if name not in known])
    ordinary = len(corpus.tokenizer) - len(known)
    return CorruptedCorpus(corpus.splits, grown, corpus.notes, task, sentinels, ordinary, length)
