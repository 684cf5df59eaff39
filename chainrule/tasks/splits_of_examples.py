"""From words of a command to examples by split: given files, else a share held out by chance. Always said.

Examples are whole: none is cut between what is trained on and what is held out. Those that stand on both sides are
counted and said, since a model may know them by heart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.tasks.caption import read_captioned
from chainrule.tasks.classify import read_labelled
from chainrule.tasks.examples import Example, Labelled, Tagged, Translated
from chainrule.tasks.tag import read_tagged
from chainrule.tasks.translate import read_sources, read_translated
from chainrule.text.datasets import DATASETS, Splits, cache_folder, get
from chainrule.text.sources import Source, find_sources
from chainrule.text.tables import Place

SPOKEN = {"valid": "validation", "test": "test"}


@dataclass(frozen=True)
class Gathered:
    splits: Mapping[str, tuple[Example, ...]]    # train, and maybe valid and test
    notes: tuple[str, ...]                       # what was chosen on the user's behalf


def gather_examples(
    task: str,
    train: Sequence[str],
    settings: Text,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    seed: int = 1,
    cache: Path | None = None,
) -> Gathered:
    """Examples by split, from paths and names of known corpora. A known corpus brings its validation examples along."""
    folder = cache_folder(cache)
    found = _files(train, folder)
    files = {"train": found["train"], **({"valid": found["valid"]} if "valid" in found else {})}
    for split, words in {"valid": valid, "test": test}.items():
        if words:
            given = _files(words, folder)
            files[split] = given.get(split, given["train"])
    splits = {split: read_examples(task, sources, settings) for split, sources in files.items()}
    notes = [f"{SPOKEN[split]}: {_name(files[split])}" for split in SPOKEN if split in splits]
    if "valid" not in splits:
        splits["train"], held, note = hold_out(splits["train"], settings.held_out, seed)
        splits |= {"valid": held} if held else {}
        notes.append(note)
    return Gathered(splits, (*notes, *_seen_twice(splits)))


def held_out_examples(
    task: str, words: Sequence[str], settings: Text, cache: Path | None = None
) -> tuple[Example, ...]:
    """Examples to evaluate on. A known corpus stands for its test split, else its validation split."""
    found = _files(words, cache_folder(cache))
    split = next(split for split in ("test", "valid", "train") if split in found)
    return read_examples(task, found[split], settings)


def read_examples(task: str, sources: Sequence[Source], settings: Any) -> tuple[Example, ...]:
    """The examples of some files, in order. `settings` are those of the task (chainrule.recipe.TEXT)."""
    if task == "classify":
        return tuple(example for source in sources for example in read_labelled(source, settings))
    if task == "tag":
        return tuple(example for source in sources for example in read_tagged(source, settings))
    return tuple((read_captioned if task == "caption" else read_translated)(sources, settings))


def rows_to_answer(task: str, source: Source, settings: Any) -> tuple[Example, ...]:
    """The rows of a table to classify or to translate, without their answers, which may be missing or wrong."""
    if task == "classify":
        return tuple(read_labelled(source, settings, labels=False))
    return tuple(read_sources(source, settings))


def plain_examples(task: str, lines: Iterable[str], name: str = "stdin") -> tuple[Example, ...]:
    """Lines without an answer, one example each: to classify (a tab between two texts), to tag or to translate."""
    made: list[Example] = []
    for number, line in enumerate(lines, 1):
        place, text = Place(name, number), line.strip()
        if not text:
            raise UserError(f"{place} is empty; each line is one text.")
        if task == "classify":
            made.append(Labelled(tuple(part.strip() for part in text.split("\t")), None, place))
        elif task == "tag":
            made.append(Tagged(tuple(text.split()), (), place))
        else:
            made.append(Translated(text, (), place))
    return tuple(made)


def hold_out(
    examples: tuple[Example, ...], share: float, seed: int
) -> tuple[tuple[Example, ...], tuple[Example, ...], str]:
    """What to train on and what to validate on, each in the order of the file, and how they were chosen."""
    if not 0 <= share < 1:
        raise UserError(f"text.held_out={share} is not a share: it is at least 0 and less than 1.")
    count = round(share * len(examples))
    if share == 0:
        return examples, (), "validation: none, since text.held_out=0"
    if not 0 < count < len(examples):
        return examples, (), f"validation: none, since {len(examples)} examples are too few to hold out a part"
    held = np.zeros(len(examples), bool)
    held[np.random.default_rng(seed).permutation(len(examples))[:count]] = True
    note = f"validation: {count:,} of {len(examples):,} examples, drawn by seed {seed}"
    train, valid = (tuple(example for example, here in zip(examples, where) if here) for where in (~held, held))
    return train, valid, note


def _files(words: Sequence[str], cache: Path) -> Splits:
    """Files by split: a path's are `train`; a known corpus has its own; `name:split` is one of them."""
    found: dict[str, tuple[Source, ...]] = {}
    for word in words:
        name, _, split = word.partition(":")
        if name not in DATASETS or Path(word).exists():
            here: Splits = {"train": tuple(find_sources(word, cache / "stdin", known=DATASETS))}
        else:
            here = get(name, cache)
            if split and split not in here:
                raise UserError(f"{name} has no split {split}. It has {', '.join(here)}.")
            here = {"train": here[split]} if split else here
        for which, sources in here.items():
            found[which] = found.get(which, ()) + sources
    return found


def _name(sources: Sequence[Source]) -> str:
    return " and ".join(str(source.path) for source in sources[:2]) + (" and more" if len(sources) > 2 else "")


def _seen_twice(splits: Mapping[str, tuple[Example, ...]]) -> list[str]:
    known = {example.about for example in splits["train"]}
    twice = {split: sum(example.about in known for example in splits[split]) for split in SPOKEN if split in splits}
    return [f"{count:,} of {len(splits[split]):,} {SPOKEN[split]} examples are also among those to train on"
            for split, count in twice.items() if count]
