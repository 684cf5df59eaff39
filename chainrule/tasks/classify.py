"""Texts with a class, from tables. Columns are found by their names, as people use them, or given by settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.settings import BelowOne, Fraction, NonNegative, Settings
from chainrule.tasks.examples import Labelled
from chainrule.tasks.task import Task, Truncate
from chainrule.text.sources import Source
from chainrule.text.tables import TEXT_COLUMNS, Table, read_table, text_in


@dataclass(frozen=True)
class ClassifyText(Text):
    """`text.*` where a row of a table has a text, or two, and a class."""

    header: bool = True             # the first line of TSV or CSV names the columns; false: they are named 1, 2, …
    column: str | None = None       # the column of the text; None: found by its name
    second: str | None = None       # the column of a second text; None: found by its name, unless text.column is given
    label: str | None = None        # the column of the class; None: found by its name
    truncate: Truncate = "false"    # texts longer than the model's context: refuse, keep the beginning, or both ends


@dataclass(frozen=True)
class ClassHead(Settings, part="head"):
    """`head.*` of a network that classifies."""

    pool: Literal["last", "first", "mean", "max"] | None = None  # which token vector represents a text; None: by kind
    dropout: BelowOne = 0.1             # dropout on that vector during training
    auxiliary: NonNegative = 0.0        # weight of the language-modelling loss added to that of the class (GPT, 2018)


@dataclass(frozen=True)
class GenerativeHead(Settings, part="head"):
    """`head.*` of a classifier that has a language model for each class."""

    length_normalisation: Fraction = 0.5  # divide log p by the text's length to this power; 0: Bayes' rule


class Classify(Task):
    name, running_text = "classify", False
    text = ClassifyText
    heads: ClassVar[Mapping[str, type[Settings]]] = {"gradient": ClassHead, "counting": GenerativeHead}


LABELS = ("label", "class", "category", "sentiment", "gold_label", "intent", "polarity", "topic", "target", "labels")
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("text_a", "text_b"), ("text1", "text2"),
    ("sentence_a", "sentence_b"), ("question1", "question2"), ("question", "sentence"), ("question", "answer"),
)
NUMBERS = ("index", "id", "idx", "guid", "pairid", "")    # columns that only say which row it is
CHOOSE = "text.column=NAME text.label=NAME (text.second=NAME for pairs)"
NO_HEADER = "If the first line is no header: text.header=false text.column=1 text.label=2"


def read_labelled(source: Source, settings: ClassifyText, labels: bool = True) -> Iterator[Labelled]:
    """The rows of a table; without `labels`, whatever stands where the class would is not looked at."""
    table = read_table(source, settings.errors, settings.header)
    texts = _text_columns(table, settings)
    label = _label_column(table, settings, texts) if labels else None
    for line, row in table.rows:
        place = table.place(line)
        parts = tuple(text_in(row[column], place, "the text") for column in texts)
        yield Labelled(parts, None if label is None else text_in(row[label], place, "the label"), place)


def _text_columns(table: Table, settings: ClassifyText) -> list[int]:
    if settings.column is not None:
        names = {"text.column": settings.column} | ({"text.second": settings.second} if settings.second else {})
        return [table.column(name, setting) for setting, name in names.items()]
    if settings.second is not None:
        raise UserError("text.second names the second text of a pair; name the first one too, by text.column.")
    for pair in PAIRS:
        if len(found := [place for name in pair for place in table.known([name])]) == 2:
            return found
    return [_only(table, table.known(TEXT_COLUMNS), _others(table, LABELS), "text", "column")]


def _label_column(table: Table, settings: ClassifyText, texts: list[int]) -> int:
    if settings.label is not None:
        return table.column(settings.label, "text.label")
    found = [place for place in table.known(LABELS) if place not in texts]
    rest = [place for place in _others(table, ()) if place not in texts]
    return _only(table, found, rest, "label", "label")


def _others(table: Table, names: tuple[str, ...]) -> list[int]:
    """Columns that have none of the names, nor only number the rows."""
    out = {*table.known(names), *table.known(NUMBERS)}
    return [place for place in range(len(table.columns)) if place not in out]


def _only(table: Table, found: list[int], rest: list[int], what: str, setting: str) -> int:
    """The one column found; or, where two columns are all there is and the other is known, the one that is left."""
    if len(found) == 1:
        return found[0]
    known = table.known((*TEXT_COLUMNS, *LABELS, *(name for pair in PAIRS for name in pair)))
    if not found and known and len(rest) == 1:
        return rest[0]
    if found:
        several = " and ".join(table.columns[place] for place in found)
        raise UserError(f"{table.path} has more than one column that could be the {what}: {several}. "
                        f"Choose by text.{setting}=NAME.")
    header = f" {NO_HEADER}." if not known else ""
    raise UserError(f"{table.path} has {table.shown}, and none is known as the {what}. Choose: {CHOOSE}.{header}")
