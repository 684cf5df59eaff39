"""Examples by split, from files and names of known corpora: train, validation, test; and the names of their labels.

The validation split is given, or a random share is held out. An example is never cut in two. Those that stand in two
splits are counted and reported, since a model may have memorised them.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.files import cache_folder
from chainrule.model import IGNORE
from chainrule.recipe import Text
from chainrule.text.datasets import DATASETS, Splits, get
from chainrule.text.sources import Source, decoded, find_sources, path_of, read_text, whole_lines
from chainrule.text.tables import Place

# Labels: the names of classes or tags that training saw, and the ids that stand for them.

Names: TypeAlias = tuple[str, ...]

SHOWN = 8        # names in a message
DIGITS = 19      # labels that are longer are words


def label_names(labels: Iterable[str | None], what: str) -> Names:
    """The labels in order, numbers by their value; `what`: what they are, in the plural."""
    names = sort_names(labels)
    if len(names) < 2:
        raise UserError(f"two {what} or more are wanted to learn from; here is {', '.join(names) or 'none'}.")
    return names


def sort_names(labels: Iterable[str | None]) -> Names:
    names = {label for label in labels if label is not None}
    if all(name.removeprefix("-").isdecimal() and len(name) < DIGITS for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def label_ids(labels: Sequence[str | None], names: Names, places: Sequence[Place], what: str) -> NDArray[np.int64]:
    """The id of each label; IGNORE where it is not known."""
    ids = {None: IGNORE} | {name: number for number, name in enumerate(names)}
    try:
        return np.array([ids[label] for label in labels], np.int64)
    except KeyError as error:
        strange = error.args[0]
        some = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        raise UserError(f"{places[labels.index(strange)]} has the {what} {strange!r}, which training never saw. "
                        f"It saw {some}.") from None


SPOKEN = {"valid": "validation", "test": "test"}
BLOCK = 1 << 16       # characters


class Example(Protocol):
    """An input, and its answer where it is known: a plain value."""

    @property
    def place(self) -> Place:
        """Where it was read."""

    @property
    def about(self) -> object:
        """The input: equal for examples that ask the same."""

    @property
    def written(self) -> tuple[str, ...]:
        """All texts in it, from which a tokenizer is learned."""


E = TypeVar("E", bound=Example)
Read: TypeAlias = Callable[[Sequence[Source], Any], Iterable[E]]


@dataclass(frozen=True)
class Gathered(Generic[E]):
    splits: Mapping[str, tuple[E, ...]]          # train, and maybe valid and test
    notes: tuple[str, ...]                       # what was chosen on the user's behalf


def gather_examples(
    read: Read[E],
    train: Sequence[str],
    settings: Text,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    seed: int = 1,
    cache: Path | None = None,
) -> Gathered[E]:
    """Examples by split. A known corpus brings its validation examples along."""
    found = files_of(train, cache)
    files = {"train": found["train"], **({"valid": found["valid"]} if "valid" in found else {})}
    for split, words in {"valid": valid, "test": test}.items():
        if words:
            given = files_of(words, cache)
            files[split] = given.get(split, given["train"])
    splits = {split: tuple(read(sources, settings)) for split, sources in files.items()}
    notes = [f"{SPOKEN[split]}: {_name(files[split])}" for split in SPOKEN if split in splits]
    if "valid" not in splits:
        splits["train"], held, note = draw_validation(splits["train"], settings.held_out, seed)
        splits |= {"valid": held} if held else {}
        notes.append(note)
    return Gathered(splits, (*notes, *_in_two_splits(splits)))


def first_of(examples: Iterable[E], sources: Sequence[Source]) -> E:
    """The first example, by which a recipe is completed."""
    for example in examples:
        return example
    raise UserError(f"{_name(sources)} has no examples to learn from: there are no rows after the first line.")


def held_out_examples(
    read: Read[E], words: Sequence[str], settings: Text, cache: Path | None = None
) -> tuple[E, ...]:
    """Examples to evaluate on. A known corpus stands for its test split, else its validation split."""
    found = files_of(words, cache)
    split = next(split for split in ("test", "valid", "train") if split in found)
    return tuple(read(found[split], settings))


def draw_validation(examples: tuple[E, ...], share: float, seed: int) -> tuple[tuple[E, ...], tuple[E, ...], str]:
    """Training examples and validation examples, each in the order of the file, and how they were chosen."""
    if not 0 <= share < 1:
        raise UserError(f"text.held_out={share} is not a share: it is at least 0 and less than 1.")
    count = round(share * len(examples))
    if share == 0:
        return examples, (), "validation: none, since text.held_out=0"
    if not 0 < count < len(examples):
        return examples, (), f"validation: none, since {len(examples)} examples are too few to hold out a part"
    held = np.zeros(len(examples), bool)
    held[np.random.default_rng(seed).permutation(len(examples))[:count]] = True
    if (kept := _keep_every_label(examples, held)) == count:
        return examples, (), "validation: none, since no example that was drawn shares its label with another"
    note = f"validation: {count - kept:,} of {len(examples):,} examples, drawn by seed {seed}"
    if kept:
        note += f"; to train on all the same, since no other has its label: {kept:,}"
    train, valid = (tuple(example for example, here in zip(examples, where) if here) for where in (~held, held))
    return train, valid, note


def _keep_every_label(examples: Sequence[Example], held: NDArray[np.bool_]) -> int:
    """Gives back those held out that alone have a class or tag, which could not be learned without them."""
    labels: list[tuple[str, ...]] = [getattr(example, "tags", ()) for example in examples]
    known = {label for place in np.flatnonzero(~held) for label in labels[place]}
    kept = 0
    for place in np.flatnonzero(held):
        if not known.issuperset(labels[place]):
            known.update(labels[place])
            held[place] = False
            kept += 1
    return kept


def written(examples: Iterable[Example]) -> Iterator[str]:
    """All texts of the examples, each on a line of its own, in blocks: what a tokenizer is learned from."""
    lines, size = [], 0
    for text in (text for example in examples for text in example.written):
        lines.append(text + "\n")
        size += len(text) + 1
        if size >= BLOCK:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


def lines_of(file: str, errors: str = "strict") -> Iterator[str]:
    """The lines of a file, compressed or not; `-`: of standard input."""
    if file == "-":
        return whole_lines(decoded(sys.stdin.buffer, Path("stdin"), errors))
    if not (path := path_of(file)).exists():
        hint = f" A text comes by standard input, echo '{file}' | chainrule predict RUN; in Python, in a list."
        raise UserError(f"there is no file {file}.{hint if ' ' in file else ''}")
    return whole_lines(read_text(Source(path), errors))


def files_of(words: Sequence[str], cache: Path | None = None) -> Splits:
    """Files by split: a path's are `train`; a known corpus has its own; `name:split` is one of them."""
    found: dict[str, tuple[Source, ...]] = {}
    cache = cache_folder(cache)
    for word in words:
        name, _, split = word.partition(":")
        if name not in DATASETS or Path(word).exists():
            here: Splits = {"train": tuple(find_sources(word, cache / "stdin", known=DATASETS))}
        else:
            here = get(name, cache)
            if split and split not in here:
                raise UserError(f"{name} has no split {split}. It has {', '.join(here)}.")
            if not split and "train" not in here:
                raise UserError(f"{name} cannot be trained on: {DATASETS[name].idea}. Name another corpus, or a file.")
            here = {"train": here[split]} if split else here
        for which, sources in here.items():
            found[which] = found.get(which, ()) + sources
    return found


def _name(sources: Sequence[Source]) -> str:
    return " and ".join(str(source.path) for source in sources[:2]) + (" and more" if len(sources) > 2 else "")


def _in_two_splits(splits: Mapping[str, tuple[Example, ...]]) -> list[str]:
    known = {example.about for example in splits["train"]}
    twice = {split: sum(example.about in known for example in splits[split]) for split in SPOKEN if split in splits}
    return [f"{count:,} of {len(splits[split]):,} {SPOKEN[split]} examples are also among those to train on"
            for split, count in twice.items() if count]
