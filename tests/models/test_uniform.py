import math

import pytest
import torch

from chainrule.model import Batch
from chainrule.models import build
from chainrule.models.uniform import UniformSettings


def test_every_token_has_the_same_share() -> None:
    model = build("uniform", UniformSettings(), 8)
    logits, _ = model.step(torch.zeros(2, 3, dtype=torch.long), model.start(2))
    assert logits.shape == (2, 3, 8)
    assert logits.exp().sum(-1).flatten().tolist() == pytest.approx([1] * 6)
    assert logits.unique().tolist() == [pytest.approx(-math.log(8))]


def test_counting_adds_up_its_nats() -> None:
    model = build("uniform", UniformSettings(), 4)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    statistics = model.collect(Batch(tokens, tokens, torch.tensor([3, 1]))) + model.collect(Batch(tokens, tokens))
    assert statistics.nats == pytest.approx(10 * math.log(4))
