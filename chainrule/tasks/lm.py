"""Language modelling: every token of a running text is predicted from the tokens before it (`--task lm`).

Training visits windows of the text in random order, or streams whose state is carried from step to step (truncated
BPTT). Evaluation gives bits per byte. A model with hidden states predicts the Viterbi path of a text.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from chainrule.errors import UserError
from chainrule.inference.evaluate import evaluate
from chainrule.inference.state_paths import state_paths
from chainrule.model import Batch, CountingModel, Model
from chainrule.progress import say
from chainrule.recipe import MOST_TARGETS, Counting, Gradient, Recipe
from chainrule.tasks.examples import lines_of
from chainrule.tasks.task import Prediction, Search, Task, Trained
from chainrule.text.batches import Streams, Tokens, Unpacked, Windows, stream, texts
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.corpus import Corpus, MixedSplit, Split, prepare, read_split
from chainrule.text.mixing import MixedStreams, MixedWindows
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

LENGTH = 64            # tokens in a row, for models without a context
STEPS = 64             # least number of steps in an epoch, where the size of a step is left to us
RESET_SHARE = 0.01     # of the rows of a stream, which start again from the state of an empty text (Melis et al. 2018)


class LanguageModelling(Task):
    name, running_text = "lm", True
    generates = predicts = True
    readable = (*Task.readable, "packed")
    use = "`chainrule sample {run}` lets it continue a text"
    next_commands = ('sample {run} --prompt "The "', "score {run} TEXT", "eval {run} TEXT")

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None,
    ) -> Corpus:
        return prepare(texts, recipe.text, valid=valid, test=test, tokenizer=tokenizer)

    def order(self, model: Model, corpus: Corpus, settings: Gradient) -> Windows | Streams | Unpacked:
        split = corpus.splits["train"]
        order = order_text(split, settings, getattr(model, "context", None))
        if not split.packed or not isinstance(order, Windows) or model.packs:
            return order
        return Unpacked(order)

    def counting_batches(self, model: CountingModel, corpus: Corpus, settings: Counting) -> Iterator[Batch]:
        return counting_batches(model, corpus.splits["train"].tokens, settings)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        return evaluate(run.model, run.tokenizer, read_split(files, text, run.tokenizer)).as_dict()

    # Hidden states: of each line, the best path

    def read_inputs(self, file: str, text: Any) -> Sequence[tuple[str, Place]]:
        return self.read_lines(lines_of(file, text.errors), "stdin" if file == "-" else file)

    def read_lines(self, lines: Iterable[str], name: str = "stdin") -> Sequence[tuple[str, Place]]:
        return [(line.rstrip("\r\n"), Place(name, number)) for number, line in enumerate(lines, 1) if line.strip()]

    def predict(self, run: Trained, examples: Sequence[tuple[str, Place]], search: Search) -> list[Prediction]:
        if not hasattr(run.model, "viterbi"):
            self.refuse(run)
        if not examples:
            raise UserError("there is no input: no line came.")
        return state_paths(run.model, run.tokenizer, examples, run.labels)


LM = LanguageModelling()


def order_text(split: Split, settings: Gradient, context: int | None) -> Windows | Streams:
    """Windows or streams of a text, for a model that can hold `context` tokens."""
    if settings.batching == "streams" and context is not None:
        raise UserError(f"train.batching=streams carries a state on without end, and this model holds {context} "
                        "tokens. Use train.batching=windows.")
    if settings.batching == "streams" and split.packed:
        raise UserError("text.packed=true resets the state at each document, and train.batching=streams carries it on. "
                        "Use train.batching=windows.")
    length = settings.length or context or min(LENGTH, max(1, len(split.tokens) - 1))
    if context is not None and length > context:
        raise UserError(f"train.length={length} is more than the {context} tokens that the model can hold. "
                        "Shorten it, or raise model.context.")
    rows = _rows(settings.tokens, length, len(split.tokens) - 1)
    if isinstance(split, MixedSplit) and settings.batching == "streams":
        return MixedStreams(split, rows, length, settings.seed, RESET_SHARE)
    if isinstance(split, MixedSplit):
        return MixedWindows(split, rows, length, settings.seed)
    if settings.batching == "streams":
        return Streams(split.tokens, rows, length, RESET_SHARE)
    return Windows(split.tokens, rows, length, settings.seed, split.packed)


def _rows(tokens: int | None, length: int, text: int) -> int:
    few = max(1, min(MOST_TARGETS, text // STEPS) // length)
    if tokens is None or length > text:      # a text shorter than a row is refused by Windows and Streams
        return few
    if tokens > text:
        say(f"the text is shorter than one step of train.tokens={tokens}, so a step has {few * length}, the default; "
            f"train.tokens={text // length * length} would be the whole text.")
        return few
    if tokens < length:
        raise UserError(f"train.tokens={tokens} is less than one row of {length} tokens. Raise it, or shorten rows.")
    return tokens // length


def counting_batches(model: CountingModel, tokens: Tokens, settings: Counting) -> Iterator[Batch]:
    """Pieces of one long row that overlap by the receptive field; if that is unlimited, rows that each begin a text."""
    reach: int | None = getattr(model, "receptive_field", None)
    if settings.length is None and reach is not None:
        return stream(tokens, max(settings.tokens, reach + 1), reach)
    return texts(tokens, settings.length, settings.tokens)
