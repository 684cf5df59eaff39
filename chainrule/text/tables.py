"""Tables of text: TSV, CSV or JSON lines, compressed or not, row by row with the line on which each row begins.

TSV has no quoting: a tab always ends a field. CSV is quoted (RFC 4180); its separator is the most frequent candidate in
the first line. A JSON object is a row, and nested objects get dotted column names.
"""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from chainrule.errors import UserError, did_you_mean
from chainrule.progress import bar
from chainrule.settings import flatten
from chainrule.text.sources import OPENERS, Source, read_text, whole_lines

FORMATS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
TEXT_COLUMNS = (
    "text", "sentence", "review", "content", "comment", "tweet", "document", "body", "message", "utterance",
)
"""Usual names of the column with the text, likeliest first."""

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")    # the two halves of a character beyond U+FFFF
SEPARATORS = ",;\t"
LONGEST = 1 << 30              # characters in a field of CSV
LIMIT, GIGA = "CHAINRULE_TABLE_GB", 1e9    # the environment variable that says how large a table may be; 1 without it
SHOWN = 8                      # columns named in a message
WIDE = 30                      # characters of each

Line: TypeAlias = tuple[int, str]
Row: TypeAlias = tuple[int, Sequence[Any]]


class Place(NamedTuple):
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path} line {self.line}"


@dataclass(frozen=True)
class Table:
    path: Path
    columns: tuple[str, ...]
    rows: Iterator[Row]                    # (line, a value for each column)

    def place(self, line: int) -> Place:
        return Place(str(self.path), line)

    def column(self, given: str, setting: str) -> int:
        """The column that a setting gives by its name or number."""
        for names in (self.columns, tuple(str(number + 1) for number in range(len(self.columns)))):
            if given in names:
                return names.index(given)
        hint = did_you_mean(given, self.columns) or f" It has {self.shown}."
        raise UserError(f"{self.path} has no column {given}, which {setting} asks for.{hint}")

    def known(self, names: Sequence[str]) -> list[int]:
        """The columns with one of the names, in upper or lower case."""
        return [place for place, name in enumerate(self.columns) if name.strip().lower() in names]

    @property
    def shown(self) -> str:
        names = [name if len(name) <= WIDE else name[: WIDE - 1] + "…" for name in self.columns]
        return f"the columns {', '.join(names[:SHOWN])}" + (", …" if len(names) > SHOWN else "")


def format_of(path: Path) -> str | None:
    """By the suffix, without that of a compressed file; None: the suffix is not that of a table."""
    return FORMATS.get(unpacked_name(path).suffix.lower())


def unpacked_name(path: Path) -> Path:
    """Without the suffix of a compressed file."""
    return path.with_suffix("") if path.suffix in OPENERS else path


def numbered_lines(source: Source, errors: str) -> Iterator[Line]:
    """Lines with their ends, numbered from 1. Only \\n ends a line."""
    yield from enumerate(whole_lines(_bounded(source, read_text(source, errors))), 1)


def _bounded(source: Source, pieces: Iterable[str]) -> Iterator[str]:
    """The pieces of a text, with a bar; refused where they are more than is held in memory."""
    most, total = largest_table(), None if source.path.suffix in OPENERS else source.path.stat().st_size
    done = 0
    with bar(f"reading {source.path.name}", total, "characters") as advance:
        for piece in pieces:
            done += len(piece)
            if done > most:
                raise UserError(f"{source.path} has more than {most / GIGA:g} GB of text{_share(most, total)}, and a "
                                f"table is held in memory. Split it, or raise the limit: {LIMIT}={2 * most / GIGA:g}")
            yield piece
            advance(len(piece))


def _share(done: float, total: int | None) -> str:
    return "" if total is None else f" ({done / total:.0%} of it was read)"


def largest_table() -> float:
    """Characters of a table that are held in memory."""
    given = os.environ.get(LIMIT, "")
    try:
        most = float(given or 1) * GIGA
    except ValueError:
        most = math.nan
    if not 0 < most < math.inf:
        raise UserError(f"{LIMIT}={given} is not a size: it is a number of GB, such as 4.")
    return most


def read_table(source: Source, errors: str = "strict", header: bool = True) -> Table:
    lines = numbered_lines(source, errors)
    first = next((line for line in lines if line[1].strip()), None)
    if first is None:
        raise UserError(f"{source.path} is empty: there are no rows in it.")
    form = format_of(source.path) or _sniff(first[1])
    if form == "jsonl":
        return _objects(source.path, chain([first], lines))
    rows = _tab_separated(chain([first], lines)) if form == "tsv" else _quoted(source.path, first, lines)
    line, names = next(rows)
    columns = names if header else [str(number) for number in range(1, len(names) + 1)]
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise UserError(f"{source.path} names a column twice in its first line: {twice!r}. Name each once.")
    rest = rows if header else chain([(line, names)], rows)
    return Table(source.path, tuple(columns), _even(source.path, columns, rest))


def _sniff(line: str) -> str:
    if line.lstrip().startswith("{"):
        return "jsonl"
    return "tsv" if "\t" in line else "csv"


def _tab_separated(lines: Iterable[Line]) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        if line.strip():
            yield number, line.rstrip("\r\n").split("\t")


def _quoted(path: Path, first: Line, lines: Iterator[Line]) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST)
    separator = max(SEPARATORS, key=first[1].count)
    reader = csv.reader((line for _, line in chain([first], lines)), delimiter=separator, strict=True)
    skipped, begin = first[0] - 1, 1
    try:
        for row in reader:
            if row:
                yield skipped + begin, row
            begin = reader.line_num + 1
    except csv.Error as error:
        cure = "A field that contains a quote must be quoted, and the quote inside it doubled."
        raise UserError(f"{path} line {skipped + begin} is not CSV: {error}. {cure}") from None


def _even(path: Path, columns: Sequence[str], rows: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    for line, row in rows:
        if len(row) != len(columns):
            names = ", ".join(columns[:SHOWN])
            raise UserError(f"{path} line {line} has {len(row)} columns; its first line has {len(columns)}: {names}.")
        yield line, row


def _objects(path: Path, lines: Iterator[Line]) -> Table:
    objects = ((number, flatten(read_object(path, number, line))) for number, line in lines if line.strip())
    first = next(objects)
    columns = tuple(first[1])
    rows = ((line, [values.get(name) for name in columns]) for line, values in chain([first], objects))
    return Table(path, columns, rows)


def read_object(path: Path, number: int, line: str) -> dict[str, Any]:
    if number == 1 and line.lstrip().startswith("["):
        raise UserError(f"{path} is a JSON array, and chainrule reads JSON lines, an object on each. Convert it: "
                        f"jq -c '.[]' {path} > new.jsonl")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).split(":")[0]
        raise UserError(f"{path} line {number} is not JSON: {reason}. Each line is an object of its own.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} line {number} is JSON but not an object; a row is {{\"text\": …, \"label\": …}}.")
    if SURROGATE.search(line) and not _is_text(value):
        raise UserError(f"{path} line {number} has half of a surrogate pair, which is not a character. Remove it, or "
                        "replace it by U+FFFD.")
    return value


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def text_in(value: Any, place: Place, what: str) -> str:
    """The text of a field; it must not be missing or empty."""
    if isinstance(value, bool):
        value = str(value).lower()
    if value is None or not isinstance(value, str | int | float):
        found = "no value" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{place} has {found} where {what} should be.")
    if not (text := str(value).strip()):
        raise UserError(f"{place} is empty where {what} should be. Fill it in, or remove the row.")
    return text
