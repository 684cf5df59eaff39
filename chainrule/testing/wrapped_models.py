"""Models around a model: `WithSource` gives it a source, `Disguised` hides its state in another container."""

from dataclasses import replace

import torch
from torch import Tensor

from chainrule.model import Batch, LanguageModel, State


class WithSource(LanguageModel):
    """A model that is given the same source for every text, so that the checks need not know of sources."""

    def __init__(self, model: LanguageModel, source: Tensor, lengths: Tensor | None = None):
        super().__init__()
        self.model, self.source = model, source                  # (1, S) or (1, S, F)
        self.lengths = torch.tensor([source.shape[1]], device=source.device) if lengths is None else lengths
        self.context, self.receptive_field = model.context, model.receptive_field

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return self.model.start(rows, self.source.repeat_interleave(rows, 0), self.lengths.repeat(rows))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.model.step(tokens, state)

    def score(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        return self.model.score(tokens, targets, state)

    def forward(self, batch: Batch) -> Tensor:
        return self.model.forward(self._with_source(batch))

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        return self.model.loss(self._with_source(batch), state)

    def reserve(self, state: State, tokens: int) -> State:
        return self.model.reserve(state, tokens)

    def _with_source(self, batch: Batch) -> Batch:
        rows = len(batch.tokens)
        source = self.source.repeat_interleave(rows, 0)
        return replace(batch, source=source, source_lengths=self.lengths.repeat(rows))


class Disguised(LanguageModel):
    """The same model, with its state inside another container."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model, self.context, self.receptive_field = model, model.context, model.receptive_field

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return {"hidden": (self.model.start(rows, source, lengths), torch.zeros(rows, 1))}

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, inner = self.model.step(tokens, state["hidden"][0])
        return logits, {"hidden": (inner, state["hidden"][1])}
