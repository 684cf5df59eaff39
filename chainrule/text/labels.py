"""The names of classes or of tags, as training met them, and the numbers that stand for them."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from chainrule.errors import UserError
from chainrule.model import UNCOUNTED
from chainrule.text.examples import Place
from chainrule.text.ragged import Places

Names: TypeAlias = tuple[str, ...]

SHOWN = 8        # names in a message


def names_of(labels: Iterable[str | None]) -> Names:
    """The names of classes or tags in order: of numbers, their own."""
    names = {label for label in labels if label is not None}
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def numbers_of(labels: Sequence[str | None], names: Names, places: Sequence[Place], what: str) -> Places:
    """Which of the names each label is; UNCOUNTED where it is not known."""
    numbers = {None: UNCOUNTED} | {name: number for number, name in enumerate(names)}
    try:
        return np.array([numbers[label] for label in labels], np.int64)
    except KeyError as error:
        strange = error.args[0]
        some = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        raise UserError(f"{places[labels.index(strange)]} has the {what} {strange!r}, which training never saw. "
                        f"It saw {some}.") from None
