"""Word vectors: cosine similarity, nearest neighbours, analogies, and tests of both (analogy accuracy, Spearman's rho).

    cos(a, b) = a · b / |a||b|
    analogy: king - man + woman is the word with the highest cosine to the sum of these unit vectors (3CosAdd)

A word is looked up as it is written, else in lower case. A test question with a word that has no vector is not covered.

Shapes: V words, E embedding, Q questions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.statistics import ROUNDS, SEED, Score, Weights, bootstrap
from chainrule.model import Model
from chainrule.text.analogies import Analogies, Similarities, read_word_test
from chainrule.text.sources import find_sources
from chainrule.text.tokenizers.tokenizer import Tokenizer

AT_ONCE = 256         # questions that are answered in one matrix product
Floats = NDArray[np.float32]
Numbers = NDArray[np.float64]
Neighbours = list[tuple[str, float]]
SIGNATURE = f"words:as-written-else-lower|interval:bootstrap|rounds:{ROUNDS}|seed:{SEED}|chainrule:{__version__}"


@dataclass(frozen=True, eq=False)
class Vectors:
    words: Sequence[str]
    matrix: Floats                                     # (V, E)

    def __len__(self) -> int:
        return len(self.words)

    def find(self, word: str) -> int | None:
        """Its index among the words; None: it has no vector."""
        return self._places.get(word, self._places.get(word.lower()))

    def place(self, word: str) -> int:
        found = self.find(word)
        if found is None:
            raise UserError(f"{word!r} is not among the {len(self):,} words that have a vector.")
        return found

    def __getitem__(self, word: str) -> Floats:
        row: Floats = self.matrix[self.place(word)]
        return row

    @cached_property
    def units(self) -> Floats:
        """(V, E): the vectors, normalised to length 1."""
        lengths = np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return np.asarray(self.matrix / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}


def vectors_of(model: Model, tokenizer: Tokenizer) -> Vectors:
    """The embeddings of a model's tokens. Tokens that training never saw have a vector of zeros and are left out."""
    if not hasattr(model, "embeddings"):
        raise UserError(f"{type(model).__name__} has no word vectors. Train some with --kind word2vec.")
    embeddings: Any = model.embeddings
    matrix = embeddings.detach().float().cpu().numpy()
    seen = np.flatnonzero(matrix.any(1))
    return Vectors([tokenizer.token(id) for id in seen.tolist()], matrix[seen])


def similarity(vectors: Vectors, one: str, other: str) -> float:
    """Cosine similarity of two words."""
    return float(vectors.units[vectors.place(one)] @ vectors.units[vectors.place(other)])


def nearest(vectors: Vectors, word: str, count: int = 10) -> Neighbours:
    """Other words by their cosine similarity to this one, the nearest first."""
    place = vectors.place(word)
    return _nearest(vectors, vectors.units[place], [place], count)


def analogy(vectors: Vectors, a: str, b: str, c: str, count: int = 10, exclude: bool = True) -> Neighbours:
    """Words by their cosine to a - b + c; exclude: without these three, one of which is nearly always the nearest."""
    places = [vectors.place(word) for word in (a, b, c)]
    plus, minus, other = vectors.units[places]
    return _nearest(vectors, plus - minus + other, places if exclude else [], count)


def _nearest(vectors: Vectors, direction: Floats, excluded: list[int], count: int) -> Neighbours:
    scores = vectors.units @ (direction / max(float(np.linalg.norm(direction)), 1e-30))
    scores[excluded] = -np.inf
    count = max(0, min(count, len(vectors) - len(set(excluded))))
    best = np.argsort(-scores, kind="stable")[:count]
    return [(vectors.words[place], float(scores[place])) for place in best.tolist()]


@dataclass(frozen=True)
class AnalogyResult:
    accuracy: Score | None                             # share of correct answers, inputs excluded; None: none covered
    with_inputs: Score | None                          # share where the inputs may be answers too
    sections: dict[str, dict[str, Any]]
    covered: int                                       # questions whose four words all have a vector
    questions: int

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, score in (("accuracy", self.accuracy), ("accuracy_with_inputs", self.with_inputs)):
            values |= score.as_dict(name) if score else {name: None}
        counts = {"covered": self.covered, "questions": self.questions}
        return {"test": "analogies", **values, **counts, "sections": self.sections, "signature": SIGNATURE}


def evaluate_analogies(vectors: Vectors, test: Analogies) -> AnalogyResult:
    """a : b = c : ?, answered by b - a + c."""
    found = [[vectors.find(word) for word in question] for question in test.questions]
    covered = np.array([None not in places for places in found])
    places = np.array([places for places in found if None not in places], np.int64).reshape(-1, 4)
    answers = _answers(vectors, places)                                        # (2, Q)
    right = answers == places[:, 3]
    names = np.array(test.sections)[covered]
    sections = {name: _section(right[:, names == name], test.sections.count(name))
                for name in dict.fromkeys(test.sections)}
    scores = [_share(row) if len(row) else None for row in right]
    return AnalogyResult(scores[0], scores[1], sections, int(covered.sum()), len(test.questions))


def _answers(vectors: Vectors, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """(2, Q): the word nearest to b - a + c other than a, b and c; and the nearest of all."""
    units, asked = torch.from_numpy(vectors.units), torch.from_numpy(places)
    answers = [asked.new_empty(2, 0)]
    for at in range(0, len(asked), AT_ONCE):
        a, b, c, _ = asked[at : at + AT_ONCE].unbind(1)
        scores = (units[b] - units[a] + units[c]) @ units.T                    # (Q, V)
        nearest_of_all = scores.argmax(1)
        scores.scatter_(1, torch.stack([a, b, c], 1), -torch.inf)
        answers.append(torch.stack([scores.argmax(1), nearest_of_all]))
    both: NDArray[np.int64] = torch.cat(answers, 1).numpy()
    return both


def _section(right: NDArray[np.bool_], questions: int) -> dict[str, Any]:
    shares = [float(row.mean()) if len(row) else None for row in right]
    return {"accuracy": shares[0], "accuracy_with_inputs": shares[1], "covered": right.shape[1], "questions": questions}


def _share(right: NDArray[np.bool_]) -> Score:
    return bootstrap(lambda weights: float(weights @ right / len(right)), len(right))


@dataclass(frozen=True)
class SimilarityResult:
    spearman: Score | None                             # rho of cosines and people's scores; None: too few covered
    covered: int                                       # pairs whose two words both have a vector
    pairs: int

    def as_dict(self) -> dict[str, Any]:
        value = self.spearman.as_dict("spearman") if self.spearman else {"spearman": None}
        return {"test": "similarity", **value, "covered": self.covered, "pairs": self.pairs, "signature": SIGNATURE}


def evaluate_similarity(vectors: Vectors, test: Similarities) -> SimilarityResult:
    """Spearman's rho of cosine similarities and of the scores that people gave the same pairs of words."""
    found = [(vectors.find(one), vectors.find(other)) for one, other in test.pairs]
    covered = [place for place, pair in enumerate(found) if None not in pair]
    ones, others = np.array([found[place] for place in covered], np.int64).reshape(-1, 2).T
    cosines = (vectors.units[ones] * vectors.units[others]).sum(1)
    people = np.array(test.scores)[covered]
    known = len(covered) > 2 and math.isfinite(rank_correlation(cosines, people))    # equal values have no ranks
    score = _spearman(cosines.astype(np.float64), people) if known else None
    return SimilarityResult(score, len(covered), len(test.pairs))


def _spearman(one: Numbers, other: Numbers) -> Score:
    def drawn(weights: Weights) -> float:
        return rank_correlation(np.repeat(one, weights), np.repeat(other, weights))

    return bootstrap(drawn, len(one))


def rank_correlation(one: Numbers, other: Numbers) -> float:
    """Spearman's rho: the correlation of ranks; equal values share the mean of their ranks."""
    x, y = (ranks - ranks.mean() for ranks in (_ranks(one), _ranks(other)))
    spread = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / spread if spread else float("nan")


def _ranks(values: Numbers) -> Numbers:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def evaluate_words(model: Model, tokenizer: Tokenizer, files: Sequence[str]) -> dict[str, Any]:
    """The metrics of word vectors on one file of analogies, or of pairs of words that people have scored."""
    with TemporaryDirectory() as spool:
        sources = [source for file in files for source in find_sources(file, Path(spool))]
        if len(sources) != 1:
            raise UserError(f"{len(sources)} files at once: word vectors are tested on one at a time.")
        test = read_word_test(sources[0].path)
    vectors = vectors_of(model, tokenizer)
    if isinstance(test, Analogies):
        return evaluate_analogies(vectors, test).as_dict()
    return evaluate_similarity(vectors, test).as_dict()
