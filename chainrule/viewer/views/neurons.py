"""Neurons over text: what one unit says at each token, and which units of all follow a feature of the text.

    r = Σ (u_t - ū)(f_t - f̄) / √(Σ (u_t - ū)² Σ (f_t - f̄)²)        Pearson's, over the tokens of the text

A feature belongs to characters; a token has that of the last character it spells out. Of many units some follow by
chance: had none to do with the feature, the best of N would reach about √(2 ln 2N / n) if tokens were independent.

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
from chainrule.viewer.arrays import pack
from chainrule.viewer.subject import Reading, Subject
from chainrule.viewer.view import Options, View

# What can be said of each character of a text: is it within quotes, how deep in brackets, how far along its line?
#
# A feature is a number for each character, true once that character has been read. Units of a network that follow one
# are found by correlation (views/neurons.py).

OPENED, CLOSED = "([{", ")]}"
QUOTE, QUOTE_OPENED, QUOTE_CLOSED = '"', "“„«", "”»"


@dataclass(frozen=True)
class Feature:
    title: str
    values: Callable[[str], Iterable[float]]       # one for each character


def _quotes(text: str) -> Iterable[float]:
    """1 within quotes, from the one that opens. An empty line ends all, so that one forgotten quote does no more."""
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
    """How many are open. One that was never opened closes nothing."""
    depth = 0
    for character in text:
        depth = max(0, depth + (character in OPENED) - (character in CLOSED))
        yield depth


def _line(text: str) -> Iterable[float]:
    """Characters since the line began."""
    return _run(character != "\n" for character in text)


def _indentation(text: str) -> Iterable[float]:
    """Blanks at the beginning of the line."""
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
    """For how long something has held."""
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


Columns = NDArray[np.floating[Any]]

TAPS = ("hidden", "cell", "gates", "neurons", "belief")
LIMIT = 2000         # tokens
NUMBERS = 120_000    # values of units that are sent: about 0.6 MB
BEST = 5             # units that are named for a feature


@dataclass(frozen=True)
class Group:
    """Units that lie side by side: of one tap, one gate, one layer."""

    name: str
    layer: int              # from 1
    values: Tensor          # (T, U)

    @property
    def units(self) -> int:
        return self.values.shape[1]


def fits(subject: Subject) -> bool:
    return (subject.speaks or hasattr(subject.body, "encode")) and any(subject.has(tap) for tap in TAPS)


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    reading = subject.read(text, LIMIT)
    groups = read_groups(subject, reading.tokens)
    pieces = spelled(subject, reading)
    features = token_features(pieces)
    found = follow(groups, np.stack(list(features.values()), 1)[1:])
    sent = _sent(groups, found, _chosen(groups, options), len(pieces))
    units = sum(group.units for group in groups)
    return {
        "model": subject.name, "left_out": reading.left_out, "tokens": _shown(pieces, reading.shown),
        "groups": [{"name": group.name, "layer": group.layer, "units": group.units} for group in groups],
        "features": [
            {"name": name, "title": FEATURES[name].title, "values": pack(values), "best": some}
            for (name, values), some in zip(features.items(), found)
        ],
        "n": len(pieces) - 1,
        "units": units,
        "chance": math.sqrt(2 * math.log(2 * units) / (len(pieces) - 1)) if len(pieces) > 1 else None,
        "sent": [list(place) for place in sent],
        "values": pack(torch.stack([groups[group].values[:, unit] for group, unit in sent])),    # (K, T)
    }


def read_groups(subject: Subject, tokens: Tensor) -> list[Group]:
    """What passes through every tap that has units, as the model reads (1, T) tokens."""
    where = [place for tap in TAPS for place in subject.taps(tap)]
    if subject.speaks:
        _, seen = subject.trace(tokens, *where)
    else:
        _, seen = subject.watched(lambda: subject.body.encode(tokens), *where)
    parts = {place: tap.parts for place, tap in taps(subject.model).items()}
    return [group for tap in TAPS for group in _groups(tap, [(seen[place], parts[place]) for place in where
                                                             if place.rpartition(".")[2] == tap and place in seen])]


def _groups(tap: str, seen: Sequence[tuple[Tensor, Sequence[str]]]) -> Iterator[Group]:
    """Of one tap in all its places: (1, T, U) there is one layer a place, in (1, T, L, U) and (1, T, L, G, U) are L."""
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


def spelled(subject: Subject, reading: Reading) -> list[str]:
    """The text that each token completes; of the boundary, and of the first bytes of a character, none."""
    pieces = subject.run.tokenizer.stream_decoder()
    return ["", *(pieces.feed(token) for token in reading.tokens[0, 1:].tolist())]


def token_features(pieces: Sequence[str]) -> dict[str, Columns]:
    """(T,) each: the feature of the last character that was spelled out by then."""
    text, ends = "".join(pieces), list(accumulate(map(len, pieces)))
    every = {name: [0.0, *feature.values(text)] for name, feature in FEATURES.items()}
    return {name: np.array(values, np.float32)[ends] for name, values in every.items()}


def follow(groups: Sequence[Group], features: Columns) -> list[list[dict[str, Any]]]:
    """For each of (n, F) features the units of all groups that follow it most closely, or its opposite."""
    found: list[list[dict[str, Any]]] = [[] for _ in range(features.shape[1])]
    for place, group in enumerate(groups):
        every = correlations(group.values[1:].double().cpu().numpy(), features)
        for some, r in zip(found, every):
            top = np.argsort(-np.abs(r), kind="stable")[:BEST]
            some += [{"group": place, "unit": unit, "r": float(r[unit])} for unit in top.tolist() if r[unit]]
    return [sorted(some, key=lambda one: -abs(one["r"]))[:BEST] for some in found]


def correlations(values: Columns, features: Columns) -> Columns:
    """(n, U), (n, F) -> (F, U): Pearson's; 0 where one of the two never changes."""
    one, other = _standard(values), _standard(features.astype(np.float64))
    rates: Columns = np.clip(np.nan_to_num(other.T @ one), -1, 1)
    return rates


def _standard(columns: Columns) -> Columns:
    """(n, C): each column without its mean, and of length 1; one that never changes is 0."""
    apart = columns - columns.mean(0) if len(columns) else columns
    moves = (columns != columns[:1]).any(0)
    return np.where(moves, apart / np.where(moves, np.linalg.norm(apart, axis=0), 1), 0)


def _chosen(groups: Sequence[Group], options: Options) -> tuple[int, int]:
    """The place of a group and the unit that were asked for; the first, where they were of another model."""
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
    """Units whose values go along: the best for each feature, and as many from the chosen one on as there is room."""
    best = [(one["group"], one["unit"]) for some in found for one in some]
    every = [(place, unit) for place, group in enumerate(groups) for unit in range(group.units)]
    at = every.index(chosen)
    return list(dict.fromkeys([chosen, *best, *every[at:], *every[:at]]))[: max(1, NUMBERS // tokens)]


def _shown(pieces: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Tokens as text, so that lines break where they do; what cannot be seen as it is drawn for people."""
    return [piece if piece and all(one.isprintable() or one in "\n\t" for one in piece) else drawn
            for piece, drawn in zip(pieces, shown)]


VIEW = View(
    "neurons", "Neurons over text",
    "Each token is coloured by the value of one unit once it has been read. Units that follow a feature of the text "
    "are found by their correlation with it, over this text.",
    fits, make,
)
