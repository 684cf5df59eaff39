"""The protocol of all tasks: Task, what a model is trained to do, and how it is then measured and used.

    complete → prepare → build → begin → objective → order, validation → measure, predict

A task reads its corpus, builds the model with its head, and gives the batches; the loss is the model's own
(`Model.loss`), so that one trainer serves all tasks. A task that learns from examples begins from `ExampleTask`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from chainrule import models
from chainrule.errors import UserError
from chainrule.inference.beam import Beam
from chainrule.inference.mbr import MinimumBayesRisk
from chainrule.model import Batch, CountingModel, Model
from chainrule.recipe import Counting, Gradient, Recipe, TaskSettings
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.corpus import Corpus
from chainrule.text.tokenizers.tokenizer import Tokenizer

Search: TypeAlias = Beam | MinimumBayesRisk
"""How an output text is searched for, where the answer is a text."""

Prediction: TypeAlias = dict[str, Any]
"""Plain values for JSON: `answer`, which is printed, and what the task says beside it."""

Truncate: TypeAlias = Literal["false", "true", "ends"]

Input: TypeAlias = Literal["text", "frames"]
"""What examples hold: words, or sequences of vectors (tasks/frames.py)."""


class BatchOrder(Protocol):
    """The batches of training, as a function of the step: so training resumes at any step."""

    @property
    def rows(self) -> int:
        """Rows of a batch, at most."""

    @property
    def length(self) -> int:
        """Tokens of a row, at most."""

    @property
    def targets(self) -> int:
        """Targets of a batch, on average."""

    @property
    def epoch(self) -> float:
        """Steps in which each target is visited once."""

    def at(self, step: int) -> Batch: ...

    def goes_on(self, step: int) -> bool:
        """Whether each row continues where the step before ended, with its state (truncated BPTT)."""


@runtime_checkable
class OrderWithState(Protocol):
    """A BatchOrder whose batches depend on more than the step: on answers that the model has drawn (rollouts)."""

    def state(self) -> Mapping[str, Tensor]:
        """All that decides the batches that follow, for a checkpoint."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state` returned."""


class Batches(Protocol):
    """The batches of an evaluation: `at(0)`, `at(1)`, … up to `epoch`."""

    @property
    def epoch(self) -> float: ...

    def at(self, step: int) -> Batch: ...


class Trained(Protocol):
    """A trained model and what it was trained with: a Run."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def model(self) -> Any: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def template(self) -> ChatTemplate | None: ...

    @property
    def others(self) -> "Sequence[Trained]":
        """Runs whose probabilities are averaged with this one's (an ensemble)."""

    @property
    def weight(self) -> float:
        """By which its probabilities count where it is one of these others."""


class Task(TaskSettings):
    """What a model is trained to do. The defaults are those of a task on running text."""

    examples: ClassVar[bool] = False                 # whether it learns from examples, each with an answer
    predicts: ClassVar[bool] = False                 # whether it answers lines of a file: `predict`
    generates: ClassVar[bool] = False                # whether its model continues a text: `sample` and `score`
    source: ClassVar[Literal["text", "vectors"] | None] = None   # what its model reads before it writes
    needs_base: ClassVar[bool] = False               # whether it only tunes a trained run: --from
    averages: ClassVar[Literal["labels", "tokens"] | None] = None   # of what an ensemble of runs averages probabilities
    reads_frames: ClassVar[bool] = False             # whether its model may read vectors in the place of tokens
    target: ClassVar[str] = "token"                  # what one target is, in messages
    readable: ClassVar[tuple[str, ...]] = ("errors", "separator")   # `text.*` settings that eval and predict may change
    use: ClassVar[str] = "`chainrule train … --from {run}` fine-tunes it"   # what a trained run is for
    next_commands: ClassVar[Sequence[str]] = ()      # what to try after training

    # The model

    def suits(self, model_class: type[Model]) -> bool:
        """Whether models of a class can be trained for this task."""
        return self.name in model_class.tasks

    def model_class(self, kind: str) -> type[Model]:
        """The class whose settings are the recipe's `model.*`, and which says how the kind learns."""
        found: type[Model] = models.model_class(kind)
        return found

    def build(self, recipe: Recipe, vocab: int, labels: Sequence[str] = ()) -> Any:
        """The model of a recipe over `vocab` tokens, with a head for `labels` where the task has one."""
        source_vocab = getattr(recipe.model, "source_vocab", None)
        if source_vocab is not None and source_vocab < vocab:
            raise UserError(f"model.source_vocab={source_vocab}: sources are made of the tokens of the texts, of which "
                            f"there are {vocab:,}. Leave it out, or give {vocab} or more.")
        return models.build(recipe.kind, recipe.model, vocab)

    # Training

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        """The recipe with the settings that only the data can tell."""
        return recipe

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None,
    ) -> Corpus:
        """The corpus by split: read, tokenized, encoded. `tokenizer` and `template`: those of the run it starts from.

        A corpus may have a `chat_template`, the Jinja source that the run will keep; else it keeps its base's.
        """
        raise NotImplementedError

    def begin(self, model: Model, corpus: Corpus) -> Corpus:
        """Called once before the first step, and again before training resumes, with the model as it starts.

        Here a task computes what it needs of the starting model, such as a reference's log-probabilities.
        """
        return corpus

    def objective(self, model: Model, recipe: Recipe) -> Model:
        """The model as it is trained: by default itself. What wraps it for training, such as DPO's loss, has it as
        `body`; the model itself is saved, evaluated at the end and loaded."""
        return model

    def order(self, model: Model, corpus: Corpus, settings: Gradient) -> BatchOrder:
        """The batches that gradient descent learns from."""
        raise NotImplementedError

    def counting_batches(self, model: CountingModel, corpus: Corpus, settings: Counting) -> Iterator[Batch]:
        """The whole training split once, for models that learn by counting."""
        raise NotImplementedError

    def validation(self, model: Model, corpus: Corpus) -> Batches | None:
        """Batches of the validation split; None: each token of it is a target, in order."""
        return None

    def measure_validation(self, model: Model, corpus: Corpus) -> dict[str, Any] | None:
        """The metrics of a trained model on the validation split; None: the loss alone."""
        return None

    # Use

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        """The metrics of a run on files, read by the settings `text`: `chainrule eval`."""
        self.refuse(run)

    def read_inputs(self, file: str, text: Any) -> Sequence[Any]:
        """Examples without answers, from a file: `chainrule predict`."""
        raise NotImplementedError

    def read_lines(self, lines: Iterable[str], name: str = "stdin") -> Sequence[Any]:
        """Examples without answers, one on each line."""
        raise NotImplementedError

    def predict(self, run: Trained, examples: Sequence[Any], search: Search) -> list[Prediction]:
        """The answer of a run to each example."""
        self.refuse(run)

    def refuse(self, run: Any) -> NoReturn:
        """A run that was trained for something else than was asked of it."""
        path = getattr(run, "path", "the run")
        raise UserError(f"{path} was trained for --task {self.name}: {self.use.format(run=path)}.")
