"""Language modelling: every token of a running text is predicted from the tokens before it (`--task lm`).

Training visits windows of the text in random order, or streams whose state is carried from step to step (truncated
BPTT). Evaluation gives bits per byte. A model with hidden states predicts the Viterbi path of a text.

Shapes: T tokens, S states, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.evaluate import evaluate
from chainrule.inference.forward import on_device
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
        return self.read_lines(lines_of(file), "stdin" if file == "-" else file)

    def read_lines(self, lines: Iterable[str], name: str = "stdin") -> Sequence[tuple[str, Place]]:
        return [(line.rstrip("\n"), Place(name, number)) for number, line in enumerate(lines, 1) if line.strip()]

    def predict(self, run: Trained, examples: Sequence[tuple[str, Place]], search: Search) -> list[Prediction]:
        if not hasattr(run.model, "viterbi"):
            self.refuse(run)
        if not examples:
            raise UserError("there is no input: no line came.")
        return [state_path(run.model, run.tokenizer, line, run.labels, f"{place}: ") for line, place in examples]


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


# Hidden states of a text: the Viterbi path, its probability, the likelihood of the text, and the posteriors γ_t(s). A
# text is x_1 … x_T as it is written: its end is not a symbol, so the numbers are those of a calculation by hand.

SHOWN = 12    # symbols in a message


class HiddenStates(Protocol):
    """A model in which a chain of hidden states emits the tokens."""

    emission: Tensor    # (S, V)

    def viterbi(self, tokens: Tensor) -> tuple[Tensor, Tensor]: ...

    def log_likelihood(self, tokens: Tensor) -> Tensor: ...

    def posteriors(self, tokens: Tensor) -> Tensor: ...


@torch.inference_mode()
def state_path(
    model: Any, tokenizer: Tokenizer, text: str, names: Sequence[str] = (), place: str = ""
) -> dict[str, Any]:
    """Plain values for JSON; `answer` is the path, each state by its name, or by its number where it has none."""
    hidden: HiddenStates = model
    ids = tokenizer.encode(text).astype(np.int64)
    tokens = on_device(model, ids[None])
    written = text.split() if tokenizer.lines else [tokenizer.show(token) for token in ids.tolist()]
    _refuse_impossible(hidden, tokenizer, ids.tolist(), written, place)
    path, log_prob = hidden.viterbi(tokens)
    log_likelihood = float(hidden.log_likelihood(tokens)[0])
    if not math.isfinite(log_likelihood):
        raise UserError(f"{place}no path of states emits this text: its probability is 0.")
    states = names or [str(state) for state in range(len(hidden.emission))]
    named = [states[state] for state in path[0].tolist()]
    return {
        "answer": " ".join(named),
        "tokens": [tokenizer.show(token) for token in ids.tolist()],
        "path": named,
        "path_log_prob": float(log_prob[0]),                  # natural logarithms, as everywhere
        "log_likelihood": log_likelihood,
        "likelihood": math.exp(log_likelihood),
        "states": list(states),
        "posteriors": hidden.posteriors(tokens)[0].tolist(),  # (T, S)
    }


def _refuse_impossible(
    model: HiddenStates, tokenizer: Tokenizer, tokens: Sequence[int], written: Sequence[str], place: str
) -> None:
    """Names the first token that no state emits, such as an unknown word."""
    possible = (model.emission > 0).any(0)
    for token, word in zip(tokens, written):
        if not possible[token]:
            known = [tokenizer.show(id) for id in possible.nonzero()[:, 0].tolist()]
            some = ", ".join(known[:SHOWN]) + (", …" if len(known) > SHOWN else "")
            raise UserError(f"{place}no state emits {word!r}. The symbols are {some}.")
