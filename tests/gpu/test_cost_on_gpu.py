"""Cost against length on a GPU: its own count of bytes, and a cache that grows where a recurrent state does not."""

import pytest
import torch

from chainrule.models import build
from chainrule.training.pipeline import recipe_for
from chainrule.viewer.views.cost import WAYS, fitted_power, measure_costs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

LENGTHS = [256, 512, 1024]


def made(kind, **sizes):
    settings = recipe_for(kind, {f"model.{name}": size for name, size in sizes.items()}).model
    return build(kind, settings, 64).cuda()


def test_every_way_costs_seconds_and_bytes():
    model = made("gpt", layers=2, width=64, heads=2, context=1024)
    for way in WAYS:
        assert all(cost.seconds > 0 and cost.bytes > 0 for cost in measure_costs(model, way, LENGTHS, repeats=1))


def test_a_cache_grows_and_a_recurrent_state_does_not():
    gpt, lstm = made("gpt", layers=2, width=64, heads=2, context=1024), made("lstm", layers=1, hidden=64)
    assert fitted_power(measure_costs(gpt, "write", LENGTHS, repeats=1), "bytes") > 0.5
    assert fitted_power(measure_costs(lstm, "write", LENGTHS, repeats=1), "bytes") < 0.2
