"""Documents of a text, and its train, validation and test splits: given files, else held-out documents, else its end.

A file is one document, unless lines that hold only the separator (`<|endoftext|>`) cut it into several; in JSON lines
every line is a document. Every choice that is not the user's is reported in a note.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.progress import bar
from chainrule.recipe import Text
from chainrule.text.datasets import DATASETS, Splits, get_text
from chainrule.text.sources import OPENERS, Source, find_sources, read_text, unpacked, whole_lines
from chainrule.text.tables import TEXT_COLUMNS, read_object, unpacked_name

LONG_LINE = 1 << 20                  # characters; a longer line comes in pieces
SPACE = " \t\r\v\f"                  # where a long line may be cut
LINE_END = re.compile(r"\r?(?:\n|\Z)")
JSON_LINES = (".jsonl", ".ndjson")
RAREST = 1_000_000                   # every such document is held out, if text.held_out asks for even fewer


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


TOO_SHORT = "validation: none, since the text is too short to hold out a part"
NEAR = 1 << 16      # bytes: how far a line end may lie from where a text should be cut


@dataclass(frozen=True)
class Selection:
    """Documents of some sources: all of them; or, from number `first` on, all but every nth, or only every nth."""

    sources: tuple[Source, ...]
    nth: int | None = None
    first: int = 0
    held: bool = False
    text: str = ""                   # the argument that named them, in a mix (text.mix)

    def pieces(self, settings: Text) -> Iterator[tuple[int, str]]:
        for number, piece in documents(self.sources, settings):
            if self.nth is None or (number % self.nth == self.first) == self.held:
                yield number, piece

    @property
    def size(self) -> int | None:
        """Bytes, if known before reading."""
        if self.nth or any(source.path.suffix in OPENERS for source in self.sources):
            return None
        ends = [source.path.stat().st_size if source.end is None else source.end for source in self.sources]
        return sum(ends) - sum(source.begin for source in self.sources)

    @property
    def name(self) -> str:
        """For messages: the first file, and how many more."""
        more = len(self.sources) - 1
        return f"{self.sources[0].path}" + (f" and {more} more" if more else "")


def resolve(word: str, cache: Path) -> Splits:
    """The sources of one argument by split: a path, else a known corpus, or a split of one (`ptb:test`)."""
    name, _, split = word.partition(":")
    if name not in DATASETS or Path(word).exists():
        return {"train": tuple(find_sources(word, cache / "stdin", known=DATASETS))}
    splits = get_text(name, cache)
    if not split:
        return splits
    if split not in splits:
        raise UserError(f"{name} has no split {split}. It has {', '.join(splits)}.")
    return {"train": splits[split]}


def held_out_part(word: str, cache: Path) -> tuple[Source, ...]:
    """The sources of an argument that names a text to evaluate on: of a known corpus, its test or validation split."""
    splits = resolve(word, cache)
    return next(splits[split] for split in ("test", "valid", "train") if split in splits)


def gather(train: Sequence[str], valid: Sequence[str], test: Sequence[str], cache: Path) -> Splits:
    """Sources by split. Given validation and test files replace those of a known corpus."""
    if [*train, *valid, *test].count("-") > 1:
        raise UserError("- is stdin, which is one text: it cannot be in two splits.")
    found: dict[str, tuple[Source, ...]] = {}
    for word in train:
        for split, sources in resolve(word, cache).items():
            found[split] = found.get(split, ()) + sources
    for split, words in {"valid": valid, "test": test}.items():
        if words:
            parts = [resolve(word, cache) for word in words]
            found[split] = tuple(source for part in parts for source in part.get(split, part["train"]))
    return found


def hold_out_documents(sources: tuple[Source, ...], settings: Text) -> tuple[Selection, Selection | None, str]:
    """The training split, the validation split, and a note on how they were chosen."""
    share = settings.held_out
    if not 0 <= share < 1:
        raise UserError(f"text.held_out={share} must be at least 0 and less than 1.")
    if share == 0:
        return Selection(sources), None, "validation: none, since text.held_out=0"
    nth = max(round(1 / max(share, 1 / RAREST)), 2)
    count, sizes = _survey(sources, settings, nth)
    if count < nth and not any(is_json_lines(source.path) for source in sources):
        train, valid, note = _hold_out_end(sources, share)
        both = valid is None or all(_has_text(part, settings) for part in (train, valid))
        return (train, valid, note) if both else (Selection(sources), None, TOO_SHORT)
    if count == 1:
        return Selection(sources), None, TOO_SHORT
    nth = min(nth, count)                                 # a JSON line is never cut
    first = min(range(nth), key=lambda place: abs(sizes[place] - share * sum(sizes)))
    part = 100 * sizes[first] / sum(sizes)
    which = f"every {nth}th document from number {first + 1}" if count > nth else f"document number {first + 1}"
    note = f"validation: {which}, {part:.3g} % of the text in {count} documents"
    return Selection(sources, nth, first), Selection(sources, nth, first, held=True), note


def _has_text(part: Selection, settings: Text) -> bool:
    """Whether there is more in it than separators."""
    try:
        return any(True for _ in part.pieces(settings))
    except UserError:
        return False


def _survey(sources: tuple[Source, ...], settings: Text, nth: int) -> tuple[int, list[int]]:
    """The number of documents, and the characters in every nth document, starting from each of the first n."""
    count, sizes = 0, [0] * nth
    with bar("reading", Selection(sources).size, "B") as advance:
        for number, piece in documents(sources, settings):
            count = number + 1
            sizes[number % nth] += len(piece)
            advance(len(piece))
    return count, sizes


def _hold_out_end(sources: tuple[Source, ...], share: float) -> tuple[Selection, Selection | None, str]:
    sizes = [sum(map(len, unpacked(source))) for source in sources]
    ends = list(accumulate(sizes))
    target = round(ends[-1] * (1 - share))
    place = next(place for place, end in enumerate(ends) if target < end or end == ends[-1])
    source, before = sources[place], ends[place] - sizes[place]
    cut = source.begin + before_line(source, target - before, sizes[place], near=min(NEAR, round(ends[-1] * share / 2)))
    front, back = Source(source.path, source.begin, cut), Source(source.path, cut, source.end)
    train = (*sources[:place], *([front] if cut > source.begin else []))
    valid = (*([back] if cut < source.begin + sizes[place] else []), *sources[place + 1 :])
    if not train or not valid:
        return Selection(sources), None, TOO_SHORT
    held = ends[-1] - (before + cut - source.begin)
    note = f"validation: the last {100 * held / ends[-1]:.3g} % of the text, {held:,} bytes"
    return Selection(train), Selection(valid), note


def before_line(source: Source, target: int, size: int, near: int) -> int:
    """The position nearest to `target`, at most `near` away, where a line begins; else a word; else a character."""
    low, high = max(target - near, 0), min(target + near + 1, size)
    window = b"".join(unpacked(Source(source.path, source.begin + low, source.begin + high)))
    for mark in (b"\n", b" "):
        found = window.rfind(mark, 0, target - low), window.find(mark, target - low)
        places = [low + place + 1 for place in found if place >= 0 and low + place + 1 < size]
        if places:
            return min(places, key=lambda place: abs(place - target))
    while target - low < len(window) and window[target - low] & 0xC0 == 0x80:     # within a character
        target += 1
    return target
