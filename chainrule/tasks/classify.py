"""Text classification: a class for a text, or for a pair of texts (`--task classify`).

    0 text E, or 0 text D text E  ->  a class           D: <|delimiter|>, E: <|extract|>

A network classifies by a head on its body; an n-gram or HMM by Bayes' rule, with a language model for each class; a
log-linear model by itself.
Examples are rows of a table, whose columns are found by the names that people use, or given by settings.

Shapes: N examples, B rows, T tokens, C classes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule import models
from chainrule.errors import UserError
from chainrule.inference.evaluate import count_parameters, why_no_answer
from chainrule.inference.forward import eval_mode
from chainrule.inference.metrics import measure_classes
from chainrule.model import BOUNDARY, IGNORE, Batch, Model
from chainrule.recipe import Recipe, Text
from chainrule.settings import BelowOne, Fraction, NonNegative, Settings, Size
from chainrule.tasks.batching import (
    Ids,
    Ragged,
    RowsWithTargets,
    concatenate_rows,
    constant_rows,
    encode_texts,
    special_id,
    to_tensor,
    truncate_texts,
)
from chainrule.tasks.example_task import (
    ExampleCorpus,
    ExampleSplit,
    ExampleTask,
    evaluation_batches,
    mean_probabilities,
)
from chainrule.tasks.examples import Names, label_ids, label_names
from chainrule.tasks.frames import EncodedFrames, Frames, complete_frames, encode_frames, read_frames
from chainrule.tasks.task import Input, Prediction, Search, Trained, Truncate
from chainrule.text.corpus import Corpus
from chainrule.text.sources import Source
from chainrule.text.tables import TEXT_COLUMNS, Place, Table, read_table, text_in
from chainrule.text.tokenizers.tokenizer import Tokenizer

DELIMITER, EXTRACT = "<|delimiter|>", "<|extract|>"
IMPOSSIBLE = "the model gives a text probability 0 in every class"
UNLIKELY = "the model gives the class of a text probability 0, so its surprise is infinite"


@dataclass(frozen=True)
class ClassifyText(Text):
    """`text.*` where a row of a table has a text, or two, and a class."""

    header: bool = True             # the first line of TSV or CSV names the columns; false: they are named 1, 2, …
    column: str | None = None       # the column of the text; None: found by its name
    second: str | None = None       # the column of a second text; None: found by its name, unless text.column is given
    label: str | None = None        # the column of the class; None: found by its name
    truncate: Truncate = "false"    # texts longer than the model's context: refuse, keep the beginning, or both ends
    input: Input | None = None      # words, or vectors (frames); none: what the files hold


@dataclass(frozen=True)
class ClassHead(Settings, part="head"):
    """`head.*` of a network that classifies."""

    pool: Literal["last", "first", "mean", "max"] | None = None  # which token vector represents a text; None: by kind
    hidden: Size | None = None          # hidden units of a feed-forward head (MLP); none: the head is linear
    dropout: BelowOne = 0.1             # dropout on that vector, or on the hidden units, during training
    bias: bool = True                   # the logits have a learned bias
    auxiliary: NonNegative = 0.0        # weight of the language-modelling loss added to that of the class (GPT, 2018)


@dataclass(frozen=True)
class GenerativeHead(Settings, part="head"):
    """`head.*` of a classifier that has a language model for each class."""

    length_normalisation: Fraction = 0.5  # divide log p by the text's length to this power; 0: Bayes' rule


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text, or two, and its class."""

    texts: tuple[str, ...]
    label: str | None                             # None: not known
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.texts

    @property
    def tags(self) -> tuple[str, ...]:
        return () if self.label is None else (self.label,)

    @property
    def written(self) -> tuple[str, ...]:
        return self.texts


class Classify(ExampleTask[Any]):
    name, target = "classify", "text"
    reads_frames, averages = True, "labels"
    text = ClassifyText
    heads: ClassVar[Mapping[str, type[Settings]]] = {"gradient": ClassHead, "counting": GenerativeHead}
    special_tokens = (DELIMITER, EXTRACT)
    readable = ("errors", "header", "column", "second", "label")

    def build(self, recipe: Recipe, vocab: int, labels: Sequence[str] = ()) -> Any:
        """A head on the last token of a network that reads one way, on the mean of one that reads both ways."""
        found: Any = models.model_class(recipe.kind)
        if found.classifies:
            return found(recipe.model, vocab, len(labels))
        head = recipe.head
        if found.learns_by == "counting":
            from chainrule.models.generative import GenerativeClassifier

            each = [models.build(recipe.kind, recipe.model, vocab) for _ in labels]
            return GenerativeClassifier(each, head.length_normalisation)
        from chainrule.models.heads import Classifier

        body = models.build(recipe.kind, recipe.model, vocab)
        pool: Any = head.pool or ("mean" if body.bidirectional else "last")
        return Classifier(body, len(labels), pool, head.dropout, auxiliary=head.auxiliary, hidden=head.hidden,
                          bias=head.bias)

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        return complete_frames(recipe, texts)

    def read(self, sources: Sequence[Source], text: ClassifyText) -> Iterable[Labelled | Frames]:
        if text.input == "frames":
            return read_frames(sources, text)
        return (example for source in sources for example in read_labelled(source, text))

    def read_rows(self, source: Source, text: ClassifyText) -> Iterable[Labelled | Frames]:
        if text.input == "frames":
            return read_frames([source], text, labels=False)
        return read_labelled(source, text, labels=False)

    def line(self, text: str, place: Place) -> Labelled:
        """A text, or two with a tab between them."""
        return Labelled(tuple(part.strip() for part in text.split("\t")), None, place)

    def label_names(self, examples: Sequence[Labelled | Frames]) -> Names:
        return label_names((example.label for example in examples), "classes")

    def encode(
        self, examples: Sequence[Any], recipe: Recipe, tokenizer: Tokenizer, labels: Names
    ) -> "Classes | EncodedFrames":
        if cast(ClassifyText, recipe.text).input == "frames":
            return encode_frames(examples, recipe, labels, each=False)
        limit = getattr(recipe.model, "context", None)
        return encode_labelled(examples, tokenizer, labels, limit, cast(ClassifyText, recipe.text).truncate)

    def measure_validation(self, model: Model, corpus: Corpus) -> dict[str, Any]:
        corpus = cast(ExampleCorpus, corpus)
        return measure_labels(model, corpus.splits["valid"], corpus.labels)

    def measure_split(self, run: Trained, split: ExampleSplit, search: Search) -> dict[str, Any]:
        return measure_labels(run.model, split, run.labels, self._probabilities(run, split.encoded))

    def answers(self, run: Trained, encoded: "Classes | EncodedFrames", search: Search) -> list[Prediction]:
        rows = self._probabilities(run, encoded)
        if not np.isfinite(rows).all():
            raise UserError(f"{why_no_answer(run.model, IMPOSSIBLE)}.")
        return [
            {"answer": run.labels[int(row.argmax())], "probabilities": dict(zip(run.labels, row.tolist()))}
            for row in rows
        ]

    def _probabilities(self, run: Trained, encoded: "Classes | EncodedFrames") -> NDArray[np.float64]:
        """(N, C); by several runs, of which each encodes the texts for itself."""
        parts = [class_probabilities(run.model, encoded)]
        for one in run.others:
            again = self.encode(cast(Classes, encoded).examples, one.recipe, one.tokenizer, one.labels)
            parts.append(class_probabilities(one.model, again))
        return np.stack(mean_probabilities(run, parts))


@dataclass(frozen=True)
class Classes(RowsWithTargets):
    """Encoded texts with their classes."""

    rows: Ragged
    targets: Ids                                     # a class for each; IGNORE: not known
    notes: tuple[str, ...] = ()
    examples: Sequence[Labelled] = ()                # as they came

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        tokens = to_tensor(self.rows.padded(rows, widths[0], BOUNDARY))
        return Batch(tokens, to_tensor(self.targets[rows]), to_tensor(self.rows.lengths[rows]))


def encode_labelled(
    examples: Sequence[Labelled], tokenizer: Tokenizer, classes: Names, limit: int | None, truncate: Truncate = "false"
) -> Classes:
    """Texts with their classes; `tokenizer` has DELIMITER and EXTRACT, and `classes` are the names of the classes."""
    parts = _texts_each(examples)
    texts = [encode_texts(tokenizer, (example.texts[part] for example in examples)) for part in range(parts)]
    places = [example.place for example in examples]
    texts, notes = truncate_texts(texts, limit, 1 + parts, truncate, places)
    begin, extract = (constant_rows(id, len(examples)) for id in (BOUNDARY, special_id(tokenizer, EXTRACT)))
    between = [constant_rows(special_id(tokenizer, DELIMITER), len(examples))] if parts == 2 else []
    rows = concatenate_rows([begin, texts[0], *between, *texts[1:], extract])
    targets = label_ids([example.label for example in examples], classes, places, "label")
    return Classes(rows, targets, notes, examples)


def _texts_each(examples: Sequence[Labelled]) -> int:
    """How many texts each example has, which is the same for all."""
    parts = len(examples[0].texts) if examples else 1
    for example in examples:
        if len(example.texts) != parts or parts > 2:
            raise UserError(f"{example.place} has {len(example.texts)} texts; every example has one, or every one two.")
    return parts


@torch.inference_mode()
def class_probabilities(model: Model, encoded: Classes | EncodedFrames) -> NDArray[np.float64]:
    """(N, C)"""
    rows: dict[int, Any] = {}
    with eval_mode(model):
        for ids, batch in evaluation_batches(model, encoded, "classifying"):
            probs = model(batch).double().softmax(-1).cpu().numpy()
            rows |= dict(zip(ids.tolist(), probs))
    return np.stack([rows[number] for number in range(len(encoded))])


def measure_labels(model: Model, split: ExampleSplit, labels: Sequence[str], probs: Any = None) -> dict[str, Any]:
    """Accuracy, F1 and the rest, and the mean cross-entropy of the classes in nats.

    `probs`: (N, C), where they are not the model's alone.
    """
    truth = split.encoded.targets
    known = truth != IGNORE
    probs = class_probabilities(model, split.encoded) if probs is None else probs
    probs, truth = probs[known], truth[known]
    answered = np.isfinite(probs).all(1)
    predicted = np.where(answered, probs.argmax(1), (truth + 1) % len(labels))    # no answer is a wrong one
    facts = {**measure_classes(truth, predicted, labels).as_dict(), "parameters": count_parameters(model)}
    with np.errstate(divide="ignore"):
        nats = float(-np.log(probs[np.arange(len(probs)), truth]).mean())
    if math.isfinite(nats):
        return facts | {"nats": nats}
    why = UNLIKELY if answered.all() else why_no_answer(model, f"{IMPOSSIBLE}, which counts as wrong")
    return facts | {"nats": None, "why": why}


# Reading tables

LABELS = ("label", "class", "category", "sentiment", "gold_label", "intent", "polarity", "topic", "target", "labels")
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("text_a", "text_b"), ("text1", "text2"),
    ("sentence_a", "sentence_b"), ("question1", "question2"), ("question", "sentence"), ("question", "answer"),
)
NUMBERS = ("index", "id", "idx", "guid", "pairid", "")    # columns that only say which row it is
CHOOSE = "text.column=NAME text.label=NAME (text.second=NAME for pairs)"
NO_HEADER = "If the first line is no header: text.header=false text.column=1 text.label=2"


def read_labelled(source: Source, settings: ClassifyText, labels: bool = True) -> Iterator[Labelled]:
    """The rows of a table; without `labels`, the column of the class is not read."""
    table = read_table(source, settings.errors, settings.header)
    texts = text_columns(table, settings)
    label = label_column(table, settings, texts) if labels else None
    for line, row in table.rows:
        place = table.place(line)
        parts = tuple(text_in(row[column], place, "the text") for column in texts)
        yield Labelled(parts, None if label is None else text_in(row[label], place, "the label"), place)


def text_columns(table: Table, settings: ClassifyText) -> list[int]:
    if settings.column is not None:
        names = {"text.column": settings.column} | ({"text.second": settings.second} if settings.second else {})
        return [table.column(name, setting) for setting, name in names.items()]
    if settings.second is not None:
        raise UserError("text.second names the second text of a pair; name the first one too, by text.column.")
    for pair in PAIRS:
        if len(found := [place for name in pair for place in table.known([name])]) == 2:
            return found
    return [_only(table, table.known(TEXT_COLUMNS), _others(table, LABELS), "text", "column")]


def label_column(table: Table, settings: ClassifyText, texts: list[int]) -> int:
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
