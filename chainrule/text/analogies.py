"""Analogies and word similarity: test sets for word vectors (pairs of words with scores by people).

    : capital-common-countries            a section
    Athens Greece Baghdad Iraq            the first is to the second as the third to the fourth

    tiger<TAB>cat<TAB>7.35                two words and a score, with tabs, commas or spaces between

Lines that begin with # are skipped. If more columns follow, the first number after the words is the score.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chainrule.errors import UserError
from chainrule.text.sources import Source
from chainrule.text.tables import numbered_lines

SEPARATORS = "\t,;"
SECTION = ":"
FORMS = "analogies (four words a line) or pairs of words with a score"


@dataclass(frozen=True)
class Analogies:
    sections: tuple[str, ...]                          # of each question
    questions: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True)
class Similarities:
    pairs: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]                          # by people


def read_word_test(path: Path) -> Analogies | Similarities:
    """Analogies or similarities, according to the first line."""
    lines = [(number, line) for number, line in numbered_lines(Source(path), "strict") if _has_content(line)]
    if not lines:
        raise UserError(f"{path} is empty: there is no test in it.")
    first = lines[0][1]
    words = _fields(first)
    if first.startswith(SECTION) or (len(words) == 4 and first.split() == words and not any(map(_is_number, words))):
        return _analogies(path, lines)
    return _similarities(path, lines)


def _has_content(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _analogies(path: Path, lines: list[tuple[int, str]]) -> Analogies:
    section, sections, questions = "", [], []
    for number, line in lines:
        if line.startswith(SECTION):
            section = line[1:].strip()
            continue
        words = line.split()
        if len(words) != 4:
            raise UserError(f"{path} line {number} has {len(words)} words; an analogy has four, such as: "
                            "Athens Greece Baghdad Iraq.")
        sections.append(section)
        questions.append((words[0], words[1], words[2], words[3]))
    if not questions:
        raise UserError(f"{path} has no questions, only names of sections.")
    return Analogies(tuple(sections), tuple(questions))


def _similarities(path: Path, lines: list[tuple[int, str]]) -> Similarities:
    rows = list(_rows(path, lines))
    if not rows:
        raise UserError(f"{path} line {lines[0][0]} is not a word test; that has {FORMS}.")
    return Similarities(tuple((one, other) for one, other, _ in rows), tuple(score for _, _, score in rows))


def _rows(path: Path, lines: list[tuple[int, str]]) -> Iterator[tuple[str, str, float]]:
    for place, (number, line) in enumerate(lines):
        fields = _fields(line)
        score = next((field for field in fields[2:] if _is_number(field)), None)
        if score is not None and fields[0] and fields[1]:
            yield fields[0], fields[1], float(score)
        elif place:                                        # the first line may name the columns
            raise UserError(f"{path} line {number} is not two words and a score; a word test has {FORMS}.")


def _fields(line: str) -> list[str]:
    separator = next((mark for mark in SEPARATORS if mark in line.strip()), None)
    return [field.strip() for field in line.strip().split(separator)]


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
