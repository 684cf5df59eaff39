"""The names of classes or of tags, as training met them, and the numbers that stand for them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.model import IGNORE
from chainrule.tasks.padding import Places
from chainrule.text.tables import Place

# Examples: what a model is told, and what it should have said. Plain values, each with the place it was read from.
#
# Shapes: S source vectors, F numbers in each.

@dataclass(frozen=True, slots=True)
class Labelled:
    """A text, or two, and its class."""

    texts: tuple[str, ...]
    label: str | None                             # None: not known
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        """What an example is told apart by from others."""
        return self.texts

    @property
    def written(self) -> tuple[str, ...]:
        """All that a tokenizer should be able to spell."""
        return self.texts


@dataclass(frozen=True, slots=True)
class Tagged:
    """Words, each with a tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]                         # none: not known
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.words

    @property
    def written(self) -> tuple[str, ...]:
        return (" ".join(self.words),)


@dataclass(frozen=True, slots=True)
class Translated:
    """A text, and the text it should become."""

    source: str
    targets: tuple[str, ...]                      # the first to learn from, all to be measured by; none: not known
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.source

    @property
    def written(self) -> tuple[str, ...]:
        return (self.source, *self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class Captioned:
    """Vectors, and the text that tells of them."""

    source: NDArray[np.float32]                   # (S, F)
    targets: tuple[str, ...]
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.source.tobytes()

    @property
    def written(self) -> tuple[str, ...]:
        return self.targets


BLOCK = 1 << 16       # characters

Example: TypeAlias = Labelled | Tagged | Translated | Captioned


def written(examples: Iterable[Example]) -> Iterator[str]:
    """All texts of the examples, a line each and many at a time: what a tokenizer is learned from."""
    lines, size = [], 0
    for text in (text for example in examples for text in example.written):
        lines.append(text + "\n")
        size += len(text) + 1
        if size >= BLOCK:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


Names: TypeAlias = tuple[str, ...]

SHOWN = 8        # names in a message


def names_of(labels: Iterable[str | None]) -> Names:
    """The names of classes or tags in order: of numbers, their own."""
    names = {label for label in labels if label is not None}
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def numbers_of(labels: Sequence[str | None], names: Names, places: Sequence[Place], what: str) -> Places:
    """Which of the names each label is; IGNORE where it is not known."""
    numbers = {None: IGNORE} | {name: number for number, name in enumerate(names)}
    try:
        return np.array([numbers[label] for label in labels], np.int64)
    except KeyError as error:
        strange = error.args[0]
        some = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        raise UserError(f"{places[labels.index(strange)]} has the {what} {strange!r}, which training never saw. "
                        f"It saw {some}.") from None
