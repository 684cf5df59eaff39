"""Texts with a name. The embedded ones are made here, from the interpreter's own files or by chance: no download."""

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from chainrule.errors import UserError, did_you_mean
from chainrule.files import write_text
from chainrule.progress import track
from chainrule.text.public import PUBLIC, Splits
from chainrule.text.sources import Source
from chainrule.text.synthetic import LANGUAGES, Language

# Where derived files are kept: `$CHAINRULE_CACHE`, else ~/.cache/chainrule. It may be deleted at any time.

def cache_folder(given: Path | None = None) -> Path:
    folder = given or Path(os.environ.get("CHAINRULE_CACHE") or "~/.cache/chainrule").expanduser()
    if folder.is_symlink() and not folder.exists():
        raise UserError(f"{folder}, the cache, is a link to {folder.readlink()}, which is not there. Make that folder.")
    return folder


LANGUAGE_SIZES = {"train": 1_000_000, "valid": 100_000, "test": 100_000}    # characters
LANGUAGE_VERSION = 1                                                        # goes up when a language says other things


class Dataset(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def idea(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def plain(self) -> bool:
        """Its files are text as it is; else they hold labels, tags, or two languages."""

    def where(self, cache: Path) -> str: ...

    def splits(self, cache: Path) -> Splits:
        """Its files, downloaded or made if need be."""


@dataclass(frozen=True)
class Synthetic:
    """A language of known entropy, said at length."""

    language: Language
    plain: ClassVar[bool] = True
    bytes: ClassVar[int] = sum(LANGUAGE_SIZES.values())

    @property
    def name(self) -> str:
        return self.language.name

    @property
    def idea(self) -> str:
        return f"{self.language.idea} ({self.language.bits_per_character:.4f} bits per character)"

    def where(self, cache: Path) -> str:
        return "made here"

    def splits(self, cache: Path) -> Splits:
        folder = cache / "datasets" / f"languages-{LANGUAGE_VERSION}"
        made = {}
        texts = enumerate(LANGUAGE_SIZES.items(), 1)
        for seed, (split, size) in track(texts, f"making {self.name}", len(LANGUAGE_SIZES), "texts"):
            path = folder / f"{self.name}.{split}.txt"
            if not path.exists():
                write_text(path, self.language.text(size, seed))
            made[split] = (Source(path),)
        return made


@dataclass(frozen=True)
class PythonDocs:
    name: ClassVar[str] = "python-docs"
    idea: ClassVar[str] = "the topics of Python's own help(), each a document"
    plain: ClassVar[bool] = True

    @property
    def bytes(self) -> int:
        return sum(len(text.encode()) for text in self.topics.values())

    @property
    def topics(self) -> dict[str, str]:
        from pydoc_data.topics import topics

        return dict(sorted(topics.items()))

    def where(self, cache: Path) -> str:
        return "made here"

    def splits(self, cache: Path) -> Splits:
        folder = cache / "datasets" / f"python-docs-{'.'.join(map(str, sys.version_info[:3]))}"
        for topic, text in self.topics.items():
            if not (folder / f"{topic}.txt").exists():
                write_text(folder / f"{topic}.txt", text)
        return {"train": tuple(Source(folder / f"{topic}.txt") for topic in self.topics)}


@dataclass(frozen=True)
class PythonSource:
    name: ClassVar[str] = "python-source"
    idea: ClassVar[str] = "the source of Python's standard library, each file a document"
    plain: ClassVar[bool] = True
    left_out: ClassVar[frozenset[str]] = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files())

    def files(self) -> list[Path]:
        library = Path(sysconfig.get_paths()["stdlib"])
        every = sorted(library.rglob("*.py"))
        return [path for path in every if not self.left_out & set(path.relative_to(library).parts)]

    def where(self, cache: Path) -> str:
        return sysconfig.get_paths()["stdlib"]

    def splits(self, cache: Path) -> Splits:
        return {"train": tuple(Source(path) for path in self.files() if _is_utf8(path))}


def _is_utf8(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return False


_ALL: tuple[Dataset, ...] = (PythonDocs(), PythonSource(), *map(Synthetic, LANGUAGES.values()), *PUBLIC)
DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue."""

    name: str
    idea: str
    bytes: int
    where: str


def catalogue(cache: Path | None = None) -> tuple[Entry, ...]:
    folder = cache_folder(cache)
    return tuple(Entry(name, made.idea, made.bytes, made.where(folder)) for name, made in DATASETS.items())


def get(name: str, cache: Path | None = None) -> Splits:
    """The files of a corpus by split, downloaded or made if need be."""
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS) or f" Known: {', '.join(DATASETS)}."
        raise UserError(f"unknown corpus {name}.{hint}")
    return DATASETS[name].splits(cache_folder(cache))


def get_text(name: str, cache: Path | None = None) -> Splits:
    """The same, of a corpus that is plain text."""
    if name in DATASETS and not DATASETS[name].plain:
        raise UserError(f"{name} is not plain text: {DATASETS[name].idea}. Name one of its files, or another corpus.")
    return get(name, cache)
