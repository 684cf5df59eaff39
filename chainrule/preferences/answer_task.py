"""Tasks that learn from answers to prompts: AnswerTask, the part that preference tuning and reward models share.

It reads records, writes chats by the template of the base run (or a plain one, which the new run keeps), encodes
prompts and answers, and gives batches of so many pairs.

Shapes: N examples, B rows.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.inference.statistics import bootstrap
from chainrule.model import Model
from chainrule.preferences.encoding import (
    EncodedPairs,
    EncodedRated,
    encode_answer,
    encode_prompt,
    fit_rows,
    refuse_dropped,
)
from chainrule.preferences.objective import without_dropout
from chainrule.preferences.records import Content, Pair, Rated, read_pairs, read_rated, refuse_two_formats
from chainrule.recipe import BUDGETS, Epochs, Gradient, Recipe, Text
from chainrule.settings import BelowOne, Count, Fraction, NonNegative, Size
from chainrule.tasks.batching import Buckets
from chainrule.tasks.example_task import ExampleCorpus, ExampleSplit, ExampleTask
from chainrule.tasks.examples import gather_examples, held_out_examples, written
from chainrule.tasks.task import Trained, Truncate
from chainrule.text.chat_template import PLAIN, ChatTemplate
from chainrule.text.corpus import Corpus
from chainrule.text.sources import Source
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

Schedule: TypeAlias = Literal["cosine", "linear", "wsd", "constant"]

EPOCHS = 3          # where no budget is given


@dataclass(frozen=True)
class PreferenceText(Text):
    """`text.*` of prompts with answers."""

    truncate: Truncate = "false"    # rows longer than the model's context: refuse; or cut the prompt, keeping its end
                                    # (true), or both of its ends
    end: bool = True                # an answer ends with the token that ends answers; false: answers were cut off at
                                    # a length; of some that were, a record says so (`rejected_ended`: false)


@dataclass(frozen=True)
class Tuning(Gradient):
    """`train.*` of a trained model that is tuned: from answers, or from rewards."""

    full_lr: ClassVar[float] = 1e-6     # where train.lr is left to us: of full weights, and of LoRA
    lora_lr: ClassVar[float] = 1e-4
    passes: ClassVar[int] = EPOCHS      # over the data, where no budget is given
    lr: NonNegative = 0.0               # peak learning rate; 0: 1e-6, and 1e-4 with LoRA
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)  # AdamW's decay rates of the first and second moment
    weight_decay: NonNegative | None = 0.0  # decoupled weight decay of matrices
    schedule: Schedule = "linear"       # learning-rate decay; wsd: only at the end
    final_lr: Fraction = 0.0            # learning rate at the end, as a fraction of the peak

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lr:
            object.__setattr__(self, "lr", self.full_lr if self.lora is None else self.lora_lr)
        if self.gradients:
            raise UserError("train.gradients follows the loss of the last token of a running text; leave it out here.")

    @property
    def budget(self) -> tuple[str, float]:
        given = any(getattr(self, name) is not None for name in BUDGETS)
        return super().budget if given else ("epochs", self.passes)


@dataclass(frozen=True)
class AnswerTraining(Tuning):
    """`train.*` of a model that learns from answers."""

    epochs: Epochs | None = None        # budget: passes over the records; 3 where no budget is given
    pairs: Size = 16                    # pairs, or rated answers, in a step, over all ranks and micro-batches
    tokens: Count | None = None         # tokens of a step at most: rows times the longest of them; none: no limit
    warmup: Fraction = 0.1              # fraction of training in which the learning rate rises linearly
    dropout: bool = False               # keep the model's dropout while it is tuned; false: there is none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batching == "streams" or self.length is not None:
            raise UserError("train.batching=streams and train.length are for running text; a record has its own "
                            "beginning and end.")
        if self.shard:
            raise UserError("train.shard=true: learning from answers needs the whole model on each rank. Leave it out; "
                            "train.lora needs less memory.")


@dataclass(frozen=True)
class AnswerCorpus(ExampleCorpus):
    recipe: Recipe | None = None
    chat_template: str | None = None    # that chats were written by; the run keeps it


E = TypeVar("E", Pair, Rated)
Encoded: TypeAlias = EncodedPairs | EncodedRated


def mean_score(name: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """The mean of values, with its 95 % interval."""
    return bootstrap(lambda weights: float((weights @ values) / weights.sum()), len(values)).as_dict(name)


class AnswerTask(ExampleTask[Any]):
    """A subclass says how records are read, and what of a model is measured."""

    text = PreferenceText
    own_training = True
    readable = ("errors", "end", "truncate")
    reads_end: ClassVar[bool] = False                # whether the end of an answer is read, not predicted

    def suits(self, model_class: type[Model]) -> bool:
        return False

    def reads_rated(self, recipe: Recipe) -> bool:
        """Whether it learns from rated answers, one by one."""
        return False

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        return recipe if recipe.train.dropout else without_dropout(recipe)

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None,
    ) -> AnswerCorpus:
        read = read_all_rated if self.reads_rated(recipe) else read_all_pairs
        gathered: Any = gather_examples(read, texts, recipe.text, valid=valid, test=test, seed=recipe.train.seed)
        every = [example for examples in gathered.splits.values() for example in examples]
        tokenizer = tokenizer or train_tokenizer(recipe.text, (piece + "\n" for piece in written(every)))
        template = (template or plain_template(tokenizer)) if refuse_two_formats(every) else None
        splits = {name: self.answer_split(examples, recipe, tokenizer, template)
                  for name, examples in gathered.splits.items()}
        notes = [f"{name}: {note}" for name, split in splits.items() for note in split.encoded.notes]
        notes.append(f"train.lr={recipe.train.lr:g}, for {'full weights' if recipe.train.lora is None else 'LoRA'}")
        return AnswerCorpus(splits, tokenizer, (*gathered.notes, *notes), recipe=recipe,
                            chat_template=None if template is None else template.source)

    def order(self, model: Model, corpus: Corpus, settings: Gradient) -> Buckets:
        encoded, training = cast(AnswerCorpus, corpus).splits["train"].encoded, cast(AnswerTraining, settings)
        return Buckets(encoded, seed=settings.seed, tokens=training.tokens, rows=training.pairs)

    def held_out(self, run: Trained, files: Sequence[str], text: Any, rated: bool = False) -> ExampleSplit:
        """The records of files, as the run reads them."""
        examples: Any = held_out_examples(read_all_rated if rated else read_all_pairs, files, text)
        template = (run.template or plain_template(run.tokenizer)) if refuse_two_formats(examples) else None
        return self.answer_split(examples, replace(run.recipe, text=text), run.tokenizer, template)

    def answer_split(
        self, examples: Sequence[Any], recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> ExampleSplit:
        """Encoded records."""
        encoded = encode_records(examples, recipe, tokenizer, template, self.reads_end)
        texts: list[bytes] = [text.encode() for example in examples for text in example.written]
        marks = str([_marks(example) for example in examples])
        digest = hashlib.sha256(b"\0".join([*texts, marks.encode()])).hexdigest()
        return ExampleSplit(encoded.tokens, sum(map(len, texts)), len(examples), digest, tuple(examples), encoded)


def read_all_pairs(sources: Sequence[Source], text: Text) -> tuple[Pair, ...]:
    return tuple(read_pairs(sources, text.errors))


def read_all_rated(sources: Sequence[Source], text: Text) -> tuple[Rated, ...]:
    return tuple(read_rated(sources, text.errors))


def plain_template(tokenizer: Tokenizer) -> ChatTemplate:
    """For a run that has none."""
    return ChatTemplate.of(PLAIN, tokenizer)


def _marks(example: Pair | Rated) -> object:
    """What a record says beside its texts; of most it is one number."""
    if isinstance(example, Rated):
        return example.label if example.ended else (example.label, False)
    ended = example.chosen_ended, example.rejected_ended
    return example.margin if all(ended) else (example.margin, ended)


def encode_records(
    examples: Sequence[E], recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate | None, read: bool = False
) -> Encoded:
    """Prompts and answers as tokens, within the model's context; `read`: the ends of answers are read, too."""
    text, limit = cast(PreferenceText, recipe.text), getattr(recipe.model, "context", None)
    limit = limit - 1 if limit is not None and read else limit
    prompts = [_encoded_prompt(example, tokenizer, template) for example in examples]
    answers = [[_encoded_answer(example, answer, tokenizer, template, text.end and ended, read)
                for example, answer, ended in each] for each in _answers(examples)]
    rows, notes = fit_rows(prompts, answers, limit, text.truncate, [example.place for example in examples])
    if isinstance(examples[0], Rated):
        labels = np.array([example.label for example in examples if isinstance(example, Rated)])
        return EncodedRated([rows[0], rows[0].rolled(limit)], labels, notes)
    margins = np.array([example.margin for example in examples if isinstance(example, Pair)], np.float32)
    return EncodedPairs(rows, margins if margins.any() else None, notes)


def _answers(examples: Sequence[E]) -> list[list[tuple[E, Content, bool]]]:
    """One list, or the two of pairs: an example, its answer, and whether that ended."""
    names = [("completion", "ended")]
    if isinstance(examples[0], Pair):
        names = [("chosen", "chosen_ended"), ("rejected", "rejected_ended")]
    return [[(example, getattr(example, answer), getattr(example, ended)) for example in examples]
            for answer, ended in names]


def _encoded_prompt(example: Pair | Rated, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    if template is not None and not isinstance(example.prompt, str):
        refuse_dropped(template, example.prompt, example.place)
    return encode_prompt(tokenizer, template, example.prompt)


def _encoded_answer(
    example: Pair | Rated, answer: Content, tokenizer: Tokenizer, template: ChatTemplate | None, end: bool, read: bool
) -> list[int]:
    try:
        ids = encode_answer(tokenizer, template, example.prompt, answer, end, read)
    except UserError as error:
        raise UserError(f"{example.place}: {error}") from None
    if not ids and not read:                     # one that is read is rated by its prompt alone
        raise UserError(f"{example.place}: an answer has no token of this run's tokenizer. Remove the line.")
    return ids
