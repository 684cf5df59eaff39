"""Tasks that learn from examples: ExampleTask, the part of the protocol that classify, tag and translate share.

A new one says how it reads files, what a line without an answer is, how examples become tokens, and how it answers.

Shapes: N examples, B rows, T tokens.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.inference.evaluate import count_parameters
from chainrule.inference.forward import device_of
from chainrule.model import Batch, CountingModel, Model
from chainrule.progress import bar
from chainrule.recipe import MOST_TARGETS, Counting, Gradient, Recipe
from chainrule.tasks.batching import Buckets, Ids
from chainrule.tasks.examples import E, Example, gather_examples, held_out_examples, lines_of, written
from chainrule.tasks.lm import STEPS
from chainrule.tasks.task import Prediction, Search, Task, Trained
from chainrule.text.arrays import is_array
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.corpus import Corpus, Split
from chainrule.text.sources import Source
from chainrule.text.tables import Place, format_of
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

TOKENS = {"cpu": 1 << 12, "cuda": 1 << 16}    # tokens of a batch in evaluation


class Encoded(Protocol):
    """Examples as tokens, from which any rows can be padded into a Batch."""

    def __len__(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was truncated, for people to read."""

    @property
    def sizes(self) -> tuple[Ids, ...]:
        """The length of each example: in tokens, and in those of its source."""

    @property
    def tokens(self) -> NDArray[Any]:
        """All tokens that are read; of texts that have a source, all that are written."""

    @property
    def target_count(self) -> int:
        """Targets of all examples."""

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        """Some examples, padded to the widths."""


@dataclass(frozen=True)
class ExampleSplit(Split):
    examples: tuple[Any, ...]
    encoded: Any


@dataclass(frozen=True)
class ExampleCorpus(Corpus):
    splits: Mapping[str, ExampleSplit]
    labels: tuple[str, ...] = ()    # names of classes or tags, which a run keeps


class ExampleTask(Task, Generic[E]):
    running_text = False
    examples = predicts = True
    special_tokens: ClassVar[tuple[str, ...]] = ()   # tokens that the task adds to the tokenizer
    use = "`chainrule predict {run}` and `chainrule eval {run}` use it"
    next_commands: ClassVar[Sequence[str]] = ("predict {run} TEXT", "eval {run} EXAMPLES")

    # What each task has to say

    def read(self, sources: Sequence[Source], text: Any) -> Iterable[E]:
        """The examples of some files, in order; `text`: the task's `text.*` settings."""
        raise NotImplementedError

    def line(self, text: str, place: Place) -> E:
        """An example without its answer, from a line."""
        raise NotImplementedError

    def read_rows(self, source: Source, text: Any) -> Iterable[E] | None:
        """Examples without their answers, from the rows of a table; None: it is read by lines."""
        return None

    def label_names(self, examples: Sequence[E]) -> tuple[str, ...]:
        """The names of classes or tags in the training examples, where the task has them."""
        return ()

    def encode(self, examples: Sequence[E], recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...]) -> Encoded:
        """Examples into tokens."""
        raise NotImplementedError

    def measure_split(self, run: Trained, split: ExampleSplit, search: Search) -> dict[str, Any]:
        """The metrics of a run on encoded examples."""
        raise NotImplementedError

    def answers(self, run: Trained, encoded: Any, search: Search) -> list[Prediction]:
        """The answer to each example."""
        raise NotImplementedError

    # What follows from it

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None,
    ) -> ExampleCorpus:
        gathered = gather_examples(self.read, texts, recipe.text, valid=valid, test=test, seed=recipe.train.seed)
        train = gathered.splits["train"]
        tokenizer = tokenizer or train_tokenizer(recipe.text, (piece + "\n" for piece in written(train)))
        tokenizer = tokenizer.with_special([name for name in self.special_tokens if tokenizer.id(name) is None])
        labels = self.label_names(train)
        splits = {name: self.split(examples, recipe, tokenizer, labels) for name, examples in gathered.splits.items()}
        notes = [f"{name}: {note}" for name, split in splits.items() for note in split.encoded.notes]
        return ExampleCorpus(splits, tokenizer, (*gathered.notes, *notes), labels)

    def split(
        self, examples: Sequence[E], recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...]
    ) -> ExampleSplit:
        refuse_none(examples)
        return example_split(examples, self.encode(examples, recipe, tokenizer, labels))

    def order(self, model: Model, corpus: Corpus, settings: Gradient) -> Buckets:
        if settings.batching == "streams" or settings.length is not None:
            raise UserError("train.batching=streams and train.length are for running text; an example has its own "
                            "beginning and end.")
        return self.buckets(cast(ExampleCorpus, corpus).splits["train"].encoded, settings)

    def buckets(self, encoded: Encoded, settings: Gradient) -> Buckets:
        """Batches of train.tokens tokens; where it is not given, small enough for some steps in an epoch."""
        sizes = np.max(encoded.sizes, axis=0)
        tokens = settings.tokens or max(int(sizes.max()), min(MOST_TARGETS, int(sizes.sum()) // STEPS))
        return Buckets(encoded, seed=settings.seed, tokens=tokens)

    def counting_batches(self, model: CountingModel, corpus: Corpus, settings: Counting) -> Iterator[Batch]:
        encoded = cast(ExampleCorpus, corpus).splits["train"].encoded
        return (batch for _, batch in Buckets(encoded, seed=settings.seed, tokens=settings.tokens).every())

    def validation(self, model: Model, corpus: Corpus) -> Buckets:
        return evaluation_buckets(model, cast(ExampleCorpus, corpus).splits["valid"].encoded)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        examples = held_out_examples(self.read, files, text)
        split = self.split(examples, run.recipe, run.tokenizer, run.labels)
        return measured_together(self.measure_split(run, split, search), run)

    def read_inputs(self, file: str, text: Any) -> Sequence[E]:
        """The rows of a table or an array, as in training; of any other file, lines."""
        if (format_of(Path(file)) or is_array(Source(Path(file)))) and Path(file).exists():
            rows = self.read_rows(Source(Path(file)), text)
            if rows is not None:
                return tuple(rows)
        if getattr(text, "input", None) == "frames":
            raise UserError(f"{'stdin' if file == '-' else file}: this model reads vectors. Give it a table of numbers "
                            "(.csv, .tsv, .jsonl) or an array (.npy).")
        return self.read_lines(lines_of(file, text.errors), file)

    def read_lines(self, lines: Iterable[str], name: str = "stdin") -> Sequence[E]:
        made = []
        for number, line in enumerate(lines, 1):
            place = Place(name, number)
            if not isinstance(line, str):
                raise UserError(f"{place} is no text but a {type(line).__name__}: {line!r:.60}.")
            if not line.strip():
                raise UserError(f"{place} is empty; each line is one text.")
            made.append(self.line(line.strip(), place))
        return tuple(made)

    def predict(self, run: Trained, examples: Sequence[E], search: Search) -> list[Prediction]:
        if not examples:
            raise UserError("there is no input: no line came.")
        return self.answers(run, self.encode(examples, run.recipe, run.tokenizer, run.labels), search)


def mean_probabilities(run: Trained, parts: Sequence[Iterable[NDArray[np.float64]]]) -> list[NDArray[np.float64]]:
    """Of each example, the mean over the runs of an ensemble; `parts`: what each of them says of all examples."""
    means = []
    for rows in zip(*parts, strict=True):
        if len({row.shape for row in rows}) > 1:
            raise UserError("one of these runs truncates a text that another reads to its end, so their answers cannot "
                            "be averaged.")
        means.append(np.average(rows, axis=0, weights=ensemble_weights(run)))
    return means


def ensemble_weights(run: Trained) -> list[float]:
    """Of the probabilities of a run and of the others in its ensemble."""
    return [1.0, *(other.weight for other in run.others)]


def measured_together(facts: dict[str, Any], run: Trained) -> dict[str, Any]:
    """The metrics of an ensemble say of how many runs it is; those of one run stay as they are."""
    if not run.others:
        return facts
    weights = ensemble_weights(run)
    said = f"|mean-of-runs:{len(weights)}"
    if set(weights) != {1.0}:
        said += f"|weights:{','.join(f'{weight:g}' for weight in weights)}"
    together = {**facts, "signature": facts["signature"] + said}
    if "parameters" in facts:
        together["parameters"] += sum(count_parameters(other.model) for other in run.others)
    return together


def refuse_none(examples: Sequence[Any]) -> None:
    if not examples:
        raise UserError("there are no examples here.")


def example_split(examples: Sequence[Any], encoded: Encoded) -> ExampleSplit:
    """Encoded examples, with their size and the sha256 of what they say."""
    texts = [text.encode() for text in written(examples)]
    numbers = [example.about for example in examples if isinstance(example.about, bytes)]
    digest = hashlib.sha256(b"\0".join([*texts, *numbers])).hexdigest()
    size = sum(map(len, texts if any(texts) else numbers))
    return ExampleSplit(encoded.tokens, size, len(examples), digest, tuple(examples), encoded)


def evaluation_buckets(model: Model, encoded: Encoded) -> Buckets:
    """Batches as large as is good on the model's device."""
    return Buckets(encoded, seed=0, tokens=TOKENS.get(device_of(model).type, TOKENS["cpu"]))


def evaluation_batches(model: Model, encoded: Encoded, title: str) -> Iterator[tuple[Ids, Batch]]:
    """All examples once: which they are, and they as a batch on the model's device."""
    device = device_of(model)
    with bar(title, len(encoded), "examples") as advance:
        for ids, batch in evaluation_buckets(model, encoded).every():
            yield ids, batch.to(device)
            advance(len(ids))


__all__ = ["Encoded", "Example", "ExampleCorpus", "ExampleSplit", "ExampleTask", "evaluation_batches"]
