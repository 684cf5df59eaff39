"""Labels: the names of classes or tags that training saw, and the ids that stand for them."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.model import IGNORE
from chainrule.text.tables import Place

Names: TypeAlias = tuple[str, ...]

SHOWN = 8        # names in a message


def label_names(labels: Iterable[str | None], what: str) -> Names:
    """The labels in order, numbers by their value; `what`: what they are, in the plural."""
    names = sort_names(labels)
    if len(names) < 2:
        raise UserError(f"two {what} or more are wanted to learn from; here is {', '.join(names) or 'none'}.")
    return names


def sort_names(labels: Iterable[str | None]) -> Names:
    names = {label for label in labels if label is not None}
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def label_ids(labels: Sequence[str | None], names: Names, places: Sequence[Place], what: str) -> NDArray[np.int64]:
    """The id of each label; IGNORE where it is not known."""
    ids = {None: IGNORE} | {name: number for number, name in enumerate(names)}
    try:
        return np.array([ids[label] for label in labels], np.int64)
    except KeyError as error:
        strange = error.args[0]
        some = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        raise UserError(f"{places[labels.index(strange)]} has the {what} {strange!r}, which training never saw. "
                        f"It saw {some}.") from None
