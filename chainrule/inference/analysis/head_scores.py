"""Scores of attention heads, by what they attend to: previous token, first, same, antecedent, induction.

    previous    mean of a[t, t-1]            current   mean of a[t, t]            next    mean of a[t, t+1]
    first       mean of a[t, 0]              same      mean, over tokens that also stand elsewhere, of the weight there
    induction   on random sequences that are repeated: from a token of the second copy to the token that followed
                it in the first (Olsson et al. 2022)
    antecedent  on the sentences below: from a pronoun to the noun that it stands for

A head bears the name of its largest score, if that is at least half. Shapes: B rows, H heads, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.inference.forward import eval_mode, on_device
from chainrule.model import BOUNDARY, watch
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import UNKNOWN

NAMED = 0.5          # a head bears the name of a score from here on
REPEATED = 32        # tokens of a random sequence that is repeated, at most
SEQUENCES = 8
TITLES = {
    "previous": "previous token", "current": "current token", "next": "next token", "first": "first token",
    "same": "same token", "induction": "induction", "antecedent": "antecedent",
}

ANTECEDENTS = (
    ("the ", "animal", " did not cross the street because ", "it", " was too tired ."),
    ("the ", "man", " saw the house and ", "he", " went in ."),
    ("the ", "woman", " lost the ring but ", "she", " did not cry ."),
    ("the ", "boys", " came home late and ", "they", " were cold ."),
    ("the ", "king", " gave the order because ", "he", " was angry ."),
    ("the ", "queen", " read the letter and ", "she", " was sad ."),
    ("the ", "dog", " ran to the door when ", "it", " heard the man ."),
    ("the ", "children", " left the room after ", "they", " had eaten ."),
)
"""The text before a noun, the noun, the text up to its pronoun, the pronoun, and the rest."""

Forward = Callable[[Tensor], Any]
"""Reads (B, T) tokens, so that the taps of the patterns see their attention."""


@dataclass(frozen=True)
class HeadScores:
    layer: int                           # from 1
    head: int                            # from 1
    scores: Mapping[str, float | None]   # by the names in TITLES; None: not defined here

    @property
    def name(self) -> str | None:
        """The title of the largest score; None: the head has no name."""
        score, best = max((score or 0.0, name) for name, score in self.scores.items())
        return TITLES[best] if score >= NAMED else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"layer": self.layer, "head": self.head, "name": self.name, "scores": dict(self.scores)}


def position_scores(pattern: Tensor) -> dict[str, Tensor]:
    """(H, T, T) -> (H,) each: how much tokens attend to places relative to them, and to the first. T is 2 or more."""
    def mean(offset: int) -> Tensor:
        return pattern.diagonal(offset, -2, -1).mean(-1)

    return {"previous": mean(-1), "current": mean(0), "next": mean(1), "first": pattern[:, 1:, 0].mean(-1)}


def same_token_score(pattern: Tensor, tokens: Tensor) -> Tensor | None:
    """(H, T, T), (T,) -> (H,): the weight on other places with the same token, where a token can attend to one."""
    same = (tokens[:, None] == tokens[None]).fill_diagonal_(False)
    if not pattern.triu(1).any():                            # causal: only places before it
        same = same.tril(-1)
    queries = same.any(1)
    return (pattern * same).sum(-1)[:, queries].mean(-1) if queries.any() else None


def induction_score(pattern: Tensor, size: int) -> Tensor:
    """(B, H, T, T) of rows `0 x1 … xn x1 … xn` -> (H,): from tokens of the copy to the one after their first place."""
    places = torch.arange(size + 1, 2 * size + 1)
    return pattern[:, :, places, places - size + 1].mean((0, 2))


def span_score(pattern: Tensor, queries: slice, keys: slice) -> Tensor:
    """(H, T, T) -> (H,): from a word to another, of one token or more: the mean over queries, the sum over keys."""
    return pattern[:, queries, keys].sum(-1).mean(-1)


def score_heads(
    model: nn.Module, tokenizer: Tokenizer, forward: Forward, taps: Sequence[str], tokens: Sequence[int],
    context: int | None = None,
) -> list[HeadScores]:
    """All heads of these taps. `tokens`: a text from its boundary on, for the scores that are not induction's."""
    on_text = _scores_on_text(model, forward, taps, tokens)
    constant = scores_without_text(model, tokenizer, forward, taps, context)
    every = enumerate(({**one, **other} for one, other in zip(on_text, constant)), 1)
    return [HeadScores(layer, head, {name: _number(scores.get(name), head) for name in TITLES})
            for layer, scores in every for head in range(1, 1 + _heads(scores))]


def _heads(scores: Mapping[str, Tensor | None]) -> int:
    return max(len(score) for score in scores.values() if score is not None)


def _number(scores: Tensor | None, head: int) -> float | None:
    return None if scores is None else float(scores[head - 1])


def _scores_on_text(
    model: nn.Module, forward: Forward, taps: Sequence[str], tokens: Sequence[int]
) -> list[dict[str, Tensor | None]]:
    read = torch.tensor(tokens)
    found = []
    for pattern in patterns(model, forward, taps, np.array([tokens])):
        found.append({**position_scores(pattern[0]), "same": same_token_score(pattern[0], read)})
    return found


def scores_without_text(
    model: nn.Module, tokenizer: Tokenizer, forward: Forward, taps: Sequence[str], context: int | None = None
) -> list[dict[str, Tensor | None]]:
    """Induction and antecedent, which have their own texts."""
    found: list[dict[str, Tensor | None]] = [{} for _ in taps]
    rows = repeated_rows(tokenizer, context)
    if rows is not None:
        for scores, pattern in zip(found, patterns(model, forward, taps, rows)):
            causal = not pattern.triu(1).any()
            scores["induction"] = induction_score(pattern, rows.shape[1] // 2) if causal else None
    sentences = [one for one in known_sentences(tokenizer) if context is None or len(one[0]) <= context]
    sums: list[list[Tensor]] = [[] for _ in taps]
    for tokens, pronoun, noun in sentences:
        for some, pattern in zip(sums, patterns(model, forward, taps, np.array([tokens]))):
            some.append(span_score(pattern[0], pronoun, noun))
    for scores, some in zip(found, sums):
        scores["antecedent"] = torch.stack(some).mean(0) if some else None
    return found


def repeated_rows(tokenizer: Tokenizer, context: int | None, seed: int = 1) -> NDArray[np.int64] | None:
    """(B, 1 + 2n) `0 x1 … xn x1 … xn` of random tokens, different ones where there are enough; None: no room."""
    tokens = tokenizer.spelled()
    size = min(REPEATED, len(tokens), REPEATED if context is None else (context - 1) // 2)
    if size < 2:
        return None
    random = np.random.default_rng(seed)
    halves = np.stack([random.permutation(tokens)[:size] for _ in range(SEQUENCES)])
    return np.concatenate([np.full((SEQUENCES, 1), BOUNDARY), halves, halves], 1)


def known_sentences(tokenizer: Tokenizer) -> list[tuple[list[int], slice, slice]]:
    """Of the sentences whose noun and pronoun are in the vocabulary: tokens, and where the pronoun and the noun are."""
    unknown, found = tokenizer.id(UNKNOWN), []
    for before, noun, between, pronoun, rest in ANTECEDENTS:
        text, start = before + noun + between + pronoun + rest, len(before + noun + between)
        try:
            tokens = [BOUNDARY, *tokenizer.encode(text).tolist()]
        except UserError:                                    # a closed alphabet without these letters
            continue
        places = [_after_boundary(tokenizer.span(text, begin, begin + len(word)))
                  for begin, word in ((start, pronoun), (len(before), noun))]
        if unknown is None or not any(unknown in tokens[place] for place in places):
            found.append((tokens, places[0], places[1]))
    return found


def _after_boundary(span: slice) -> slice:
    return slice(span.start + 1, span.stop + 1)


def patterns(model: nn.Module, forward: Forward, taps: Sequence[str], rows: NDArray[np.int64]) -> list[Tensor]:
    """(B, H, T, T) of each tap, as the model reads (B, T) rows."""
    with torch.no_grad(), eval_mode(model), watch(model, *taps) as seen:
        forward(on_device(model, rows))
    return [torch.cat(seen[tap], 2).float().cpu() for tap in taps]
