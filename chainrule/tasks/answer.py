"""Question answering: the answer to a question about a text, written by a decoder (`--task answer`).

    source: question D context 0,  text: 0 answer  ->  answer 0           D: <|delimiter|>

Examples are rows of a table with the columns `question`, `context` and `answers`, of which the last may be a list
(JSON lines, also as SQuAD has it: {"text": […]}); the first is learned from, any is right. Where there is no answer in
the context, the list is empty, and so is the right answer. Metrics: exact match and F1 of words (inference/metrics.py).

Shapes: N examples.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from chainrule.errors import UserError
from chainrule.inference.metrics import measure_answers
from chainrule.model import BOUNDARY, Model
from chainrule.recipe import Recipe, Text
from chainrule.tasks.batching import concatenate_rows, constant_rows, encode_texts, special_id, truncate_texts
from chainrule.tasks.classify import DELIMITER
from chainrule.tasks.task import Search, Truncate
from chainrule.tasks.translate import Sequences, WritingTask, encode_targets
from chainrule.text.sources import Source
from chainrule.text.tables import Place, Table, read_table, text_in
from chainrule.text.tokenizers.tokenizer import Tokenizer

QUESTIONS, CONTEXTS = ("question", "query"), ("context", "passage", "paragraph", "document", "text", "story")
ANSWERS = ("answers", "answer", "answers.text", "target")
CHOOSE = "Name the columns `question`, `context` and `answers`, or choose: text.question=NAME text.context=NAME"


@dataclass(frozen=True)
class AnswerText(Text):
    """`text.*` where questions are answered."""

    header: bool = True             # the first line of TSV or CSV names the columns; false: they are named 1, 2, …
    question: str | None = None     # column of the question; None: found by its name
    context: str | None = None      # column of the text that the question is about; None: found by its name
    answers: str | None = None      # column of the answer, or of a list of right ones; None: found by its name
    truncate: Truncate = "false"    # contexts too long for the model: refuse, keep the beginning, or both ends


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a text, and its answers."""

    question: str
    context: str
    targets: tuple[str, ...]                      # the right answers; empty: not known, or there is none
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.question, self.context

    @property
    def written(self) -> tuple[str, ...]:
        return (self.question, self.context, *self.targets)


class Answer(WritingTask[Asked]):
    name, source = "answer", "text"
    text = AnswerText
    special_tokens = (DELIMITER,)
    readable = ("errors", "header", "question", "context", "answers")

    def suits(self, model_class: type[Model]) -> bool:
        """Whatever can translate can answer: a text is written from another."""
        return "translate" in model_class.tasks

    def read(self, sources: Sequence[Source], text: AnswerText) -> Iterable[Asked]:
        return (example for source in sources for example in read_asked(source, text))

    def read_rows(self, source: Source, text: AnswerText) -> Iterable[Asked]:
        return read_asked(source, text, answers=False)

    def line(self, text: str, place: Place) -> Asked:
        """A question and its context, with a tab between them."""
        question, tab, context = text.partition("\t")
        if not tab or not context.strip():
            raise UserError(f"{place} has no tab; a question and the text it is about have a tab between them.")
        return Asked(question.strip(), context.strip(), (), place)

    def encode(
        self, examples: Sequence[Asked], recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...]
    ) -> Sequences:
        limit, truncate = getattr(recipe.model, "context", None), cast(AnswerText, recipe.text).truncate
        if limit is not None and not self.model_class(recipe.kind).needs_source:
            limit -= limit // 4                     # question, context and answer share a row: a quarter for the answer
        questions = encode_texts(tokenizer, (example.question for example in examples))
        contexts = encode_texts(tokenizer, (example.context for example in examples))
        places = [example.place for example in examples]
        room = None if limit is None else limit - int(questions.lengths.max(initial=0))
        (cut,), notes = truncate_texts([contexts], room, 2, truncate, places)
        delimiter, end = (constant_rows(id, len(examples)) for id in (special_id(tokenizer, DELIMITER), BOUNDARY))
        source = concatenate_rows([questions, delimiter, cut, end])
        targets, more = encode_targets(examples, tokenizer, getattr(recipe.model, "context", None), truncate)
        return Sequences(source, targets, notes + more)

    def measure_texts(
        self, texts: Sequence[str], references: Sequence[Sequence[str]], search: Search
    ) -> dict[str, Any]:
        return measure_answers(texts, references) | search.as_dict()


def read_asked(source: Source, settings: AnswerText, answers: bool = True) -> Iterator[Asked]:
    """The rows of a table; without `answers`, their column is not read."""
    table = read_table(source, settings.errors, settings.header)
    question = _column(table, settings.question, "question", QUESTIONS)
    context = _column(table, settings.context, "context", CONTEXTS)
    answer = _column(table, settings.answers, "answers", ANSWERS) if answers else None
    for line, row in table.rows:
        place = table.place(line)
        right = () if answer is None else _answers(row[answer], place)
        yield Asked(text_in(row[question], place, "the question"), text_in(row[context], place, "the context"), right,
                    place)


def _column(table: Table, given: str | None, name: str, names: Sequence[str]) -> int:
    if given is not None:
        return table.column(given, f"text.{name}")
    found = [at for known in names for at in table.known([known])]
    if not found:
        raise UserError(f"{table.path} has {table.shown}, and none is known as the {name}. {CHOOSE}.")
    return found[0]


def _answers(value: Any, place: Place) -> tuple[str, ...]:
    """One, or a list, which is empty where the context has no answer."""
    several = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(text_in(text, place, "the answer") for text in several))
