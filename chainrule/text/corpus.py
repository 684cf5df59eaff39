"""Corpus: text that is split, tokenized and stored on disk once, then memory-mapped and reused until something changes.

A split is one stream `0 document 0 document 0` (for words, `0 line 0 line 0`) in uint16 or uint32, and a JSON file
describes it. Everything is read in pieces of bounded size: memory does not grow with the text.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.files import sha256, write_aside, write_text
from chainrule.model import BOUNDARY
from chainrule.progress import bar
from chainrule.recipe import Text
from chainrule.text.datasets import cache_folder
from chainrule.text.sources import Source
from chainrule.text.splits import Selection, gather, held_out_part, hold_out_documents
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

VERSION = 2                 # of the file format; goes up when the same text would be stored differently


@dataclass(frozen=True)
class Split:
    tokens: NDArray[np.unsignedinteger]      # memory-mapped
    bytes: int                               # of the text, as UTF-8
    documents: int
    sha256: str                              # of the text; a NUL byte between documents


@dataclass(frozen=True)
class Corpus:
    splits: Mapping[str, Split]              # train, and where there are any valid and test
    tokenizer: Tokenizer
    notes: tuple[str, ...]                   # choices that were made for the user


def prepare(
    train: Sequence[str],
    settings: Text,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    cache: Path | None = None,
) -> Corpus:
    """A corpus from paths and names of known corpora. The tokenizer, unless given, is trained on `train` only."""
    folder = cache_folder(cache)
    given = gather(train, valid, test, folder)
    key = _key([*given], _fingerprints(given.values()), asdict(settings), _tokenizer_sha256(settings, tokenizer))
    record = folder / "corpora" / f"{key}.json"
    known = _remembered(record, folder / "tokenizers")
    if known is None:
        selections, notes = _select(given, settings)
        tokenizer = tokenizer or _learn(selections["train"], settings)
        tokenizer.save(folder / "tokenizers" / f"{tokenizer.sha256}.json")
    else:
        selections, notes, tokenizer = known["selections"], known["notes"], tokenizer or known["tokenizer"]
    splits = {name: _store(selection, settings, tokenizer, folder) for name, selection in selections.items()}
    _remember(record, selections, notes, tokenizer)
    return Corpus(splits, tokenizer, notes)


def read_split(words: Sequence[str], settings: Text, tokenizer: Tokenizer, cache: Path | None = None) -> Split:
    """One text to evaluate on. Of a known corpus it is the test split, else the validation split."""
    folder = cache_folder(cache)
    words = [words] if isinstance(words, str) else words
    sources = tuple(source for word in words for source in held_out_part(word, folder))
    return _store(Selection(sources), settings, tokenizer, folder)


def _select(given: Mapping[str, tuple[Source, ...]], settings: Text) -> tuple[dict[str, Selection], tuple[str, ...]]:
    """The documents of each split, and notes on how they were chosen."""
    selections = {name: Selection(sources) for name, sources in given.items()}
    notes = [f"{SPOKEN[name]}: {selections[name].name}" for name in SPOKEN if name in selections]
    if "valid" not in selections:
        selections["train"], held, note = hold_out_documents(given["train"], settings)
        selections |= {"valid": held} if held else {}
        notes.append(note)
    return selections, tuple(notes)


SPOKEN = {"valid": "validation", "test": "test"}


def _learn(train: Selection, settings: Text) -> Tokenizer:
    with bar(f"learning {Path(settings.tokenizer).name}", train.size, "B") as advance:
        return train_tokenizer(settings, _watched((piece for _, piece in train.pieces(settings)), advance))


def _watched(pieces: Iterable[str], advance: Any) -> Iterator[str]:
    for piece in pieces:
        yield piece
        advance(len(piece))


def _store(selection: Selection, settings: Text, tokenizer: Tokenizer, folder: Path) -> Split:
    """The tokens of a split, from the cache; if they are not there, they are written to it."""
    before = _fingerprints([selection.sources])
    chosen = (selection.nth, selection.first, selection.held)
    key = _key(before, chosen, settings.errors, settings.separator, tokenizer.sha256)
    path, sidecar = folder / "tokens" / f"{key}.bin", folder / "tokens" / f"{key}.json"
    facts = _facts(path, sidecar)
    if facts is None:
        facts = _write(path, selection, settings, tokenizer)
        if _fingerprints([selection.sources]) != before:
            raise UserError(f"{selection.name} changed while it was being read. Run again when it no longer changes.")
        write_text(sidecar, json.dumps(facts, indent=1))
    tokens = np.memmap(path, facts["dtype"], mode="r")
    return Split(tokens, facts["bytes"], facts["documents"], facts["sha256"])


def _facts(path: Path, sidecar: Path) -> dict[str, Any] | None:
    """The description of a token file, if both files are complete."""
    try:
        facts: dict[str, Any] = json.loads(sidecar.read_text())
        whole = path.stat().st_size == facts["tokens"] * np.dtype(facts["dtype"]).itemsize
        return facts if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, selection: Selection, settings: Text, tokenizer: Tokenizer) -> dict[str, Any]:
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    text = _Text()
    with write_aside(path) as aside, aside.open("wb") as file, bar("tokenizing", selection.size, "B") as advance:
        boundary = np.array([BOUNDARY], dtype).tobytes()
        file.write(boundary)
        for _, document in groupby(selection.pieces(settings), key=lambda numbered: numbered[0]):
            for ids in tokenizer.encode_chunks(_watched(text.seen(piece for _, piece in document), advance)):
                file.write(ids.astype(dtype).tobytes())
            file.write(boundary)
        tokens = file.tell() // dtype.itemsize
    sha = text.digest.hexdigest()
    facts = {"tokens": tokens, "bytes": text.bytes, "documents": text.documents, "sha256": sha}
    return {"version": VERSION, "dtype": dtype.name, **facts, "tokenizer": tokenizer.sha256}


class _Text:
    """Counts and hashes the text that passes through."""

    def __init__(self) -> None:
        self.digest, self.bytes, self.documents = hashlib.sha256(), 0, 0

    def seen(self, document: Iterable[str]) -> Iterator[str]:
        if self.documents:
            self.digest.update(b"\0")
        self.documents += 1
        for piece in document:
            utf8 = piece.encode()
            self.digest.update(utf8)
            self.bytes += len(utf8)
            yield piece


def _remember(record: Path, selections: Mapping[str, Selection], notes: tuple[str, ...], tokenizer: Tokenizer) -> None:
    written = {name: asdict(selection) for name, selection in selections.items()}
    facts = {"selections": written, "notes": notes, "tokenizer": tokenizer.sha256}
    write_text(record, json.dumps(facts, indent=1, default=str))


def _remembered(record: Path, tokenizers: Path) -> dict[str, Any] | None:
    """What `_remember` wrote, if all of it still exists: files of a cache may be deleted."""
    try:
        known = json.loads(record.read_text())
        selections = {
            name: Selection(**written | {"sources": tuple(_source(**source) for source in written["sources"])})
            for name, written in known["selections"].items()
        }
        tokenizer = Tokenizer.load(tokenizers / f"{known['tokenizer']}.json")
        return {"selections": selections, "notes": tuple(known["notes"]), "tokenizer": tokenizer}
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def _source(path: str, **place: Any) -> Source:
    return Source(Path(path), **place)


def _fingerprints(sources: Iterable[tuple[Source, ...]]) -> list[Any]:
    return [[source.fingerprint() for source in some] for some in sources]


def _tokenizer_sha256(settings: Text, tokenizer: Tokenizer | None) -> str | None:
    if tokenizer is not None:
        return tokenizer.sha256
    ready = Path(settings.tokenizer)
    return sha256(ready) if ready.suffix == ".json" and ready.is_file() else None


def _key(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([VERSION, *parts]).encode()).hexdigest()[:32]
