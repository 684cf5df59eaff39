"""Word vector files in the formats of word2vec (text and binary) and GloVe, as gensim reads them.

    word2vec          3000000 300             number of words and of dimensions; then one word a line
                      king 0.126 0.0298 …
    word2vec-binary   the same first line; then for each word its name, a space, and its vector as raw float32
    glove             the lines without a header

All text before the numbers of a line is the word, which may contain spaces. Compressed files are known by their suffix.
"""

import gzip
import mmap
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from chainrule.errors import UserError
from chainrule.files import write_aside
from chainrule.inference.vectors import Floats, Vectors
from chainrule.progress import bar
from chainrule.text.sources import OPENERS, Source, unpacked

FORMS = ("word2vec", "word2vec-binary", "glove")
LINES = 1 << 12        # words written at a time
LONGEST = 1 << 12      # bytes in a word; a longer one means a damaged file
DIGITS = 19            # that no count of words or numbers has
LONGEST_LINE = 1 << 22 # bytes in a line: more than
MOST = 1 << 16         # numbers in a vector need
LARGEST = float(np.finfo(np.float32).max)
CURE = "The file is damaged or is not a word vector file; download or export it again."
Line = tuple[int, bytes]


def write_vectors(vectors: Vectors, path: Path, form: str) -> None:
    bad = next((word for word in vectors.words if not word or " " in word or "\n" in word), None)
    if bad is not None:
        raise UserError(f"{bad!r} cannot be written: in a vector file a word must not contain white space.")
    with write_aside(path) as aside, _opened(aside, path) as file, bar("writing", len(vectors), "words") as advance:
        if form != "glove":
            file.write(f"{len(vectors)} {vectors.matrix.shape[1]}\n".encode())
        for at in range(0, len(vectors), LINES):
            words, rows = vectors.words[at : at + LINES], vectors.matrix[at : at + LINES]
            file.write(b"".join((_as_binary if form == "word2vec-binary" else _as_text)(words, rows)))
            advance(len(words))


@contextmanager
def _opened(aside: Path, path: Path) -> Iterator[BinaryIO]:
    """The file to write to; compressed if the suffix of `path` says so."""
    with aside.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file


def _as_binary(words: Sequence[str], rows: Floats) -> Iterator[bytes]:
    for word, row in zip(words, rows):
        yield word.encode() + b" " + row.astype("<f4").tobytes()


def _as_text(words: Sequence[str], rows: Floats) -> Iterator[bytes]:
    """The shortest decimal numbers that give the same float32."""
    for word, row in zip(words, rows):
        yield f"{word} {' '.join(map(str, row.astype(np.float32)))}\n".encode()


def looks_like_vectors(path: Path) -> bool:
    """By the first two lines: even a binary file has a header line."""
    try:
        with closing(_lines(Source(path))) as lines:
            first, second = next(lines, (0, b""))[1].split(), next(lines, (0, b""))[1]
    except UserError:
        return False
    return _header(first) is not None or (_size(first) > 1 and _size(second.split() or first) == _size(first))


def read_vectors(path: Path) -> Vectors:
    """The words of a file and their vectors; the first vector of a word that occurs twice."""
    source = Source(path)
    with closing(_lines(source)) as lines:
        first = next(lines, None)
        if first is None:
            raise UserError(f"{path} is empty: there are no vectors in it.")
        header = _header(first[1].split())
        if header is not None and header[1] > MOST:
            raise _too_wide(path, 1, header[1])
        second = next(lines, None) if header else None
        text = header is None or (second is not None and _row(second[1], header[1]) is not None)
        if text:
            rest = chain([first] if header is None else [second] if second else [], lines)
            return _read_text(path, rest, header)
    assert header is not None
    return _read_binary(source, *header)


def _header(fields: list[bytes]) -> tuple[int, int] | None:
    """The number of words and dimensions, if the first line has them."""
    if len(fields) == 2 and all(field.isdigit() and len(field) < DIGITS for field in fields):
        return int(fields[0]), int(fields[1])
    return None


def _lines(source: Source) -> Generator[Line, None, None]:
    """Numbered from 1, without their ends. Only \\n ends a line."""
    number, begun = 1, b""
    for block in unpacked(source):
        *whole, begun = (begun + block).split(b"\n")
        for line in whole:
            yield number, line
            number += 1
        if len(begun) > LONGEST_LINE:
            raise UserError(f"{source.path} line {number} is too long. {CURE}")
    if begun:
        yield number, begun


def _read_text(path: Path, lines: Iterator[Line], header: tuple[int, int] | None) -> Vectors:
    words: dict[str, None] = {}
    rows: list[Floats] = []
    size, count = header[1] if header else 0, 0
    with bar(f"reading {path.name}", header[0] if header else None, "words") as advance:
        for number, line in lines:
            if not line.strip():
                continue
            size = size or _size(line.split())
            if size > MOST:
                raise _too_wide(path, number, size)
            row = _row(line, size)
            if row is None:
                numbers = f"{size} numbers" if size else "numbers"
                raise UserError(f"{path} line {number} is not a word and {numbers}. {CURE}")
            word = _word(path, f"line {number}", row[0])
            count += 1
            if word not in words:
                words[word] = None
                rows.append(row[1])
            advance()
    _refuse_cut(path, count, header)
    return Vectors(list(words), np.stack(rows))


def _too_wide(path: Path, line: int, size: int) -> UserError:
    return UserError(f"{path} line {line} says that a vector has {size:,} numbers; it has at most {MOST:,}. {CURE}")


def _size(fields: list[bytes]) -> int:
    """How many numbers a line ends with, not counting the first field."""
    return sum(1 for _ in takewhile(_is_number, reversed(fields[1:])))


def _is_number(field: bytes) -> bool:
    try:
        return abs(float(field)) <= LARGEST
    except ValueError:
        return False


def _row(line: bytes, size: int) -> tuple[bytes, Floats] | None:
    """The word and its numbers, if there are `size` of them."""
    fields = line.rstrip().rsplit(None, size)
    if size < 1 or len(fields) != size + 1:
        return None
    numbers = _numbers(fields[1:])
    return None if numbers is None else (fields[0], numbers)


def _numbers(fields: list[bytes]) -> Floats | None:
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(list(map(float, fields)), np.float32)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _read_binary(source: Source, count: int, size: int) -> Vectors:
    with _whole(source) as data:
        words: dict[str, None] = {}
        rows: list[Floats] = []
        place = data.find(b"\n") + 1
        with bar(f"reading {source.path.name}", count, "words") as advance:
            for number in range(count):
                space = data.find(b" ", place, place + LONGEST)
                end = space + 1 + 4 * size
                if space < 0 or end > len(data):
                    _refuse_cut(source.path, number, (count, size))
                word = _word(source.path, f"word {number + 1}", data[place:space].lstrip(b"\n"))
                vector = np.frombuffer(data[space + 1 : end], "<f4")
                if not np.isfinite(vector).all():
                    raise UserError(f"{source.path}: the vector of word {number + 1}, {word!r}, is not finite.")
                if word not in words:
                    words[word] = None
                    rows.append(vector)
                place = end
                advance()
    return Vectors(list(words), np.stack(rows) if rows else np.empty((0, size), np.float32))


@contextmanager
def _whole(source: Source) -> Iterator[bytes | mmap.mmap]:
    if source.path.suffix in OPENERS:
        yield b"".join(unpacked(source))
        return
    with source.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _word(path: Path, where: str, word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} {where}: {word[:40]!r} is not UTF-8. {CURE}") from None


def _refuse_cut(path: Path, count: int, header: tuple[int, int] | None) -> None:
    if header and count != header[0]:
        raise UserError(f"{path} has {count:,} vectors, and its first line says {header[0]:,} of {header[1]} numbers. "
                        f"{CURE}")
