"""Where text comes from: files, folders, globs, packed files, stdin; read as UTF-8 in bounded pieces, as documents.

A file is one document, unless lines that hold only the separator cut it into several; of JSON lines, each is one. Text
is taken as it is: only a byte order mark is dropped. What cannot be text is refused with the offset of the byte that
gives it away.
"""

import codecs
import glob
import gzip
import hashlib
import lzma
import re
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import zstandard

from chainrule.errors import UserError, did_you_mean
from chainrule.files import write_aside
from chainrule.recipe import Text
from chainrule.text.json_lines import SUFFIXES, json_texts

BLOCK = 1 << 20                      # bytes read at a time
PACKED_BLOCK = 1 << 14               # packed bytes read at a time, since they may unpack to many more
LONG_LINE = 1 << 20                  # characters; a longer line comes in pieces
LINE_END = re.compile(r"\r?(?:\n|\Z)")
LONGEST_NAME = 80        # letters of a name that is no file's, in a message
SPACE = " \t\r\v\f"                  # where a long line may be cut


@dataclass(frozen=True)
class Source:
    """A file, or a part of one: bytes `begin` to `end` of what it holds, once unpacked."""

    path: Path
    begin: int = 0
    end: int | None = None

    def fingerprint(self) -> list[str | int | None]:
        """What changes when the file does."""
        found = self.path.stat()
        stamps = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        return [str(self.path.resolve()), self.begin, self.end, *stamps]


def find(word: str, spool: Path, known: Iterable[str] = ()) -> list[Source]:
    """The files that one word of a command names, in order. `-` is stdin, kept in `spool` to be read more than once."""
    if word == "-":
        return [Source(_of_stdin(spool))]
    path = _path(word)
    if path.is_fifo():
        with path.open("rb") as pipe:
            return [Source(keep(pipe, word, spool))]
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [Source(path)]
    if glob.has_magic(word):
        return _in_glob(str(path))
    near = [str(path.parent / other.name) for other in _children(path.parent)]
    raise UserError(f"there is no file or folder {word}.{did_you_mean(str(path), near) or did_you_mean(word, known)}")


_stdin: list[Any] = []    # what was read to its end, and where it is now


def _of_stdin(spool: Path) -> Path:
    """It can be read but once, though more than one part of a command may want it."""
    if not _stdin or _stdin[0] is not sys.stdin or not _stdin[1].exists():
        _stdin[:] = [sys.stdin, keep(sys.stdin.buffer, "stdin", spool)]
    path: Path = _stdin[1]
    return path


def _path(word: str) -> Path:
    """Whatever word it is, a path that can be asked for."""
    try:
        path = Path(word).expanduser()
        path.is_fifo()
    except (OSError, RuntimeError) as error:    # as of a whole text given in the place of its file
        named = word if len(word) <= LONGEST_NAME else f"{word[:LONGEST_NAME]}…"
        raise UserError(f"there is no file or folder {named}: {getattr(error, 'strerror', None) or error}") from None
    return path


def _in_folder(folder: Path) -> list[Source]:
    inside = (path for path in sorted(folder.rglob("*")) if path.is_file())
    visible = (path for path in inside if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    found = [Source(path) for path in visible if _looks_like_text(path)]
    if not found:
        raise UserError(f"the folder {folder} holds no text: no file in it that is not hidden, empty or binary.")
    return found


def _in_glob(pattern: str) -> list[Source]:
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    found = [Source(Path(name)) for name in names if Path(name).is_file()]
    if not found:
        raise UserError(f"no file matches {pattern}. Try the pattern with ls, or name a folder.")
    return found


def _children(folder: Path) -> list[Path]:
    return sorted(islice(folder.iterdir(), 1000)) if folder.is_dir() else []


def _looks_like_text(path: Path) -> bool:
    with closing(unpacked(Source(path))) as blocks:
        first = next(blocks, b"")
    return bool(first) and b"\0" not in first


def keep(stream: BinaryIO, name: str, folder: Path) -> Path:
    """What can be read only once, as a file named by what is in it, so that the same text is recognised."""
    digest = hashlib.sha256()
    path = folder / f"{uuid4().hex}.txt"
    with write_aside(path) as aside, aside.open("wb") as file:
        while block := stream.read(BLOCK):
            digest.update(block)
            file.write(block)
        if file.tell() == 0:
            raise UserError(f"{name} is empty: there is no text in it.")
    kept = folder / f"{digest.hexdigest()}.txt"
    if kept.exists():
        path.unlink()
    else:
        path.rename(kept)
    return kept


def unpacked(source: Source) -> Generator[bytes, None, None]:
    """The bytes of a source in blocks."""
    path = source.path
    try:
        with path.open("rb") as file:
            if path.suffix in OPENERS:
                yield from _part(OPENERS[path.suffix](file), source.begin, source.end)
            else:
                file.seek(source.begin)
                yield from _part(_plain(file), 0, None if source.end is None else source.end - source.begin)
    except (EOFError, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged and cannot be unpacked ({error}). Fetch or pack it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    with gzip.open(file) as inside:
        while block := inside.read(BLOCK):
            yield block


def _xz(file: BinaryIO) -> Iterator[bytes]:
    with lzma.open(file) as inside:
        while block := inside.read(BLOCK):
            yield block


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    """Frame by frame; the library's own reader would take a file cut short for a whole one."""
    frame = None
    while packed := file.read(PACKED_BLOCK):
        while packed:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            block = frame.decompress(packed)
            if block:
                yield block
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("it ends too early")


OPENERS = {".gz": _gzip, ".xz": _xz, ".zst": _zstd}


def _part(blocks: Iterator[bytes], begin: int, end: int | None) -> Iterator[bytes]:
    """Bytes `begin` to `end` of a stream."""
    offset = 0
    for block in blocks:
        if end is not None and offset >= end:
            return
        part = block[max(begin - offset, 0) : None if end is None else end - offset]
        offset += len(block)
        if part:
            yield part


def read(source: Source, errors: str = "strict") -> Iterator[str]:
    """The text of a source in pieces; a piece may end anywhere between two characters."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    offset = source.begin
    for block in unpacked(source):
        _refuse_binary(source.path, block, offset)
        text = _decode(decoder, block, offset, source.path)
        if offset == 0:
            text = text.removeprefix("\ufeff")
        offset += len(block)
        if text:
            yield text
    if rest := _decode(decoder, b"", offset, source.path):
        yield rest


def _refuse_binary(path: Path, block: bytes, offset: int) -> None:
    if offset == 0 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{path} is UTF-16, and chainrule reads UTF-8. Convert it: iconv -f utf-16 -t utf-8 {path} > new.txt"
        )
    if (place := block.find(b"\0")) >= 0:
        raise UserError(
            f"{path} is binary: it has a NUL byte at offset {offset + place}, and chainrule reads text. "
            f"Name text files only."
        )


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, offset: int, path: Path) -> str:
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        place = offset - (len(error.object) - len(block)) + error.start
        byte = error.object[error.start]
        raise UserError(
            f"{path} is not UTF-8: byte 0x{byte:02x} at offset {place} ({error.reason}). "
            f"Convert the file, or take text.errors=replace to put U+FFFD there."
        ) from None


def documents(sources: Sequence[Source], settings: Text) -> Iterator[tuple[int, str]]:
    """(number, piece of text): documents in order, numbered from 0, none empty.

    A piece ends at the end of a line or, within a long line, behind white space if there is any.
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
    pieces = read(source, settings.errors)
    if not is_json_lines(source.path):
        yield from _cut_at_separators(at_line_ends(pieces), settings.separator)
        return
    for text in json_texts(source.path, pieces):
        yield text
        yield None


def is_json_lines(path: Path) -> bool:
    return (path.with_suffix("") if path.suffix in OPENERS else path).suffix.lower() in SUFFIXES


def at_line_ends(chunks: Iterable[str]) -> Iterator[str]:
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
