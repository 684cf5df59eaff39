"""One step of learning: `learn` is a round of counting or a step of gradient descent."""

from collections.abc import Sequence
from typing import cast

import torch

from chainrule.model import Batch, CountingModel, LanguageModel, cross_entropy

RATES = (0.3, 0.03, 0.003)    # learning rates of plain gradient descent in the checks


@torch.enable_grad()
def learn(model: LanguageModel, batch: Batch, rate: float = RATES[0]) -> None:
    """One round of counting, or one step of gradient descent."""
    if model.learns_by == "counting":
        counting = cast(CountingModel, model)
        counting.update(counting.collect(batch))
        return
    model.zero_grad()
    accumulate(model, [batch])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(rate * parameter.grad)


@torch.enable_grad()
def accumulate(model: LanguageModel, batches: Sequence[Batch]) -> None:
    """Gradients of the mean loss over all batches: sums, divided once."""
    results = [cross_entropy(model(batch), batch) for batch in batches]
    count = sum(count for _, count in results)
    for total, _ in results:
        (total / count).backward()  # type: ignore[no-untyped-call]
