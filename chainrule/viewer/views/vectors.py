"""Word vectors (embeddings): a map of a model's tokens, nearest neighbours, and analogies a - b + c.

The map is a PCA: coordinates are (u - ū)·e1 and (u - ū)·e2, where e1 and e2 are the first eigenvectors of the
covariance of the unit vectors u. Neighbours and analogies are those of inference/vectors.py; a file contains the
vectors, and its page computes the same.

Shapes: V tokens, M on the map, N whose vectors are sent, E embedding.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.vectors import Neighbours, Vectors, analogy, nearest
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, View

ON_MAP = 2000        # tokens; the first of a vocabulary of words or characters are the most frequent
NUMBERS = 200_000    # of vectors that are sent: about 1 MB
COUNT = 12           # neighbours
QUESTIONS = (("king", "man", "woman"), ("his", "he", "she"), ("was", "is", "are"))


def _fits(subject: Subject) -> bool:
    return hasattr(subject.body, "embeddings")


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    """The map and vectors; with the option `ask`, only what is nearest to a word, or to a - b + c, of all tokens."""
    subject = subjects[0]
    vectors = known_vectors(subject)
    if options.get("ask"):
        try:
            return {"found": ask(vectors, options)}
        except UserError as error:
            return {"missing": str(error)}    # said in the place of the answer
    some = Vectors(vectors.words[:ON_MAP], vectors.matrix[:ON_MAP])
    places, shares = plane(torch.from_numpy(some.units).double())
    sent = some.matrix[: max(1, NUMBERS // some.matrix.shape[1])]
    return {
        "model": subject.name, "known": len(vectors), "size": some.matrix.shape[1], "words": list(some.words),
        "map": pack_array(places), "shares": shares, "vectors": pack_array(sent, digits=14), "first": first_words(some),
        "count": COUNT,
    }


def known_vectors(subject: Subject) -> Vectors:
    """The vectors of tokens that a text can contain, by their displayed names. One that was never trained is zero."""
    matrix, tokenizer = subject.body.embeddings.detach().float().cpu().numpy(), subject.run.tokenizer
    if not torch.from_numpy(matrix).isfinite().all():
        raise UserError(f"the vectors of {subject.name} are not all finite numbers.")
    met = [token for token in tokenizer.spelled() if matrix[token].any()] or list(range(len(matrix)))
    named = {tokenizer.show(token): token for token in reversed(met)}
    places = sorted(named.values())
    return Vectors([tokenizer.show(token) for token in places], matrix[places])


def plane(units: Tensor) -> tuple[Tensor, list[float]]:
    """(M, E) -> (M, 2), and the share of all variance along each of the two axes."""
    apart = units - units.mean(0)
    spread, directions = torch.linalg.eigh(apart.T @ apart)                       # ascending
    axes = directions[:, -2:].flip(1)
    axes = axes * axes.gather(0, axes.abs().argmax(0)[None]).sign()               # an eigenvector has an arbitrary sign
    shares = (spread.clamp(min=0) / spread.sum().clamp(min=1e-30))[-2:].flip(0).tolist()
    missing = 2 - axes.shape[1]                                                   # vectors of one number have one axis
    return torch.nn.functional.pad(apart @ axes, (0, missing)), shares + [0.0] * missing


def first_words(vectors: Vectors) -> list[str]:
    """The words a, b and c that the page begins with."""
    for question in QUESTIONS:
        found = [find_token(vectors, word) for word in question]
        if None not in found:
            return [word for word in found if word]
    long = [word for word in vectors.words if sum(map(str.isalpha, word)) > 3]
    return ((long or list(vectors.words)) * 3)[:3]


def find_token(vectors: Vectors, word: str) -> str | None:
    """The name of a token: as written, or with the space before it that many subwords have."""
    for name in (word, f"·{word}", word.lower(), f"·{word.lower()}"):
        if (place := vectors.find(name)) is not None:
            return vectors.words[place]
    return None


def ask(vectors: Vectors, options: Options) -> Neighbours:
    """With mode=analogy the neighbours of a - b + c, else those of a."""
    if options.get("mode") != "analogy":
        return nearest(vectors, _name(vectors, options.get("a", "")), COUNT)
    a, b, c = (_name(vectors, options.get(name, "")) for name in ("a", "b", "c"))
    return analogy(vectors, a, b, c, COUNT, exclude=options.get("exclude", "yes") == "yes")


def _name(vectors: Vectors, word: str) -> str:
    found = find_token(vectors, word)
    if found is None:
        raise UserError(f"{word!r} is not among the {len(vectors):,} tokens that have a vector.")
    return found


VIEW = View(
    "vectors", "Vectors",
    "Every token has a vector. Tokens with similar use have similar directions: tokens with a large cosine are "
    "neighbours, and a − b + c asks which token is to c as a is to b.",
    _fits, _make, reads=False, needs="a model with embeddings",
)
