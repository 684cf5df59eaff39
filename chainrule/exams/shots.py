"""Shots: the examples in a prompt, drawn by seed, balanced over the labels or plain, never the tested example itself.

A draw is an order of all training examples, and K shots are its first K: those of 4 shots are among those of 16. A
balanced order goes through the labels in rounds, in random order. Where the tested example is itself in the training
examples (the same input), the order is that without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from chainrule.errors import UserError
from chainrule.exams.prompts import Item
from chainrule.settings import make
from chainrule.tasks import find_task
from chainrule.tasks.classify import Labelled, label_column, text_columns
from chainrule.tasks.examples import files_of
from chainrule.tasks.translate import PAIRS, Translated, is_table, pair_columns
from chainrule.text.datasets import DATASETS, get
from chainrule.text.sources import Source
from chainrule.text.tables import format_of, read_table

TASKS = ("classify", "translate")


@dataclass(frozen=True)
class ItemSet:
    """Examples of a task, and the names of their columns."""

    task: str
    items: tuple[Item, ...]
    texts: tuple[str, ...]           # placeholders of a text: `text`, and the names of the columns
    labels: tuple[str, ...]          # placeholders of the label
    columns: tuple[str, ...]         # those of the texts and of the label, for the default template


def read_items(words: Sequence[str], settings: dict[str, str], task: str | None = None) -> ItemSet:
    """The examples to test: of a known corpus its test split, else its validation split."""
    found = files_of(words)
    split = next(split for split in ("test", "valid", "train") if split in found)
    return _read(found[split], settings, task)


def read_pool(
    given: Sequence[str], tested: Sequence[str], settings: dict[str, str], task: str | None = None
) -> ItemSet | None:
    """The examples that shots are drawn from: those given, or the training split of a known corpus that is tested.

    None: there are none; a file that is tested is drawn from only if it is given.
    """
    if given:
        return _read(files_of(given)["train"], settings, task)
    names = {word.partition(":")[0] for word in tested}
    if not names <= DATASETS.keys():
        return None
    sources = tuple(source for name in sorted(names) for source in get(name).get("train", ()))
    return _read(sources, settings, task) if sources else None


def _read(sources: Sequence[Source], settings: dict[str, str], task: str | None) -> ItemSet:
    name = task or guess_task(sources)
    if name not in TASKS:
        raise UserError(f"--task {name} has no prompts with examples: it is {' or '.join(TASKS)}.")
    found: Any = find_task(name)
    for setting, value in settings.items():
        part, _, field = setting.partition(".")
        if part != "text" or field not in found.readable:
            takes = ", ".join(f"text.{one}" for one in found.readable)
            raise UserError(f"{setting}={value} cannot be set here: for examples of {name} there are {takes}.")
    text = make(found.text, {setting.partition(".")[2]: value for setting, value in settings.items()}, "text")
    examples = tuple(found.read(sources, text))
    if not examples:
        raise UserError(f"{sources[0].path} has no examples.")
    if name == "translate":
        return _translations(examples, sources, text)
    return _classes(examples, sources, text)


def guess_task(sources: Sequence[Source]) -> str:
    """translate for two files, or a table with columns like source and target; else classify."""
    first = sources[0]
    if not format_of(first.path) and not is_table(first, "strict"):
        return "translate"
    table = read_table(first)
    return "translate" if any(len(table.known(names)) == 2 for names in PAIRS) else "classify"


def _classes(examples: Sequence[Labelled], sources: Sequence[Source], text: Any) -> ItemSet:
    table = read_table(sources[0], text.errors, text.header)
    columns = text_columns(table, text)
    names, label = [table.columns[at] for at in columns], table.columns[label_column(table, text, columns)]
    usual = ("text", "second")[: len(names)]
    items = tuple(
        Item(dict(zip((*usual, *names), example.texts * 2)), () if example.label is None else (example.label,),
             example.place)
        for example in examples
    )
    return ItemSet("classify", items, tuple(dict.fromkeys((*usual, *names))), ("label", label), (*names, label))


def _translations(examples: Sequence[Translated], sources: Sequence[Source], text: Any) -> ItemSet:
    source, target = "source", "target"
    if format_of(sources[0].path) or is_table(sources[0], text.errors):
        table = read_table(sources[0], text.errors, text.header)
        source, target = (table.columns[at] for at in pair_columns(table, text))
    names = tuple(dict.fromkeys(("text", "source", source)))
    items = tuple(Item(dict.fromkeys(names, example.source), example.targets, example.place) for example in examples)
    return ItemSet("translate", items, names, ("label", "target", target), (source, target))


@dataclass(frozen=True)
class Draw:
    """The order in which examples become shots."""

    pool: Sequence[Item]
    seed: int
    number: int                      # of the draw
    balanced: bool
    _drawn: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def shots(self, count: int, tested: Item | None = None) -> tuple[int, ...]:
        """The places of the first `count` examples, none of which has the input of the tested one."""
        if count not in self._drawn:
            self._drawn[count] = self._first(self._order, count)
        chosen = self._drawn[count]
        if tested is not None and any(self.pool[at].about == tested.about for at in chosen):
            chosen = self._first([at for at in self._order if self.pool[at].about != tested.about], count)
        return chosen

    def _first(self, order: Sequence[int], count: int) -> tuple[int, ...]:
        if count > len(order):
            raise UserError(f"--shots {count}: there are {len(order):,} examples to draw from. Ask for fewer, or name "
                            "more by --examples.")
        return tuple(self._rounds(order, count) if self.balanced else order[:count])

    def _rounds(self, order: Sequence[int], count: int) -> list[int]:
        """One example of each label in a round, in random order; a label whose examples are used up is left out."""
        queues: dict[str, list[int]] = {}
        for at in reversed(order):
            queues.setdefault(self.pool[at].answers[0], []).append(at)
        names, random, chosen = sorted(queues), np.random.default_rng([self.seed, self.number, 1]), list[int]()
        while len(chosen) < count:
            chosen += [queues[names[at]].pop() for at in random.permutation(len(names)) if queues[names[at]]]
        return chosen[:count]

    @cached_property
    def _order(self) -> list[int]:
        order: list[int] = np.random.default_rng([self.seed, self.number]).permutation(len(self.pool)).tolist()
        return order
