"""Comparisons of what models compute: `assert_same` of tensors, `assert_same_weights` of whole models."""

from typing import Any

from torch import Tensor, nn
from torch.testing import assert_close

from chainrule.model import Batch, LanguageModel, State, cross_entropy


def assert_same(
    found: Any, expected: Any, what: str, atol: float | None = None, rtol: float | None = None
) -> None:
    assert_close(found, expected, atol=atol, rtol=rtol, msg=lambda text: f"{what}: {text}")


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    first, second = found.state_dict(), expected.state_dict()
    assert first.keys() == second.keys(), f"only one has {sorted(first.keys() ^ second.keys())}"
    for name, tensor in first.items():
        assert_same(tensor, second[name], name)


def read(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, State]:
    return model.step(tokens, model.start(len(tokens)))


def mean_loss(model: LanguageModel, batch: Batch) -> float:
    total, count = cross_entropy(model(batch), batch)
    return float(total / count)
