"""What can be said of each character of a text: is it within quotes, how deep in brackets, how far along its line?

A feature is a number for each character, true once that character has been read. Units of a network that follow one
are found by correlation (views/neurons.py).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

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
