"""Datasets with a name: public corpora of datasets.toml, synthetic languages, LaTeX, and source code on this machine.

A public corpus is looked for in `$CHAINRULE_DATA/<folder>` first, then in the cache; else it is downloaded and
checked by its sha256. The others are made on this machine, without a download.
"""

import gzip
import hashlib
import os
import sys
import sysconfig
import tempfile
import tomllib
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, TypeAlias

import numpy

from chainrule.errors import UserError, did_you_mean
from chainrule.files import cache_folder, sha256, write_aside, write_text
from chainrule.progress import bar, say, track
from chainrule.text.generated import EXAMPLE_SETS, EXAMPLES_VERSION, ExampleSet
from chainrule.text.latex import LatexText
from chainrule.text.sources import OPENERS, Source
from chainrule.text.synthetic import LANGUAGES, Language

BLOCK = 1 << 20                                                             # bytes downloaded at a time
LANGUAGE_SIZES = {"train": 1_000_000, "valid": 100_000, "test": 100_000}    # characters
LANGUAGE_VERSION = 1                                                        # goes up when a language changes

Splits: TypeAlias = Mapping[str, tuple[Source, ...]]
"""The files, or parts of files, of the train split and, where there are any, of valid and test."""


class Dataset(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def idea(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def plain(self) -> bool:
        """Whether its files are running text; else they hold labels, tags, or two languages."""

    def where(self, cache: Path) -> str: ...

    def splits(self, cache: Path) -> Splits:
        """Its files, downloaded or made if necessary."""


@dataclass(frozen=True)
class PublicFile:
    name: str
    bytes: int                            # of the file and of its sha256: after decompression
    sha256: str
    split: str | Mapping[str, list[int]]  # of the whole file, or the range of bytes of each split
    address: str | None = None            # where it can be downloaded; .gz and .zip are unpacked

    def parts(self, path: Path) -> dict[str, Source]:
        if isinstance(self.split, str):
            return {self.split: Source(path)}
        return {split: Source(path, *bounds) for split, bounds in self.split.items()}


@dataclass(frozen=True)
class PublicDataset:
    """An entry of datasets.toml."""

    name: str
    idea: str
    folder: str                           # in $CHAINRULE_DATA
    files: tuple[PublicFile, ...]
    plain: bool = True

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def where(self, cache: Path) -> str:
        found = [self._find(file, cache) for file in self.files]
        if all(found):
            return str(next(path for path in found if path).parent)
        if all(file.address for file in self.files):
            return "download"
        return f"absent: put it in $CHAINRULE_DATA/{self.folder}"

    def splits(self, cache: Path) -> Splits:
        splits: dict[str, tuple[Source, ...]] = {}
        for file in self.files:
            path = self._find(file, cache) or self._download(file, cache)
            for split, source in file.parts(path).items():
                splits[split] = (*splits.get(split, ()), source)
        return splits

    def _find(self, file: PublicFile, cache: Path) -> Path | None:
        given = os.environ.get("CHAINRULE_DATA")
        folders = [Path(given).expanduser() / self.folder] if given else []
        for folder in (*folders, cache / "datasets" / self.folder):
            for suffix in ("", *OPENERS):
                if (path := folder / (file.name + suffix)).is_file():
                    ours = folder not in folders and not suffix
                    return path if not ours or _intact(path, file.sha256) else None
        return None

    def _download(self, file: PublicFile, cache: Path) -> Path:
        cure = f"Set CHAINRULE_DATA to a folder that holds {self.folder}/{file.name}"
        if file.address is None:
            raise UserError(f"{self.name} is not on this machine and has no public address. {cure}.")
        path = cache / "datasets" / self.folder / file.name
        try:
            with write_aside(path) as aside:
                digest = _fetch(file, aside)
                if digest != file.sha256:
                    raise UserError(
                        f"{file.address} is not the expected {file.name}: sha256 {digest[:12]}…, "
                        f"expected {file.sha256[:12]}…. {cure}."
                    )
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"{self.name} is not on this machine and could not be downloaded from {file.address} ({reason}). "
                f"Go online, or: {cure}."
            ) from error
        return path


def _fetch(file: PublicFile, path: Path) -> str:
    """Downloads and unpacks a file; returns the sha256 of the result."""
    digest = hashlib.sha256()
    with bar(f"downloading {file.name}", file.bytes, "B") as advance, _remote(file) as stream, path.open("wb") as out:
        while block := stream.read(BLOCK):
            digest.update(block)
            out.write(block)
            advance(len(block))
    return digest.hexdigest()


@contextmanager
def _remote(file: PublicFile) -> Iterator[IO[bytes] | gzip.GzipFile]:
    assert file.address is not None
    with urllib.request.urlopen(file.address, timeout=30) as answer:
        if file.address.endswith(".gz"):
            with gzip.open(answer) as unpacked:
                yield unpacked
        elif file.address.endswith(".zip"):
            with tempfile.TemporaryFile() as packed:
                while block := answer.read(BLOCK):
                    packed.write(block)
                with zipfile.ZipFile(packed) as archive, archive.open(file.name) as stream:
                    yield stream
        else:
            yield answer


def public_datasets() -> tuple[PublicDataset, ...]:
    """The entries of datasets.toml."""
    entries = tomllib.loads((files(__package__) / "datasets.toml").read_text(encoding="utf-8"))["datasets"]
    return tuple(_public_dataset(**entry) for entry in entries)


def _public_dataset(files: list[dict[str, Any]], **entry: Any) -> PublicDataset:
    return PublicDataset(**entry, files=tuple(PublicFile(**file) for file in files))


def make_once(paths: Sequence[Path], make: Callable[[], Iterable[bytes]]) -> None:
    """Writes files of the cache, unless they are there as they were written: each has its sha256 beside it."""
    seals = [path.with_name(f".{path.name}.sha256") for path in paths]
    made = all(path.exists() and seal.exists() for path, seal in zip(paths, seals))
    if made and all(_intact(path, seal.read_text(errors="replace").strip()) for path, seal in zip(paths, seals)):
        return
    for path, seal, content in zip(paths, seals, make(), strict=True):
        with write_aside(path) as aside:
            aside.write_bytes(content)
        write_text(seal, hashlib.sha256(content).hexdigest() + "\n")


def _encoded(text: Callable[..., str], *words: int) -> list[bytes]:
    return [text(*words).encode()]


def _intact(path: Path, expected: str) -> bool:
    if sha256(path) == expected:
        return True
    say(f"{path} is damaged: its sha256 differs. It is made again.")
    return False


@dataclass(frozen=True)
class SyntheticDataset:
    """Text of a language of known entropy."""

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
            make_once([path], partial(_encoded, self.language.text, size, seed))
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
            path = folder / f"{topic}.txt"
            if not path.exists() or path.read_bytes() != text.encode():
                write_text(path, text)
        return {"train": tuple(Source(folder / f"{topic}.txt") for topic in self.topics)}


class SourceFiles:
    """Files of source code on this machine, each a document."""

    plain: ClassVar[bool] = True

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files())

    def files(self) -> list[Path]:
        raise NotImplementedError

    def splits(self, cache: Path) -> Splits:
        return {"train": tuple(Source(path) for path in self.files() if _is_utf8(path))}


class PythonSource(SourceFiles):
    name: ClassVar[str] = "python-source"
    idea: ClassVar[str] = "the source of Python's standard library, each file a document"
    left_out: ClassVar[frozenset[str]] = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

    def files(self) -> list[Path]:
        library = Path(sysconfig.get_paths()["stdlib"])
        every = sorted(library.rglob("*.py"))
        return [path for path in every if not self.left_out & set(path.relative_to(library).parts)]

    def where(self, cache: Path) -> str:
        return sysconfig.get_paths()["stdlib"]


class CHeaders(SourceFiles):
    """numpy's headers are on every machine that runs this; Python's where it was built, or has its -dev package."""

    name: ClassVar[str] = "c-headers"
    idea: ClassVar[str] = "C: the header files of Python and numpy, each a document"

    def files(self) -> list[Path]:
        folders = (sysconfig.get_paths()["include"], numpy.get_include())
        return [path for folder in folders for path in sorted(Path(folder).rglob("*.h"))]

    def where(self, cache: Path) -> str:
        return str(numpy.get_include())


@dataclass(frozen=True)
class Latex:
    name: ClassVar[str] = "latex"
    idea: ClassVar[str] = "LaTeX of mathematics made by a grammar: theorems, proofs, equations, references"
    plain: ClassVar[bool] = True
    bytes: ClassVar[int] = sum(LANGUAGE_SIZES.values())

    def where(self, cache: Path) -> str:
        return "made here"

    def splits(self, cache: Path) -> Splits:
        made = {}
        for seed, (split, size) in enumerate(LANGUAGE_SIZES.items(), 1):
            path = cache / "datasets" / f"latex-{LANGUAGE_VERSION}" / f"{split}.tex"
            make_once([path], partial(_encoded, LatexText(seed).text, size))
            made[split] = (Source(path),)
        return made


def _is_utf8(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return False


@dataclass(frozen=True)
class GeneratedDataset:
    """Examples of a task, made by a rule (generated.py)."""

    rule: ExampleSet
    plain: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def idea(self) -> str:
        return self.rule.idea

    @property
    def bytes(self) -> int:
        return self.rule.total

    def where(self, cache: Path) -> str:
        return "made here"

    def splits(self, cache: Path) -> Splits:
        folder, made = cache / "datasets" / f"examples-{EXAMPLES_VERSION}", {}
        sizes = enumerate(self.rule.sizes.items(), 1)
        for seed, (split, size) in track(sizes, f"making {self.name}", len(self.rule.sizes), "splits"):
            paths = [folder / f"{self.name}.{split}.{suffix}" for suffix in self.rule.suffixes]
            make_once(paths, partial(self.rule.files, size, seed))
            made[split] = tuple(map(Source, paths))
        return made


_ALL: tuple[Dataset, ...] = (
    PythonDocs(), PythonSource(), CHeaders(), Latex(), *map(SyntheticDataset, LANGUAGES.values()),
    *map(GeneratedDataset, EXAMPLE_SETS.values()), *public_datasets(),
)
DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


@dataclass(frozen=True)
class CatalogueEntry:
    """A line of the catalogue."""

    name: str
    idea: str
    bytes: int
    where: str


def catalogue(cache: Path | None = None) -> tuple[CatalogueEntry, ...]:
    folder = cache_folder(cache)
    return tuple(CatalogueEntry(name, made.idea, made.bytes, made.where(folder)) for name, made in DATASETS.items())


def get(name: str, cache: Path | None = None) -> Splits:
    """The files of a dataset by split, downloaded or made if necessary."""
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS) or f" Known: {', '.join(DATASETS)}."
        raise UserError(f"unknown corpus {name}.{hint}")
    return DATASETS[name].splits(cache_folder(cache))


def get_text(name: str, cache: Path | None = None) -> Splits:
    """The same for a dataset of running text; any other is refused."""
    if name in DATASETS and not DATASETS[name].plain:
        raise UserError(f"{name} is not plain text: {DATASETS[name].idea}. Name one of its files, or another corpus.")
    return get(name, cache)
