"""Documents: sources cut at separator lines; in JSON lines every line is a document.

A file is one document, unless lines that hold only the separator (`<|endoftext|>`) cut it into several.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.sources import Source, read_text, whole_lines
from chainrule.text.tables import TEXT_COLUMNS, read_object, unpacked_name

LONG_LINE = 1 << 20                  # characters; a longer line comes in pieces
SPACE = " \t\r\v\f"                  # where a long line may be cut
LINE_END = re.compile(r"\r?(?:\n|\Z)")
JSON_LINES = (".jsonl", ".ndjson")


def documents(sources: Sequence[Source], settings: Text) -> Iterator[tuple[int, str]]:
    """(number, piece of text): documents in order, numbered from 0, none empty.

    A piece ends at the end of a line or, within a long line, after white space if there is any.
    """
    number = 0
    for source in sources:
        before, wrote = number, False
        for piece in _cut(source, settings):
            if piece is not None:
                yield number, piece
            number += piece is None and wrote
            wrote = piece is not None
        number += wrote
        if number == before:
            raise UserError(f"{source.path} is empty: there is no text in it.")


def _cut(source: Source, settings: Text) -> Iterator[str | None]:
    """The pieces of a source; None where a document ends."""
    pieces = read_text(source, settings.errors)
    if not is_json_lines(source.path):
        yield from _cut_at_separators(at_line_ends(pieces), settings.separator)
        return
    for text in json_texts(source.path, pieces):
        yield text
        yield None


def is_json_lines(path: Path) -> bool:
    return unpacked_name(path).suffix.lower() in JSON_LINES


def at_line_ends(chunks: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that end with a line; a line without end is cut at white space."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        end = rest.rfind("\n") + 1
        if not end and len(rest) >= LONG_LINE:
            end = 1 + max(rest.rfind(space) for space in SPACE) or len(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _cut_at_separators(pieces: Iterable[str], separator: str) -> Iterator[str | None]:
    """The text between separators; None where one stood."""
    at_start = True                                    # whether this piece begins a line
    for piece in pieces:
        begin = 0
        for start, end in _separator_lines(piece, separator, at_start) if separator else ():
            if start > begin:
                yield piece[begin:start]
            yield None
            begin = end
        if begin < len(piece):
            yield piece[begin:]
        at_start = piece.endswith("\n")


def _separator_lines(piece: str, separator: str, at_start: bool) -> Iterator[tuple[int, int]]:
    """Where the lines that hold only the separator begin and end."""
    place = piece.find(separator)
    while place >= 0:
        end = LINE_END.match(piece, place + len(separator))
        if end and (piece[place - 1] == "\n" if place else at_start):
            yield place, end.end()
        place = piece.find(separator, place + len(separator))


def json_texts(path: Path, pieces: Iterable[str]) -> Iterator[str]:
    """The text of each JSON line of the file at `path`; empty ones are left out."""
    for number, line in enumerate(whole_lines(pieces), 1):
        if line.strip() and (text := _text_in(path, number, read_object(path, number, line))):
            yield text


def _text_in(path: Path, number: int, fields: dict[str, Any]) -> str:
    named = {name.lower(): value for name, value in fields.items()}
    found = next((named[name] for name in TEXT_COLUMNS if name in named), None)
    if not isinstance(found, str):
        has = ", ".join(list(fields)[:8]) or "no fields"
        raise UserError(f"{path} line {number} has no text: it has {has}, and the field with the text must have one of "
                        f"the names {', '.join(TEXT_COLUMNS)}.")
    return found
