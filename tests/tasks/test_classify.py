"""Labels that a model has no number for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from chainrule.tasks import classify

NAN = float("nan")


def measured(monkeypatch: pytest.MonkeyPatch, probs: list[list[float]]) -> dict[str, Any]:
    """Of three texts: bad, good, good."""
    split: Any = SimpleNamespace(examples=[None], encoded=SimpleNamespace(targets=np.array([0, 1, 1])))
    monkeypatch.setattr(classify, "class_probabilities", lambda model, encoded: np.array(probs))
    model = torch.nn.Linear(1, 1)
    model.learns_by = "counting"  # type: ignore[assignment]
    return classify.measure_labels(model, split, ("bad", "good"))


def test_a_class_that_has_probability_0_is_an_infinite_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(monkeypatch, [[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]])
    assert result["nats"] == pytest.approx(-np.log([0.5, 0.5, 0.1]).mean())
    assert "why" not in result
    result = measured(monkeypatch, [[0.5, 0.5], [0.5, 0.5], [1, 0]])
    assert (result["nats"], result["why"]) == (None, classify.UNLIKELY)


def test_no_answer_is_a_wrong_one_whatever_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(monkeypatch, [[NAN, NAN], [0.1, 0.9], [NAN, NAN]])
    assert result["accuracy"] == pytest.approx(1 / 3)
    assert result["nats"] is None
    assert result["why"] == f"{classify.IMPOSSIBLE}, which counts as wrong; train it with smoothing"
