"""Contextual vectors: one word in several sentences, and how similar its vectors are, layer by layer.

    cos(a, b) = a · b / |a||b|        of every two occurrences of the word

An embedding is one vector for a word, whatever the sentence: all cosines are 1. After a layer that reads the context
the vectors differ, and a word that means the same should be closer to itself than one that does not. Each line of the
text is a sentence. A word of several tokens has the mean of their vectors. The map is a PCA, as in vectors.py.

Shapes: N occurrences, T tokens, D numbers in a vector.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.forward import on_device
from chainrule.model import BOUNDARY
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import UNKNOWN
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, Table, View
from chainrule.viewer.views.vectors import plane

OCCURRENCES = 40      # that are shown
LIMIT = 512           # tokens of a sentence
WORDS = 200           # of the text, among which a reader may choose
SHORTEST = 3          # letters of the word that is shown first
LONGEST = 40          # letters of a word among which a reader may choose
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


@dataclass(frozen=True)
class Occurrence:
    sentence: str
    begin: int                   # where the word is in it
    end: int

    @property
    def word(self) -> str:
        return self.sentence[self.begin : self.end]

    def as_dict(self) -> dict[str, str]:
        return {"before": self.sentence[: self.begin], "word": self.word, "after": self.sentence[self.end :]}


@dataclass(frozen=True)
class Layer:
    name: str
    vectors: Tensor              # (N, D)

    @property
    def units(self) -> Tensor:
        """(N, D)"""
        return torch.nn.functional.normalize(self.vectors.double(), dim=-1)

    @property
    def cosines(self) -> Tensor:
        """(N, N)"""
        return (self.units @ self.units.T).clamp(-1, 1)

    @property
    def mean(self) -> float | None:
        """Of the cosines of two different occurrences; None: there is only one."""
        count = len(self.vectors)
        return float((self.cosines.sum() - self.cosines.trace()) / (count * (count - 1))) if count > 1 else None


def _fits(subject: Subject) -> bool:
    reads = subject.continues_text or subject.encodes_text or not subject.has("hidden")
    return hasattr(subject.body, "embeddings") and not subject.writes_from_source and reads


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    words = known_words(text, subject.run.tokenizer)
    word = options.get("word") or _first(words)
    found = occurrences(text, word)
    layers = word_layers(subject, found[:OCCURRENCES]) if found else []
    return {
        "model": subject.name, "word": word, "words": words[:WORDS],
        "occurrences": [one.as_dict() for one in found[:OCCURRENCES]], "more": max(0, len(found) - OCCURRENCES),
        "layers": [_layer_json(layer) for layer in layers],
    }


def _layer_json(layer: Layer) -> dict[str, Any]:
    places, shares = plane(layer.units)
    return {"name": layer.name, "mean": layer.mean, "cosines": pack_array(layer.cosines), "map": pack_array(places),
            "shares": shares}


def known_words(text: str, tokenizer: Tokenizer) -> list[str]:
    """The words of a text that are in the vocabulary, the most frequent first."""
    counts = Counter(WORD.findall(text.lower()))
    return [word for word, _ in counts.most_common() if len(word) <= LONGEST and _known(tokenizer, word)]


def _known(tokenizer: Tokenizer, word: str) -> bool:
    unknown = tokenizer.id(UNKNOWN)
    return unknown is None or unknown not in tokenizer.encode(word).tolist()


def _first(words: Sequence[str]) -> str:
    """The most frequent of the longer words; an empty text has none."""
    return next((word for word in words if len(word) >= SHORTEST), next(iter(words), ""))


def occurrences(text: str, word: str) -> list[Occurrence]:
    """Where a word stands in the lines of a text, in upper or lower case."""
    if not word:
        return []
    whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    lines = (line.strip() for line in text.splitlines())
    return [Occurrence(line, *found.span()) for line in lines for found in whole.finditer(line)]


def word_layers(subject: Subject, found: Sequence[Occurrence]) -> list[Layer]:
    """The vectors of all occurrences: their embeddings, and those after each layer."""
    every = [_vectors(subject, one) for one in found]
    names = ["embedding", *(f"layer {number}" for number in range(1, len(every[0])))]
    return [Layer(name, torch.stack(vectors)) for name, vectors in zip(names, zip(*every))]


def _vectors(subject: Subject, one: Occurrence) -> list[Tensor]:
    """(D,) of the embedding, then of each layer. Of a long sentence the part around the word is read."""
    tokenizer, limit = subject.run.tokenizer, min(LIMIT, getattr(subject.model, "context", None) or LIMIT)
    span, ids = tokenizer.span(one.sentence, one.begin, one.end), tokenizer.encode(one.sentence).tolist()
    size = span.stop - span.start
    if not 0 < size < limit:
        raise UserError(f"{one.word!r:.40} has {size} tokens, and the model holds {limit}: choose another word.")
    if not _known(tokenizer, one.word):
        raise UserError(f"{one.word!r:.40} is not in the vocabulary of {subject.name}: choose another word.")
    first = max(0, min(span.start - (limit - size) // 2, len(ids) - limit + 1))
    tokens = [BOUNDARY, *ids[first : first + limit - 1]]
    place = slice(span.start - first + 1, span.stop - first + 1)
    rows = on_device(subject.model, torch.tensor([tokens]).numpy())
    static = subject.body.embeddings.detach()[rows[0, place]].float().mean(0).cpu()
    return [static, *(layer[place].float().mean(0).cpu() for layer in _hidden(subject, rows))]


def _hidden(subject: Subject, tokens: Tensor) -> list[Tensor]:
    """(T, D) after each layer; none for a model of words alone."""
    where = subject.taps("hidden")
    if not where:
        return []
    if subject.continues_text:
        _, seen = subject.trace(tokens, *where)
    else:
        _, seen = subject.encoded(tokens, *where)
    return [layer for name in where for values in [seen[name][0]]            # (T, D), or (T, L, D) of a recurrent stack
            for layer in (values.unbind(1) if values.dim() == 3 else [values])]


def _table(subjects: Sequence[Subject], text: str, options: Options) -> Table:
    """The mean cosine after each layer, and the cosines of every two occurrences after the last."""
    word = options.get("word") or _first(known_words(text, subjects[0].run.tokenizer))
    found = occurrences(text, word)[:OCCURRENCES]
    if not found:
        raise UserError(f"the text has no word {word!r:.40}: give sentences that have it by --file, one on each line.")
    layers = word_layers(subjects[0], found)
    means = [f"{layer.name}: mean cosine {layer.mean:.3f}" for layer in layers if layer.mean is not None]
    numbers = [f"{number:>6}" for number in range(1, len(found) + 1)]
    rows = [f"{number} {''.join(f'{value:7.3f}' for value in row)}  {one.sentence:.60}"
            for number, row, one in zip(numbers, layers[-1].cosines.tolist(), found)]
    lines = [f"{word}: {len(found)} occurrences", *means, f"after the last, {layers[-1].name}:",
             " " * 7 + "".join(f"{number:>7}" for number in numbers), *rows]
    return Table(lines, {"word": word, "occurrences": [one.as_dict() for one in found], "layers": [
        {"name": layer.name, "mean": layer.mean, "cosines": layer.cosines.tolist()} for layer in layers
    ]})


VIEW = View(
    "contextual", "One word, many sentences",
    "A word has one embedding, whatever the sentence. After each layer that reads the context, its vectors differ: the "
    "cosine of every two occurrences, and a map of them.",
    _fits, _make, table=_table,
)
