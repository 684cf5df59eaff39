"""Texts that become other texts: translations, summaries. Two files line by line, or two columns of a table.

Files are a pair if they differ only in their suffix (train.en train.de), or if there are two of them, source first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.tasks.examples import Translated
from chainrule.tasks.task import Task, Truncate
from chainrule.text.sources import Source
from chainrule.text.tables import (
    TEXT_COLUMNS,
    Place,
    Table,
    format_of,
    numbered_lines,
    read_table,
    text_in,
    unpacked_name,
)


@dataclass(frozen=True)
class TranslateText(Text):
    """`text.*` where a text becomes another: translations, summaries."""

    header: bool = True             # the first line of TSV or CSV names the columns; false: they are named 1, 2, …
    source: str | None = None       # column, or suffix of the file, of the source; None: by its name, or the first
    target: str | None = None       # column, or suffix of the file, of the target; None: by its name, or the second
    truncate: Truncate = "false"    # texts longer than the model's context: refuse, keep the beginning, or both ends


class Translate(Task):
    name, running_text = "translate", False
    text = TranslateText


PAIRS = (
    ("source", "target"), ("src", "tgt"), ("input", "output"), ("document", "summary"), ("article", "highlights"),
    ("article", "summary"), ("text", "summary"), ("dialogue", "summary"), ("body", "subject"), ("text", "headline"),
)
CHOOSE = "text.source=NAME text.target=NAME"


def read_translated(sources: Sequence[Source], settings: TranslateText) -> Iterator[Translated]:
    tables = [source for source in sources if format_of(source.path)]
    plain = [source for source in sources if not format_of(source.path)]
    if len(plain) == 1 and _is_table(plain[0], settings.errors):
        tables, plain = [*tables, *plain], []
    for table in tables:
        yield from _rows(read_table(table, settings.errors, settings.header), settings)
    for source, target in _pairs(plain, settings):
        yield from _lines(source, target, settings.errors)


def read_sources(source: Source, settings: TranslateText) -> Iterator[Translated]:
    """The rows of a table, of which only what is to become another text is looked at."""
    table = read_table(source, settings.errors, settings.header)
    column = _source_column(table, settings)
    for line, row in table.rows:
        place = table.place(line)
        yield Translated(text_in(row[column], place, "the source"), (), place)


def _source_column(table: Table, settings: TranslateText) -> int:
    """The one that is left beside the target, or known by its name; else as where there are answers."""
    if settings.source is not None:
        return table.column(settings.source, "text.source")
    known = (*TEXT_COLUMNS, *(name for name, _ in PAIRS))
    if len(table.columns) == 1 and settings.header and format_of(table.path) != "jsonl" and not table.known(known):
        raise UserError(f"{table.path} has one column, whose first line is {table.columns[0]!r:.60}: if that is a text "
                        "and no header, give text.header=false; else name it by text.source.")
    left = [at for at, name in enumerate(table.columns) if settings.target not in (name, str(at + 1))]
    named = [at for at in table.known([source for source, _ in PAIRS]) if at in left]
    only = next((found for found in (left, named) if len(found) == 1), None)
    return only[0] if only else _columns(table, settings)[0]


def _is_table(source: Source, errors: str) -> bool:
    """Does its first line look like a row, where the suffix says nothing?"""
    first = next((line for _, line in numbered_lines(source, errors)), "")
    return "\t" in first or first.startswith("{")


def _rows(table: Table, settings: TranslateText) -> Iterator[Translated]:
    source, target = _columns(table, settings)
    for line, row in table.rows:
        place = table.place(line)
        yield Translated(text_in(row[source], place, "the source"), _targets(row[target], place), place)


def _targets(value: Any, place: Place) -> tuple[str, ...]:
    """One text, or a list of those that are equally right."""
    several = value if isinstance(value, list) and value else [value]
    return tuple(text_in(text, place, "the target") for text in several)


def _columns(table: Table, settings: TranslateText) -> tuple[int, int]:
    if settings.source is not None and settings.target is not None:
        return table.column(settings.source, "text.source"), table.column(settings.target, "text.target")
    known = [found for names in PAIRS if len(found := [at for name in names for at in table.known([name])]) == 2]
    if settings.source is None and settings.target is None and known:
        return known[0][0], known[0][1]
    if len(table.columns) == 2:
        if settings.target is not None:
            target = table.column(settings.target, "text.target")
            return 1 - target, target
        source = 0 if settings.source is None else table.column(settings.source, "text.source")
        return source, 1 - source
    raise UserError(f"{table.path} has {table.shown}; which is the source, and which the target? Choose: {CHOOSE}.")


def _pairs(files: Sequence[Source], settings: TranslateText) -> list[tuple[Source, Source]]:
    """Each source with its target."""
    groups: dict[Path, list[Source]] = {}
    for file in files:
        groups.setdefault(unpacked_name(file.path).with_suffix(""), []).append(file)
    suffixes = {tuple(sorted(map(_suffix, group))) for group in groups.values()}
    if len(files) == 2 and len(groups) == 2:
        return [(files[0], files[1])]
    if len(suffixes) > 1 or any(len(suffix) != 2 for suffix in suffixes):
        names = ", ".join(str(file.path) for file in files[:4])
        raise UserError(f"these files are no pairs: {names}. Name two, source and target, or pairs like a.en a.de.")
    return [_directed(group, files, settings) for group in groups.values()]


def _directed(pair: list[Source], files: Sequence[Source], settings: TranslateText) -> tuple[Source, Source]:
    """Source first: by the settings, else as in the first pair named."""
    suffixes = [_suffix(file) for file in pair]
    for given, setting, side in ((settings.source, "source", 0), (settings.target, "target", 1)):
        if given is not None:
            if given.lstrip(".") not in suffixes:
                raise UserError(f"text.{setting}={given} is the suffix of neither {pair[0].path} nor {pair[1].path}.")
            at = suffixes.index(given.lstrip("."))
            return (pair[at], pair[1 - at]) if side == 0 else (pair[1 - at], pair[at])
    first = suffixes.index(_suffix(files[0]))
    return pair[first], pair[1 - first]


def _suffix(source: Source) -> str:
    return unpacked_name(source.path).suffix.lstrip(".")


def _lines(source: Source, target: Source, errors: str) -> Iterator[Translated]:
    ours, theirs = numbered_lines(source, errors), numbered_lines(target, errors)
    for left, right in zip_longest(ours, theirs):
        if left is None or right is None:
            number = (left or right)[0]
            longer = number + sum(1 for _ in (theirs if left is None else ours))
            counts = (number - 1, longer) if left is None else (longer, number - 1)
            raise UserError(f"{source.path} has {counts[0]} lines and {target.path} has {counts[1]}; "
                            "parallel files have a line for each line.")
        place = Place(str(source.path), left[0])
        text = text_in(left[1], place, "the source")
        yield Translated(text, (text_in(right[1], Place(str(target.path), right[0]), "the target"),), place)
