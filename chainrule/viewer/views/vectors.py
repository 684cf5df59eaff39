"""Vectors: the tokens a model knows, as a map; what is near what; a - b + c.

The map is the plane on which directions differ most (PCA): coordinates are (u - ū)·e1 and (u - ū)·e2, where e1 and e2
are the first eigenvectors of the covariance of the unit vectors u. Neighbours and analogies are those of
inference/vectors.py; a file has the vectors themselves, and its page computes the same.

Shapes: V tokens, M on the map, N whose vectors are sent, E embedding.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.vectors import Neighbours, Vectors, analogy, nearest
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.viewer.arrays import pack
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View

ON_MAP = 2000        # tokens; the first of a vocabulary of words or characters are the most frequent
NUMBERS = 200_000    # of vectors that are sent: about 1 MB
COUNT = 12           # neighbours
FALLBACK = re.compile("<0x[0-9A-F]{2}>")
QUESTIONS = (("king", "man", "woman"), ("his", "he", "she"), ("was", "is", "are"))


def fits(subject: Subject) -> bool:
    return hasattr(subject.body, "embeddings")


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    """The map and vectors; with the option `ask`, only what is nearest to a word, or to a - b + c, of all tokens."""
    subject = subjects[0]
    vectors = known_vectors(subject)
    if options.get("ask"):
        return {"found": ask(vectors, options)}
    some = Vectors(vectors.words[:ON_MAP], vectors.matrix[:ON_MAP])
    places, shares = plane(torch.from_numpy(some.units).double())
    sent = some.matrix[: max(1, NUMBERS // some.matrix.shape[1])]
    return {
        "model": subject.name, "known": len(vectors), "size": some.matrix.shape[1], "words": list(some.words),
        "map": pack(places), "shares": shares, "vectors": pack(sent), "first": first_words(some), "count": COUNT,
    }


def known_vectors(subject: Subject) -> Vectors:
    """Of the tokens that a text can become, by the names that people read. What was never met is all zeros."""
    matrix, tokenizer = subject.body.embeddings.detach().float().cpu().numpy(), subject.run.tokenizer
    if not torch.from_numpy(matrix).isfinite().all():
        raise UserError(f"the vectors of {subject.name} are not all finite numbers, so they lie nowhere.")
    met = [token for token in reachable(tokenizer) if matrix[token].any()] or list(range(len(matrix)))
    named = {tokenizer.show(token): token for token in reversed(met)}
    places = sorted(named.values())
    return Vectors([tokenizer.show(token) for token in places], matrix[places])


def reachable(tokenizer: Tokenizer) -> list[int]:
    """Tokens whose text becomes them again: not the boundary, nor bytes in the place of characters that never came."""
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    same = (token for token, ids in enumerate(tokenizer.encode_many(texts)) if ids.tolist() == [token])
    return [token for token in same if not FALLBACK.fullmatch(tokenizer.token(token))]


def plane(units: Tensor) -> tuple[Tensor, list[float]]:
    """(M, E) -> (M, 2), and the share of all variance along each of the two axes."""
    apart = units - units.mean(0)
    spread, directions = torch.linalg.eigh(apart.T @ apart)                       # ascending
    axes = directions[:, -2:].flip(1)
    axes = axes * axes.gather(0, axes.abs().argmax(0)[None]).sign()               # a direction has no sign of its own
    shares = (spread.clamp(min=0) / spread.sum().clamp(min=1e-30))[-2:].flip(0).tolist()
    missing = 2 - axes.shape[1]                                                   # vectors of one number lie on a line
    return torch.nn.functional.pad(apart @ axes, (0, missing)), shares + [0.0] * missing


def first_words(vectors: Vectors) -> list[str]:
    """What is asked at first: a, b and c."""
    for question in QUESTIONS:
        found = [find(vectors, word) for word in question]
        if None not in found:
            return [word for word in found if word]
    long = [word for word in vectors.words if sum(map(str.isalpha, word)) > 3]
    return ((long or list(vectors.words)) * 3)[:3]


def find(vectors: Vectors, word: str) -> str | None:
    """The name of a token: as it is written, or with the space before it that many pieces of words have."""
    for name in (word, f"·{word}", word.lower(), f"·{word.lower()}"):
        if (place := vectors.find(name)) is not None:
            return vectors.words[place]
    return None


def ask(vectors: Vectors, options: Options) -> Neighbours:
    """With mode=analogy those of a - b + c, else those of a."""
    if options.get("mode") != "analogy":
        return nearest(vectors, _name(vectors, options.get("a", "")), COUNT)
    a, b, c = (_name(vectors, options.get(name, "")) for name in ("a", "b", "c"))
    return analogy(vectors, a, b, c, COUNT, exclude=options.get("exclude", "yes") == "yes")


def _name(vectors: Vectors, word: str) -> str:
    found = find(vectors, word)
    if found is None:
        raise UserError(f"{word!r} is not among the {len(vectors):,} tokens that have a vector.")
    return found


VIEW = View(
    "vectors", "Vectors",
    "Every token that a model knows is a vector. Tokens that are used alike point the same way: near each other is "
    "what has a large cosine, and the step from man to woman is about that from king to queen.",
    fits, make, reads=False, plots=True,
)
