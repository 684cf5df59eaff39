"""Laws about learning, tested on copies of the model: padding, micro-batches, a loss that falls, boundaries."""

from copy import deepcopy
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from chainrule.model import Batch, CountingModel, LanguageModel
from chainrule.testing.comparisons import assert_same, assert_same_weights, mean_loss, read
from chainrule.testing.contract_error import law
from chainrule.testing.example_texts import batch_for, some_tokens, with_other_padding
from chainrule.testing.learning import RATES, accumulate, learn


@law
def check_padding_is_not_learned(model: LanguageModel) -> None:
    """Training does not depend on the tokens in the padding."""
    text = batch_for(model)
    clean, padded = deepcopy(model), deepcopy(model)
    learn(clean, text)
    learn(padded, with_other_padding(model, text))
    assert_same_weights(padded, clean)


@law
def check_micro_batches_change_nothing(model: LanguageModel) -> None:
    """Cutting a step into micro-batches changes neither gradients nor counts."""
    text = batch_for(model)
    few, many = text.rows(slice(0, 5)), text.rows(slice(5, None))
    whole, parts = deepcopy(model), deepcopy(model)
    if model.learns_by == "counting":
        one, other = cast(CountingModel, whole), cast(CountingModel, parts)
        for _ in range(2):
            one.update(one.collect(text))
            other.update(other.collect(few) + other.collect(many))
        assert_same_weights(parts, whole)
    else:
        accumulate(whole, [text])
        accumulate(parts, [few, many])
        for (name, one_part), other_part in zip(whole.named_parameters(), parts.parameters()):
            if one_part.grad is not None:
                assert_same(other_part.grad, one_part.grad, f"gradient of {name}", atol=1e-6, rtol=1e-4)


@law
def check_learning_lowers_the_loss(model: LanguageModel, gain: float = 0.0) -> None:
    """Each step of training lowers the loss on its batch, at a small enough learning rate; counting never raises it."""
    curves = []
    for rate in RATES:
        student, text = deepcopy(model), batch_for(model)
        losses = [mean_loss(student, text)]
        for _ in range(6):
            learn(student, text, rate)
            losses.append(mean_loss(student, text))
        curves.append(losses)
        fixed = model.learns_by == "counting" and all(map(torch.equal, *map(_weights, (model, student))))
        falls = all(after <= before + 1e-6 for before, after in pairwise(losses))
        if falls and (fixed or losses[0] - losses[-1] > gain):
            return
    raise AssertionError(f"losses in 6 steps, at learning rates {RATES}: {curves}")


@law
def check_reset_at_boundary(model: LanguageModel) -> None:
    """If `resets_at_boundary`, texts in one stream are read and learned as texts in separate rows."""
    if not model.resets_at_boundary:
        return
    new, _ = read(model, some_tokens(model, 4, 6))
    later, _ = read(model, torch.cat([some_tokens(model, 4, 5, seed=3), some_tokens(model, 4, 6)], 1))
    assert_same(later[:, 5:], new, "logits after a boundary")
    text = batch_for(model)
    assert text.lengths is not None
    pieces = [row[:length] for row, length in zip(text.targets, text.lengths)]
    stream = torch.cat([text.tokens[:1, 0], *pieces])[None]
    by_rows, streamed = deepcopy(model), deepcopy(model)
    learn(by_rows, text)
    learn(streamed, Batch(stream[:, :-1], stream[:, 1:]))
    assert_same_weights(streamed, by_rows)


def _weights(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())
