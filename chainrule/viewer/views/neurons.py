"""Neurons over text: the activation of one unit at each token, and the units that follow a feature of the text.

    r = Σ (u_t - ū)(f_t - f̄) / √(Σ (u_t - ū)² Σ (f_t - f̄)²)        Pearson's correlation over the tokens of the text

A feature belongs to characters; a token has that of its last character. Among many units some correlate at random: if
none had to do with the feature, the best of N would reach about √(2 ln 2N / n) if tokens were independent.

Shapes: T tokens with the boundary, n without it, U units of a group, F features, K units whose values are sent.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import taps
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject, TokenizedText
from chainrule.viewer.task_views.class_models import choose_class
from chainrule.viewer.views import Options, View

Columns = NDArray[np.floating[Any]]

TAPS = ("hidden", "cell", "gates", "neurons", "belief")
LIMIT = 2000         # tokens
NUMBERS = 120_000    # values of units that are sent: about 0.6 MB
BEST = 5             # units that are named for a feature


@dataclass(frozen=True)
class Group:
    """Units of one tap, one gate, one layer."""

    name: str
    layer: int              # from 1
    values: Tensor          # (T, U)

    @property
    def units(self) -> int:
        return self.values.shape[1]


def _fits(subject: Subject) -> bool:
    one = subject.of_classes[0]
    return (one.predicts_next or one.encodes_text) and any(one.has(tap) for tap in TAPS)


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject, more = choose_class(subjects[0], text, options)
    prompt = subject.read_prompt(text, LIMIT, answer=True)
    read, groups = prompt.read, read_groups(subject, prompt.tokens, prompt.source)
    pieces = token_texts(subject, read)
    features = token_features(pieces)
    found = best_units(groups, np.stack(list(features.values()), 1)[1:])
    sent = _sent(groups, found, _chosen(groups, options), len(pieces))
    values = torch.stack([groups[group].values[:, unit] for group, unit in sent])    # (K, T)
    units = sum(group.units for group in groups)
    return {
        "model": subject.name, "left_out": read.left_out, "tokens": _shown(pieces, read.shown),
        "groups": [{"name": group.name, "layer": group.layer, "units": group.units} for group in groups],
        "features": [
            {"name": name, "title": FEATURES[name].title, "values": pack_array(values), "best": some}
            for (name, values), some in zip(features.items(), found)
        ],
        "n": len(pieces) - 1,
        "units": units,
        "random": math.sqrt(2 * math.log(2 * units) / (len(pieces) - 1)) if len(pieces) > 1 else None,
        "sent": [list(place) for place in sent],
        "values": pack_array(values, digits=12),
    } | ({"input": dict(prompt.given)} if prompt.given else more)


def read_groups(subject: Subject, tokens: Tensor, source: Tensor | None = None) -> list[Group]:
    """The activations at every tap that has units, as the model reads (1, T) tokens."""
    where = [place for tap in TAPS for place in subject.taps(tap)]
    if subject.predicts_next:
        _, seen = subject.trace(tokens, *where, source=source)
    else:
        _, seen = subject.encoded(tokens, *where)
    parts = {place: tap.parts for place, tap in taps(subject.model).items()}
    return [group for tap in TAPS for group in _groups(tap, [(seen[place], parts[place]) for place in where
                                                             if place.rpartition(".")[2] == tap and place in seen])]


def _groups(tap: str, seen: Sequence[tuple[Tensor, Sequence[str]]]) -> Iterator[Group]:
    """Of one tap name: (1, T, U) is one layer; (1, T, L, U) and (1, T, L, G, U) are L of them."""
    layer = 0
    for values, parts in seen:
        layers = values[0, :, None] if values.dim() == 3 else values[0]
        for one in layers.unbind(1):
            layer += 1
            if parts:
                named = [name if name == "candidate" else f"{name} gate" for name in parts]
                yield from (Group(name, layer, gate) for name, gate in zip(named, one.unbind(1), strict=True))
            else:
                yield Group(tap, layer, one)


def token_texts(subject: Subject, read: TokenizedText) -> list[str]:
    """The text that each token completes; empty for the boundary, and for the first bytes of a character."""
    pieces = subject.run.tokenizer.stream_decoder()
    return ["", *(pieces.feed(token) for token in read.tokens[0, 1:].tolist())]


def token_features(pieces: Sequence[str]) -> dict[str, Columns]:
    """(T,) each: the feature of the last character up to each token."""
    text, ends = "".join(pieces), list(accumulate(map(len, pieces)))
    every = {name: [0.0, *feature.values(text)] for name, feature in FEATURES.items()}
    return {name: np.array(values, np.float32)[ends] for name, values in every.items()}


def best_units(groups: Sequence[Group], features: Columns) -> list[list[dict[str, Any]]]:
    """For each of (n, F) features the units of all groups that correlate most, positively or negatively."""
    found: list[list[dict[str, Any]]] = [[] for _ in range(features.shape[1])]
    for place, group in enumerate(groups):
        every = correlations(group.values[1:].double().cpu().numpy(), features)
        for some, r in zip(found, every):
            top = np.argsort(-np.abs(r), kind="stable")[:BEST]
            some += [{"group": place, "unit": unit, "r": float(r[unit])} for unit in top.tolist() if r[unit]]
    return [sorted(some, key=lambda one: -abs(one["r"]))[:BEST] for some in found]


def correlations(values: Columns, features: Columns) -> Columns:
    """(n, U), (n, F) -> (F, U): Pearson's correlations; 0 where one of the two is constant."""
    one, other = _standard(values), _standard(features.astype(np.float64))
    rates: Columns = np.clip(np.nan_to_num(other.T @ one), -1, 1)
    return rates


def _standard(columns: Columns) -> Columns:
    """(n, C): each column without its mean, and of length 1; a constant one is 0."""
    apart = columns - columns.mean(0) if len(columns) else columns
    moves = (columns != columns[:1]).any(0)
    return np.where(moves, apart / np.where(moves, np.linalg.norm(apart, axis=0), 1), 0)


def _chosen(groups: Sequence[Group], options: Options) -> tuple[int, int]:
    """The chosen group and unit; the first, if this model does not have them."""
    group, unit = (_number(options, name) for name in ("group", "unit"))
    group = group if group < len(groups) else 0
    return group, unit if unit < groups[group].units else 0


def _number(options: Options, name: str) -> int:
    value = options.get(name, "0")
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise UserError(f"{name}={value} is no number of a {name}.")
    return int(value)


def _sent(groups: Sequence[Group], found: Sequence[Sequence[Mapping[str, Any]]], chosen: tuple[int, int],
          tokens: int) -> list[tuple[int, int]]:
    """Units whose values are sent: the best for each feature, and as many from the chosen one on as NUMBERS allows."""
    best = [(one["group"], one["unit"]) for some in found for one in some]
    every = [(place, unit) for place, group in enumerate(groups) for unit in range(group.units)]
    at = every.index(chosen)
    return list(dict.fromkeys([chosen, *best, *every[at:], *every[:at]]))[: max(1, NUMBERS // tokens)]


def _shown(pieces: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Tokens as text, so that lines break where the text does; invisible ones by their symbols."""
    return [piece if piece and all(one.isprintable() or one in "\n\t" for one in piece) else drawn
            for piece, drawn in zip(pieces, shown)]


# Features of a text: a number for each character, which holds once that character has been read.

OPENED, CLOSED = "([{", ")]}"
QUOTE, QUOTE_OPENED, QUOTE_CLOSED = '"', "“„«", "”»"


@dataclass(frozen=True)
class Feature:
    title: str
    values: Callable[[str], Iterable[float]]       # one for each character


def _quotes(text: str) -> Iterable[float]:
    """1 within quotes, from the opening one on. An empty line closes them, in case a quote is missing."""
    inside, before = False, ""
    for character in text:
        if character == QUOTE:
            inside = not inside
        elif character in QUOTE_OPENED or character in QUOTE_CLOSED:
            inside = character in QUOTE_OPENED
        elif character == before == "\n":
            inside = False
        before = character
        yield float(inside)


def _brackets(text: str) -> Iterable[float]:
    """How many are open. A closing one without an opening one is ignored."""
    depth = 0
    for character in text:
        depth = max(0, depth + (character in OPENED) - (character in CLOSED))
        yield depth


def _line(text: str) -> Iterable[float]:
    """Characters since the line began."""
    return _run(character != "\n" for character in text)


def _indentation(text: str) -> Iterable[float]:
    """Spaces and tabs at the beginning of the line."""
    blanks, leading = 0, True
    for character in text:
        if character == "\n":
            blanks, leading = 0, True
        elif leading and character in " \t":
            blanks += 1
        else:
            leading = False
        yield blanks


def _word(text: str) -> Iterable[float]:
    """Letters of the word so far; 0 between words."""
    return _run(character.isalpha() for character in text)


def _run(holds: Iterable[bool]) -> Iterable[float]:
    """For how many characters in a row something has held."""
    return accumulate(map(int, holds), lambda run, one: (run + 1) * one)


FEATURES: Mapping[str, Feature] = {
    "quotes": Feature("inside quotes", _quotes),
    "brackets": Feature("brackets that are open", _brackets),
    "line": Feature("position in the line", _line),
    "indentation": Feature("indentation", _indentation),
    "word": Feature("letters of the word so far", _word),
    "upper": Feature("upper case", lambda text: (float(character.isupper()) for character in text)),
    "digit": Feature("a digit", lambda text: (float(character.isdigit()) for character in text)),
}


VIEW = View(
    "neurons", "Neurons over text",
    "Each token is coloured by the activation of one unit after reading it. Units that follow a feature of the text "
    "are found by their correlation with it over this text.",
    _fits, _make, needs="a neural network that reads text",
)
