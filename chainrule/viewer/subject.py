"""A subject: a model that is viewed, under its name on the page, and how it reads a text or a source.

Shapes: T tokens including the boundary, S source tokens including their end, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from chainrule.inference.forward import eval_mode, on_device
from chainrule.model import BOUNDARY, LanguageModel, taps, watch
from chainrule.run import Run
from chainrule.tasks import find_task
from chainrule.tasks.task import Task

T = TypeVar("T")


@dataclass(frozen=True)
class TokenizedText:
    """A text, or a source, as tokens; of a long one a part."""

    tokens: Tensor               # (1, T)
    shown: list[str]             # each token for people: white space made visible, bytes that are no text in hex
    left_out: int                # tokens that are not in it


@dataclass(frozen=True)
class Subject:
    name: str
    run: Run

    @property
    def model(self) -> Any:
        """Views use whatever parts a model has, once `fits` has found them; hence no narrower type."""
        return self.run.model

    @property
    def body(self) -> Any:
        """The encoder under a head, if the model has a head; else the model."""
        return getattr(self.model, "body", self.model)

    @property
    def task(self) -> Task:
        return find_task(self.run.recipe.task)

    @property
    def continues_text(self) -> bool:
        """Whether it is a language model of plain text, which can continue any text."""
        return isinstance(self.model, LanguageModel) and self.task.generates

    @property
    def encodes_text(self) -> bool:
        """Whether its body gives each token of a text a vector."""
        return hasattr(self.body, "encode") and getattr(self.run.recipe.model, "features", None) is None

    @property
    def reads_source(self) -> bool:
        """Whether it generates a text from a source that is a text."""
        return isinstance(self.model, LanguageModel) and self.task.source == "text"

    @property
    def described(self) -> str:
        """Its kind and size: 'rnn with 3,075 parameters and a vocabulary of 259'."""
        size, vocab = sum(parameter.numel() for parameter in self.model.parameters()), len(self.run.tokenizer)
        about = f"{self.run.recipe.kind} with {size:,} parameters and a vocabulary of {vocab:,}"
        return about if self.task.name == "lm" else f"{about}, trained for --task {self.task.name}"

    def has(self, tap: str) -> bool:
        """Whether a tap of this name (its last part) is anywhere in the model."""
        return bool(self.taps(tap))

    def taps(self, tap: str) -> list[str]:
        """The paths of taps of this name, such as `blocks.3.attention.pattern`, from the first layer to the last."""
        return [path for path in taps(self.model) if path.rpartition(".")[2] == tap]

    def show(self, tokens: Sequence[int]) -> list[str]:
        return [self.run.tokenizer.show(token) for token in tokens]

    def read(self, text: str, limit: int) -> TokenizedText:
        """The boundary and the end of the text: at most `limit` tokens, and no more than the model's context."""
        ids = self.run.tokenizer.encode(text)
        kept = ids[max(0, len(ids) - min(limit, self._context(limit)) + 1) :]
        return self._tokenized([BOUNDARY, *kept], len(ids) - len(kept))

    def read_source(self, text: str, limit: int) -> TokenizedText:
        """`x1 … xm 0`, as in training, of the first line of the text; of a long line the beginning."""
        ids = self.run.tokenizer.encode(first_line(text))
        kept = ids[: min(limit, self._context(limit)) - 1]
        return self._tokenized([*kept, BOUNDARY], len(ids) - len(kept))

    def _context(self, limit: int) -> int:
        return getattr(self.model, "context", None) or limit

    def _tokenized(self, ids: Sequence[int], left_out: int) -> TokenizedText:
        tokens = np.array(ids, np.int64)
        return TokenizedText(on_device(self.model, tokens[None]), self.show(tokens.tolist()), left_out)

    def trace(self, tokens: Tensor, *names: str) -> tuple[Tensor, dict[str, Tensor]]:
        """(1, T, V) logits as the model reads (1, T) tokens, and the activations at the named taps."""
        return self.watched(lambda: self.model.step(tokens, self.model.start(len(tokens)))[0], *names)

    def watched(self, act: Callable[[], T], *names: str) -> tuple[T, dict[str, Tensor]]:
        """What `act` returns, and the activations at the named taps, those of all its steps joined along T."""
        with torch.no_grad(), eval_mode(self.model), watch(self.model, *names) as seen:
            answer = act()
            return answer, {name: torch.cat(parts, 1) for name, parts in seen.items() if parts}


def first_line(text: str) -> str:
    """The first line that is not empty."""
    return next((line for line in text.splitlines() if line.strip()), "").strip()
