"""Corpus: text that is split, tokenized and stored on disk once, then memory-mapped and reused until something changes.

A split is one stream `0 document 0 document 0` (words: `0 line 0 line 0`; symbols: `0 document document`) in uint16 or
uint32, and a JSON file describes it. Everything is read in pieces of bounded size: memory does not grow with the text.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.files import SEAL, cache_folder, remove_abandoned, seal_of, sha256, write_aside, write_text
from chainrule.model import BOUNDARY
from chainrule.progress import bar, say
from chainrule.recipe import Text
from chainrule.text.sources import Source
from chainrule.text.splits import Selection, gather, held_out_part, hold_out_documents, resolve
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

VERSION = 4                 # of the file format; goes up when the same text would be stored differently


@dataclass(frozen=True)
class Split:
    tokens: NDArray[np.unsignedinteger]      # memory-mapped
    bytes: int                               # of the text, as UTF-8
    documents: int
    sha256: str                              # of the text; a NUL byte between documents
    packed: bool = field(default=False, kw_only=True)    # whether documents do not see each other (text.packed)


@dataclass(frozen=True)
class Part:
    """One text of a mix, within a split."""

    text: str                                # the argument that named it
    weight: float                            # its share of the tokens to draw
    end: int                                 # where its last boundary is; there the next text begins
    tokens: int
    bytes: int


@dataclass(frozen=True)
class MixedSplit(Split):
    """A split of several texts one after the other, of which training draws by weight (text.mix)."""

    parts: tuple[Part, ...]

    def only(self, part: Part) -> Split:
        """One text alone."""
        return Split(self.tokens[part.end - part.tokens : part.end + 1], part.bytes, 1, self.sha256, packed=self.packed)


@dataclass(frozen=True)
class SampledSplit(Split):
    """Blocks of a split, drawn at random, one after the other."""

    said: str                                # how it was drawn


BLOCK = 2048                                 # tokens that are drawn together


def sample_split(split: Split, tokens: int, seed: int, tokenizer: Tokenizer) -> tuple[SampledSplit, str]:
    """About `tokens` tokens of a split, in blocks that are drawn by the seed and stay in order; and a note of it."""
    targets = len(split.tokens) - 1
    size = min(BLOCK, max(1, tokens))
    count, blocks = max(1, tokens // size), targets // size
    places = np.sort(np.random.default_rng(seed).choice(blocks, min(count, blocks), replace=False)) * size
    parts = [split.tokens[:1], *(split.tokens[1 + place : 1 + place + size] for place in places.tolist())]
    drawn = np.concatenate(parts)
    said = f"{len(places)} of {blocks} blocks of {size:,} tokens, drawn by seed {seed}"
    length = len(tokenizer.decode(drawn[1:].tolist()).encode()) if tokenizer.lossless else 0
    sample = SampledSplit(drawn, length, split.documents, split.sha256, said, packed=split.packed)
    return sample, f"evaluations read a sample of the validation text: {said} (train.evaluate_tokens={tokens})"


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
    words = [*train, *valid] if settings.mix else []
    key = _key([*given], _fingerprints(given.values()), words, asdict(settings), _tokenizer_sha256(settings, tokenizer))
    record = folder / "corpora" / f"{key}.json"
    known = _remembered(record, folder / "tokenizers")
    if known is None:
        mixed = settings.mix and _select_parts(train, valid, given, settings, folder)
        selections, notes = mixed or _select(given, settings)
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
    return _store((Selection(sources),), settings, tokenizer, folder)


Selections = dict[str, tuple[Selection, ...]]
"""The documents of each split; in a mix, by text."""


def _select(given: Mapping[str, tuple[Source, ...]], settings: Text) -> tuple[Selections, tuple[str, ...]]:
    """The documents of each split, and notes on how they were chosen."""
    selections: Selections = {name: (Selection(sources),) for name, sources in given.items()}
    notes = [f"{SPOKEN[name]}: {selections[name][0].name}" for name in SPOKEN if name in selections]
    if "valid" not in selections:
        kept, held, note = hold_out_documents(given["train"], settings)
        selections |= {"train": (kept,)} | ({"valid": (held,)} if held else {})
        notes.append(note)
    return selections, tuple(notes)


def _select_parts(
    train: Sequence[str], valid: Sequence[str], given: Mapping[str, tuple[Source, ...]], settings: Text, folder: Path
) -> tuple[Selections, tuple[str, ...]]:
    """The same for a mix: a part of each text is held out, unless there are validation texts."""
    if len(settings.mix) != len(train):
        weights = ",".join(f"{weight:g}" for weight in settings.mix)
        raise UserError(f"text.mix={weights} has {len(settings.mix)} weights, and there are {len(train)} texts: "
                        f"{', '.join(train)}. Give a weight for each.")
    selections: Selections = {name: (Selection(given[name]),) for name in ("test",) if name in given}
    notes = []
    for word in train:
        own = {name: sources for name, sources in gather([word], (), (), folder).items() if name != "test"}
        chosen, said = _select(own, replace(settings, held_out=0.0) if valid else settings)
        if valid:
            chosen.pop("valid", None)
        else:
            notes += [f"{word}, {note}" for note in said]
        for name, parts in chosen.items():
            selections[name] = selections.get(name, ()) + tuple(replace(part, text=word) for part in parts)
    for word in valid:
        splits = resolve(word, folder)
        part = Selection(splits.get("valid", splits["train"]), text=word)
        selections["valid"] = (*selections.get("valid", ()), part)
    return selections, tuple(notes)


SPOKEN = {"valid": "validation", "test": "test"}


def _learn(train: Sequence[Selection], settings: Text) -> Tokenizer:
    pieces = (piece for part in train for _, piece in part.pieces(settings))
    with bar(f"learning {Path(settings.tokenizer).name}", _size(train), "B") as advance:
        return train_tokenizer(settings, _watched(pieces, advance))


def _size(parts: Sequence[Selection]) -> int | None:
    sizes = [part.size for part in parts]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _watched(pieces: Iterable[str], advance: Any) -> Iterator[str]:
    for piece in pieces:
        yield piece
        advance(len(piece))


def _store(parts: tuple[Selection, ...], settings: Text, tokenizer: Tokenizer, folder: Path) -> Split:
    """The tokens of a split, from the cache; if they are not there, they are written to it."""
    before = _fingerprints(part.sources for part in parts)
    chosen = [(part.nth, part.first, part.held) for part in parts]
    key = _key(before, chosen, settings.errors, settings.separator, tokenizer.sha256)
    path, sidecar = folder / "tokens" / f"{key}.bin", folder / "tokens" / f"{key}.json"
    facts = _facts(path, sidecar)
    if facts is None:
        remove_abandoned(path.parent)
        facts = _write(path, parts, settings, tokenizer)
        if _fingerprints(part.sources for part in parts) != before:
            names = ", ".join(part.name for part in parts)
            raise UserError(f"{names} changed while it was being read. Run again when it no longer changes.")
        write_text(sidecar, json.dumps(facts, indent=1))
    tokens = np.memmap(path, facts["dtype"], mode="r")
    whole, packed = (tokens, facts["bytes"], facts["documents"], facts["sha256"]), getattr(settings, "packed", False)
    if settings.mix:
        return MixedSplit(*whole, _parts(parts, facts["parts"], settings), packed=packed)
    return Split(*whole, packed=packed)


def _parts(selections: Sequence[Selection], ends: Sequence[Sequence[int]], settings: Text) -> tuple[Part, ...]:
    """From where each text ended, in tokens and in bytes. Validation texts, of any number, have their own weights."""
    weights = settings.mix if len(settings.mix) == len(selections) else (1.0,) * len(selections)
    shares = [weight / sum(weights) for weight in weights]
    before = [(0, 0), *ends[:-1]]
    return tuple(
        Part(selection.text, share, end, end - begin, size - earlier)
        for selection, share, (end, size), (begin, earlier) in zip(selections, shares, ends, before, strict=True)
    )


def _facts(path: Path, sidecar: Path) -> dict[str, Any] | None:
    """The description of a token file, if both are as they were written; files of a cache may be deleted."""
    if not (path.exists() and sidecar.exists()):
        return None
    try:
        facts: dict[str, Any] = json.loads(sidecar.read_text())
        if facts[SEAL] == seal_of(facts) and facts["file"] == sha256(path):
            return facts
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    say(f"{path} is damaged, so the text is tokenized again.")
    return None


def _write(path: Path, parts: Sequence[Selection], settings: Text, tokenizer: Tokenizer) -> dict[str, Any]:
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    text, ends = _Text(), []
    with write_aside(path) as aside, aside.open("wb") as file, bar("tokenizing", _size(parts), "B") as advance:
        boundary = np.array([BOUNDARY], dtype).tobytes()
        file.write(boundary)
        for part in parts:
            for _, document in groupby(part.pieces(settings), key=lambda numbered: numbered[0]):
                for ids in tokenizer.encode_chunks(_watched(text.seen(piece for _, piece in document), advance)):
                    file.write(ids.astype(dtype).tobytes())
                file.write(boundary if tokenizer.boundary != "none" else b"")
            ends.append((file.tell() // dtype.itemsize - 1, text.bytes))
        tokens = file.tell() // dtype.itemsize
    sha = text.digest.hexdigest()
    facts = {"tokens": tokens, "bytes": text.bytes, "documents": text.documents, "sha256": sha, "parts": ends}
    facts = {"version": VERSION, "dtype": dtype.name, **facts, "tokenizer": tokenizer.sha256, "file": sha256(path)}
    return facts | {SEAL: seal_of(facts)}


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


def _remember(record: Path, selections: Selections, notes: tuple[str, ...], tokenizer: Tokenizer) -> None:
    written = {name: [asdict(part) for part in parts] for name, parts in selections.items()}
    facts = json.loads(json.dumps({"selections": written, "notes": notes, "tokenizer": tokenizer.sha256}, default=str))
    write_text(record, json.dumps(facts | {SEAL: seal_of(facts)}, indent=1))


def _remembered(record: Path, tokenizers: Path) -> dict[str, Any] | None:
    """What `_remember` wrote, if all of it still exists as it was: files of a cache may be deleted."""
    try:
        known = json.loads(record.read_text())
        if known[SEAL] != seal_of(known):
            return None
        selections = {
            name: tuple(
                Selection(**part | {"sources": tuple(_source(**source) for source in part["sources"])})
                for part in parts
            )
            for name, parts in known["selections"].items()
        }
        tokenizer = Tokenizer.load(tokenizers / f"{known['tokenizer']}.json")
        if tokenizer.sha256 != known["tokenizer"]:
            return None
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
