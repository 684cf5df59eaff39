"""Translation and summaries: a text from another text (`--task translate`).

    source x1 … xm 0,  text 0 y1 … yn  ->  y1 … yn 0

An encoder–decoder reads the source and then writes; a decoder (`gpt`) reads both in one row. Examples are two columns
of a table, or two files line by line: those that differ only in their suffix (train.en train.de), or two, source first.

Shapes: B rows, T tokens, S source tokens or vectors, F numbers in a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import torch

from chainrule.errors import UserError, out_of_memory
from chainrule.inference.beam import ScoredText
from chainrule.inference.evaluate import DIVERGED
from chainrule.inference.metrics import measure_overlap
from chainrule.model import BOUNDARY, Batch, LanguageModel
from chainrule.models.mixture import Mixture
from chainrule.progress import bar, say
from chainrule.recipe import Recipe, Text
from chainrule.tasks.batching import (
    Buckets,
    Ids,
    Ragged,
    TargetTexts,
    concatenate_rows,
    constant_rows,
    encode_texts,
    to_tensor,
    truncate_texts,
)
from chainrule.tasks.example_task import ExampleSplit, ExampleTask, ensemble_weights
from chainrule.tasks.examples import Example
from chainrule.tasks.task import Prediction, Search, Trained, Truncate
from chainrule.text.sources import Source
from chainrule.text.tables import (
    TEXT_COLUMNS,
    Place,
    Table,
    format_of,
    numbered_lines,
    read_table,
    text_in,
    unpacked_name,
)
from chainrule.text.tokenizers.tokenizer import Tokenizer

ROWS = 64              # sources for which texts are written at a time,
OUTPUTS = 1024         # and texts, at most, unless one source has more


@dataclass(frozen=True)
class TranslateText(Text):
    """`text.*` where a text becomes another: translations, summaries."""

    header: bool = True             # the first line of TSV or CSV names the columns; false: they are named 1, 2, …
    source: str | None = None       # column, or suffix of the file, of the source; None: by its name, or the first
    target: str | None = None       # column, or suffix of the file, of the target; None: by its name, or the second
    truncate: Truncate = "false"    # texts longer than the model's context: refuse, keep the beginning, or both ends


class Decoder(Protocol):
    """A tokenizer, or another way from tokens to a text."""

    def decode(self, tokens: Sequence[int]) -> str: ...


class WithTargets(Example, Protocol):
    @property
    def targets(self) -> tuple[str, ...]:
        """The first to learn from, all to be measured by; empty: not known."""


W = TypeVar("W", bound=WithTargets)


@dataclass(frozen=True, slots=True)
class Translated:
    """A text, and the text it should become."""

    source: str
    targets: tuple[str, ...]
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.source

    @property
    def written(self) -> tuple[str, ...]:
        return (self.source, *self.targets)


class WritingTask(ExampleTask[W], Generic[W]):
    """A task whose answer is a text, found by beam search or minimum Bayes risk."""

    averages = "tokens"

    def measure_split(self, run: Trained, split: ExampleSplit, search: Search) -> dict[str, Any]:
        return self.measure_texts(*self.texts_and_references(run, split, search), search)

    def texts_and_references(
        self, run: Trained, split: ExampleSplit, search: Search
    ) -> tuple[list[str], list[list[str]]]:
        predicted = [texts[0][0] for texts in best_texts(run, split.encoded, search)]
        return predicted, [list(example.targets) for example in split.examples]

    def measure_texts(
        self, texts: Sequence[str], references: Sequence[Sequence[str]], search: Search
    ) -> dict[str, Any]:
        return measure_overlap(texts, references).as_dict() | search.as_dict()

    def answers(self, run: Trained, encoded: "Sequences", search: Search) -> list[Prediction]:
        return [{"answer": text, "score": score} for (text, score), *_ in best_texts(run, encoded, search)]


class Translate(WritingTask[Translated]):
    name, source = "translate", "text"
    text = TranslateText
    readable = ("errors", "header", "source", "target")

    def read(self, sources: Sequence[Source], text: TranslateText) -> Iterable[Translated]:
        return read_translated(sources, text)

    def read_rows(self, source: Source, text: TranslateText) -> Iterable[Translated]:
        return read_sources(source, text)

    def line(self, text: str, place: Place) -> Translated:
        return Translated(text, (), place)

    def encode(
        self, examples: Sequence[Translated], recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...]
    ) -> "Sequences":
        limit = getattr(recipe.model, "context", None)
        if limit is not None and not self.model_class(recipe.kind).needs_source:
            limit //= 2                             # source and text share a row, half of the context for each
        truncate = cast(TranslateText, recipe.text).truncate
        return encode_translated(examples, tokenizer, limit, truncate, source_limit=limit)


@dataclass(frozen=True)
class Sequences(TargetTexts):
    """Encoded sources and targets."""

    source: Ragged                                   # (N,) tokens, or (N, F) vectors
    targets: Ragged                                  # tokens without boundaries
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def sizes(self) -> tuple[Ids, ...]:
        return self.targets.lengths + 1, self.source.lengths

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        return Batch(
            *self.teacher_forced(rows, widths[0]),
            source=to_tensor(self.source.padded(rows, widths[1], BOUNDARY)),
            source_lengths=to_tensor(self.source.lengths[rows]),
        )


def encode_translated(
    examples: Sequence[Translated],
    tokenizer: Tokenizer,
    limit: int | None,
    truncate: Truncate = "false",
    *,
    source_tokenizer: Tokenizer | None = None,
    source_limit: int | None = None,
) -> Sequences:
    """Texts that become other texts. The source has a tokenizer of its own if one is given."""
    source = encode_texts(source_tokenizer or tokenizer, (example.source for example in examples))
    places = [example.place for example in examples]
    cut, notes = truncate_texts([source], source_limit, 1, truncate, places)
    ended = concatenate_rows([cut[0], constant_rows(BOUNDARY, len(examples))])
    targets, more = encode_targets(examples, tokenizer, limit, truncate)
    return Sequences(ended, targets, notes + more)


def encode_targets(
    examples: Sequence[WithTargets], tokenizer: Tokenizer, limit: int | None, truncate: Truncate
) -> tuple[Ragged, tuple[str, ...]]:
    """The first target of each example; empty where it is not known."""
    texts = encode_texts(tokenizer, ("".join(example.targets[:1]) for example in examples))
    places = [example.place for example in examples]
    fitting, notes = truncate_texts([texts], limit, 1, truncate, places)
    return fitting[0], notes


def best_texts(
    run: Trained, encoded: Sequences, search: Search, decoder: Decoder | None = None
) -> list[list[ScoredText]]:
    """The texts for each source, the best first; where numbers are finite there is at least one.

    The runs of an ensemble write together, by the mean of their next-token probabilities.
    """
    each = [run.model, *(one.model for one in run.others)]
    model = Mixture(each, ensemble_weights(run)) if run.others else run.model
    found = write_texts(model, encoded, decoder or run.tokenizer, search)
    if not all(found):
        raise UserError(f"{DIVERGED}.")
    return found


def write_texts(
    model: LanguageModel, encoded: Sequences, tokenizer: Decoder, search: Search
) -> list[list[ScoredText]]:
    """For each source the texts that the search finds, best first, with their scores."""
    found: dict[int, list[ScoredText]] = {}
    order = Buckets(encoded, seed=0, tokens=1 << 30, rows=ROWS)
    at_once = max(1, min(ROWS, OUTPUTS // search.rows))
    with bar("writing", len(encoded), "texts") as advance:
        for ids, batch in order.every():
            texts, at_once = _write_batch(model, batch, ids.tolist(), tokenizer, search, at_once)
            found |= zip(ids.tolist(), texts, strict=True)
            advance(len(ids))
    return [found[number] for number in range(len(encoded))]


def _write_batch(
    model: LanguageModel, batch: Batch, ids: Sequence[int], tokenizer: Decoder, search: Search, at_once: int
) -> tuple[list[list[ScoredText]], int]:
    """The texts for all rows, so many at a time, and how many that was in the end: fewer where memory ran out."""
    texts: list[list[ScoredText]] = []
    while len(texts) < len(batch.tokens):
        here = slice(len(texts), len(texts) + at_once)
        try:
            texts += search.texts(model, batch.rows(here), ids[here], tokenizer.decode)
        except Exception as error:
            if at_once == 1 or not out_of_memory(error):
                raise
            at_once //= 2
        else:
            continue
        torch.cuda.empty_cache()                            # when the error no longer holds what was being made
        say(f"out of memory: from here on {at_once} texts at a time.")
    return texts, at_once


# Reading pairs of files, and tables

PAIRS = (
    ("source", "target"), ("src", "tgt"), ("input", "output"), ("document", "summary"), ("article", "highlights"),
    ("article", "summary"), ("text", "summary"), ("dialogue", "summary"), ("body", "subject"), ("text", "headline"),
)
CHOOSE = "text.source=NAME text.target=NAME"


def read_translated(sources: Sequence[Source], settings: TranslateText) -> Iterator[Translated]:
    tables = [source for source in sources if format_of(source.path)]
    plain = [source for source in sources if not format_of(source.path)]
    if len(plain) == 1 and is_table(plain[0], settings.errors):
        tables, plain = [*tables, *plain], []
    for table in tables:
        yield from _rows(read_table(table, settings.errors, settings.header), settings)
    for source, target in _pairs(plain, settings):
        yield from _lines(source, target, settings.errors)


def read_sources(source: Source, settings: TranslateText) -> Iterator[Translated]:
    """The rows of a table, of which only the source is read."""
    table = read_table(source, settings.errors, settings.header)
    column = _source_column(table, settings)
    for line, row in table.rows:
        place = table.place(line)
        yield Translated(text_in(row[column], place, "the source"), (), place)


def _source_column(table: Table, settings: TranslateText) -> int:
    """The one that is left beside the target, or known by its name; else as where there are answers."""
    if settings.source is not None:
        return table.column(settings.source, "text.source")
    known = (*TEXT_COLUMNS, *(name for name, _ in PAIRS))
    if len(table.columns) == 1 and _has_header(table, settings) and not table.known(known):
        raise UserError(f"{table.path} has one column, whose first line is {table.columns[0]!r:.60}: if that is a text "
                        "and no header, give text.header=false; else name it by text.source.")
    left = [at for at, name in enumerate(table.columns) if settings.target not in (name, str(at + 1))]
    named = [at for at in table.known([source for source, _ in PAIRS]) if at in left]
    only = next((found for found in (left, named) if len(found) == 1), None)
    return only[0] if only else pair_columns(table, settings)[0]


def is_table(source: Source, errors: str) -> bool:
    """Does its first line look like a row, where the suffix does not say?"""
    first = next((line for _, line in numbered_lines(source, errors)), "")
    return "\t" in first or first.startswith("{")


def _rows(table: Table, settings: TranslateText) -> Iterator[Translated]:
    source, target = pair_columns(table, settings)
    for line, row in table.rows:
        place = table.place(line)
        yield Translated(text_in(row[source], place, "the source"), _targets(row[target], place), place)


def _targets(value: Any, place: Place) -> tuple[str, ...]:
    """One text, or a list of those that are equally right."""
    several = value if isinstance(value, list) and value else [value]
    return tuple(text_in(text, place, "the target") for text in several)


def pair_columns(table: Table, settings: TranslateText) -> tuple[int, int]:
    if settings.source is not None and settings.target is not None:
        return table.column(settings.source, "text.source"), table.column(settings.target, "text.target")
    known = [found for names in PAIRS if len(found := [at for name in names for at in table.known([name])]) == 2]
    if settings.source is None and settings.target is None and known:
        return known[0][0], known[0][1]
    if len(table.columns) == 2:
        if settings.target is not None:
            target = table.column(settings.target, "text.target")
            return 1 - target, target
        if settings.source is None and _has_header(table, settings) and any(" " in name for name in table.columns):
            raise UserError(f"{table.path} has {table.shown}: if that is a pair and no header, give text.header=false; "
                            f"else choose: {CHOOSE}.")
        source = 0 if settings.source is None else table.column(settings.source, "text.source")
        return source, 1 - source
    raise UserError(f"{table.path} has {table.shown}; which is the source, and which the target? Choose: {CHOOSE}.")


def _has_header(table: Table, settings: TranslateText) -> bool:
    """Whether the first line is taken for names."""
    return settings.header and format_of(table.path) != "jsonl"


def _pairs(files: Sequence[Source], settings: TranslateText) -> list[tuple[Source, Source]]:
    """Each source with its target."""
    groups: dict[Path, list[Source]] = {}
    for file in files:
        groups.setdefault(unpacked_name(file.path).with_suffix(""), []).append(file)
    suffixes = {tuple(sorted(map(_suffix, group))) for group in groups.values()}
    if len(files) == 2 and len(groups) == 2:
        return [(files[0], files[1])]
    if len(suffixes) > 1 or any(len(suffix) != 2 for suffix in suffixes):
        names = ", ".join(str(file.path) for file in files[:4])
        raise UserError(f"these files are no pairs: {names}. Name two, source and target, or pairs like a.en a.de.")
    return [_directed(group, files, settings) for group in groups.values()]


def _directed(pair: list[Source], files: Sequence[Source], settings: TranslateText) -> tuple[Source, Source]:
    """Source first: by the settings, else as in the first pair named."""
    suffixes = [_suffix(file) for file in pair]
    for given, setting, side in ((settings.source, "source", 0), (settings.target, "target", 1)):
        if given is not None:
            if given.lstrip(".") not in suffixes:
                raise UserError(f"text.{setting}={given} is the suffix of neither {pair[0].path} nor {pair[1].path}.")
            at = suffixes.index(given.lstrip("."))
            return (pair[at], pair[1 - at]) if side == 0 else (pair[1 - at], pair[at])
    first = suffixes.index(_suffix(files[0]))
    return pair[first], pair[1 - first]


def _suffix(source: Source) -> str:
    return unpacked_name(source.path).suffix.lstrip(".")


def _lines(source: Source, target: Source, errors: str) -> Iterator[Translated]:
    ours, theirs = numbered_lines(source, errors), numbered_lines(target, errors)
    for left, right in zip_longest(ours, theirs):
        if left is None or right is None:
            number = (left or right)[0]
            longer = number + sum(1 for _ in (theirs if left is None else ours))
            counts = (number - 1, longer) if left is None else (longer, number - 1)
            raise UserError(f"{source.path} has {counts[0]} lines and {target.path} has {counts[1]}; "
                            "parallel files have a line for each line.")
        place = Place(str(source.path), left[0])
        text = text_in(left[1], place, "the source")
        yield Translated(text, (text_in(right[1], Place(str(target.path), right[0]), "the target"),), place)
