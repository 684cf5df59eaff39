"""A model to look at, by the name it has on the page, and how it reads a text.

Shapes: T tokens, the boundary among them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.inference.forward import eval_mode, on_device
from chainrule.model import BOUNDARY, LanguageModel, taps, watch
from chainrule.run import Run


@dataclass(frozen=True)
class Reading:
    """A text as tokens, the boundary first; of a long text the end."""

    tokens: Tensor               # (1, T)
    shown: list[str]             # each token as people read it: white space drawn, bytes that are no text in hex
    left_out: int                # tokens of the text before these


@dataclass(frozen=True)
class Subject:
    name: str
    run: Run

    @property
    def model(self) -> Any:
        return self.run.model

    @property
    def body(self) -> Any:
        """What reads the text, where a head stands upon it; else the model."""
        return getattr(self.model, "body", self.model)

    @property
    def speaks(self) -> bool:
        """Whether it can go on from a text alone."""
        return isinstance(self.model, LanguageModel) and self.run.recipe.task == "lm"

    def has(self, tap: str) -> bool:
        """Whether a tap of this name (its last part) is anywhere in the model."""
        return bool(self.taps(tap))

    def taps(self, tap: str) -> list[str]:
        """Where taps of this name are, as `blocks.3.attention.pattern`, from the first layer to the last."""
        return [where for where in taps(self.model) if where.rpartition(".")[2] == tap]

    def read(self, text: str, limit: int) -> Reading:
        """At most `limit` tokens, and no more than the model can hold."""
        ids = self.run.tokenizer.encode(text)
        context = getattr(self.model, "context", None) or limit
        kept = ids[max(0, len(ids) - min(limit, context) + 1) :]
        tokens = np.concatenate([[BOUNDARY], kept]).astype(np.int64)
        return Reading(on_device(self.model, tokens[None]), self.show(tokens.tolist()), len(ids) - len(kept))

    def show(self, tokens: Sequence[int]) -> list[str]:
        return [self.run.tokenizer.show(token) for token in tokens]

    def trace(self, tokens: Tensor, *where: str) -> tuple[Tensor, dict[str, Tensor]]:
        """(1, T, V) logits as the model reads (1, T) tokens, and what passed through the named taps, each whole."""
        return self.watched(lambda: self.model.step(tokens, self.model.start(len(tokens)))[0], *where)

    def watched(self, act: Callable[[], Any], *where: str) -> tuple[Any, dict[str, Tensor]]:
        with torch.no_grad(), eval_mode(self.model), watch(self.model, *where) as seen:
            answer = act()
            return answer, {name: torch.cat(parts, 1) for name, parts in seen.items() if parts}
