"""Sources of text: files, folders, globs, compressed files and stdin, decoded as UTF-8 in pieces of bounded size.

The text is not changed: only a byte order mark is dropped. Binary data and invalid UTF-8 are refused with the offset of
the first offending byte.
"""

import codecs
import glob
import gzip
import hashlib
import lzma
import os
import re
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import zstandard

from chainrule.errors import UserError, did_you_mean
from chainrule.files import remove_abandoned, write_aside

BLOCK = 1 << 20                      # bytes read at a time
PACKED_BLOCK = 1 << 14               # compressed bytes read at a time: they may unpack to many more
LONGEST_NAME = 80                    # characters of an argument that an error message repeats


@dataclass(frozen=True)
class Source:
    """A file, or a part of one: bytes `begin` to `end` of its content after decompression."""

    path: Path
    begin: int = 0
    end: int | None = None

    def fingerprint(self) -> list[str | int | None]:
        """Path, range and file status: it changes when the file changes."""
        found = self.path.stat()
        stamps = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        return [str(self.path.resolve()), self.begin, self.end, *stamps]


def find_sources(word: str, spool: Path, known: Iterable[str] = ()) -> list[Source]:
    """The files that one argument names, in order. `-` is stdin, copied to `spool` so that it can be read again."""
    if word == "-":
        return [Source(_of_stdin(spool))]
    path = path_of(word)
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
    raise UserError(f"there is no file or folder {word}.{did_you_mean(str(path), [*near, *known])}")


_stdin: list[Any] = []    # the stream that was read to its end, and the path of the copy


def _of_stdin(spool: Path) -> Path:
    """Stdin can be read only once, but several parts of a command may need it."""
    if not _stdin or _stdin[0] is not sys.stdin or not _stdin[1].exists():
        _stdin[:] = [sys.stdin, keep(sys.stdin.buffer, "stdin", spool)]
    path: Path = _stdin[1]
    return path


def path_of(word: str) -> Path:
    """The argument as a path, if the operating system accepts it as one."""
    try:
        path = Path(word).expanduser()
        path.is_fifo()
    except (OSError, RuntimeError) as error:    # such as a whole text given instead of a file name
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
    names = sorted({str(Path(name)) for name in _matches(pattern)})
    found = [Source(Path(name)) for name in names if Path(name).is_file()]
    if not found:
        raise UserError(f"no file matches {pattern}. Try the pattern with ls, or name a folder.")
    return found


def _matches(pattern: str) -> Iterator[str]:
    """`glob.glob` with `**`, which enters a folder only once, even if links lead back to it."""
    pattern = re.sub(r"(?<![^/])(\*\*/)+", "**/", pattern)
    head, deep, rest = re.fullmatch(r"(.*?)(?:(?<![^/])(\*\*)(?:/(.*))?)?", pattern, re.DOTALL).groups()  # type: ignore[union-attr]
    if not deep:
        yield from glob.glob(pattern)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        return
    roots = glob.glob(head) if glob.has_magic(head) else [head or "."]  # noqa: PTH207
    for root in roots:
        for folder in _folders(root):
            yield from _matches(os.path.join(glob.escape(folder), rest or "*"))  # noqa: PTH118


def _folders(root: str) -> Iterator[str]:
    """A folder and all below it that are not hidden, each once; links last."""
    waiting, seen = [root], set[tuple[int, int]]()
    while waiting:
        folder = waiting.pop(0)
        with suppress(OSError):                  # such as a link that leads nowhere, or a folder of somebody else
            found = Path(folder).stat()
            if not Path(folder).is_dir() or (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            yield folder
            with os.scandir(folder) as entries:
                inside = sorted((entry.is_symlink(), entry.path) for entry in entries if entry.name[0] != ".")
            waiting += [path for _, path in inside if Path(path).is_dir()]


def _children(folder: Path) -> list[Path]:
    return sorted(islice(folder.iterdir(), 1000)) if folder.is_dir() else []


def _looks_like_text(path: Path) -> bool:
    with closing(unpacked(Source(path))) as blocks:
        first = next(blocks, b"")
    return bool(first) and b"\0" not in first


def keep(stream: BinaryIO, name: str, folder: Path) -> Path:
    """Copies a stream to a file named by its sha256, so that the same text gets the same name."""
    remove_abandoned(folder)
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
    """The bytes of a source in blocks, decompressed."""
    path = source.path
    try:
        with path.open("rb") as file:
            if path.suffix in OPENERS:
                yield from _part(OPENERS[path.suffix](file), source.begin, source.end)
            else:
                if source.begin:        # a pipe begins where it is
                    file.seek(source.begin)
                yield from _part(_plain(file), 0, None if source.end is None else source.end - source.begin)
    except (EOFError, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged and cannot be unpacked ({error}). Download it again.") from error
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
    """Frame by frame: the library's own reader does not notice a truncated file."""
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


def read_text(source: Source, errors: str = "strict") -> Iterator[str]:
    """The text of a source in pieces; a piece may end anywhere between two characters."""
    return decoded(unpacked(source), source.path, errors, source.begin)


def decoded(blocks: Iterable[bytes], path: Path, errors: str = "strict", begin: int = 0) -> Iterator[str]:
    """The text of bytes that come in blocks, from byte `begin` of a file on."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    offset = begin
    for block in blocks:
        _refuse_binary(path, block, offset)
        text = _decode(decoder, block, offset, path)
        if offset == 0:
            text = text.removeprefix("\ufeff")
        offset += len(block)
        if text:
            yield text
    if rest := _decode(decoder, b"", offset, path):
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
            f"Convert the file, or use text.errors=replace to read such bytes as U+FFFD."
        ) from None


def whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Lines with their ends. Only \\n ends a line."""
    begun: list[str] = []                # pieces of the line that has not ended: joined once, however long it is
    for piece in pieces:
        first, *others = piece.split("\n")
        begun.append(first)
        if others:
            yield "".join(begun) + "\n"
            yield from (line + "\n" for line in others[:-1])
            begun = others[-1:]
    if last := "".join(begun):
        yield last
