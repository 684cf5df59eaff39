"""Dropout with few random bits: the rate, the scale and the gradient of torch's, and every number has its own draw.

All of it in torch, and in C++, where the mask follows from a key.
"""

import pytest
import torch
from torch.testing import assert_close

from chainrule import kernels
from chainrule.kernels.cpu.dropout import Dropout, dropout

MANY = 400_000


@pytest.fixture(autouse=True, params=["torch", "C++"])
def _way(request):
    if request.param == "C++":
        request.getfixturevalue("_compiled_layers")
    torch.manual_seed(1)
    with kernels.in_training(request.param == "C++"):
        yield


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_numbers_are_dropped_with_this_probability_and_the_others_divided_by_one_minus_p(p):
    dropped = dropout(torch.full((MANY,), 3.0), p)
    gone = dropped == 0
    assert_close(dropped[~gone], torch.full_like(dropped[~gone], 3 / (1 - p)))
    error = (p * (1 - p) / MANY) ** 0.5
    assert abs(float(gone.double().mean()) - p) < 4 * error + 2**-17


def test_every_number_has_its_own_draw():
    """Of four that share 64 bits, pairs are dropped as often as independent numbers are."""
    gone = (dropout(torch.ones(MANY, 4), 0.3) == 0).double()
    assert_close(gone.mean(0), torch.full((4,), 0.3, dtype=torch.float64), atol=0.004, rtol=0)
    together = gone.T @ gone / MANY
    assert float((together[~torch.eye(4, dtype=torch.bool)] - 0.09).abs().max()) < 0.003
    shifted = (gone[1:] * gone[:-1]).mean()
    assert abs(float(shifted) - 0.09) < 0.003


def test_a_seed_repeats_a_mask_and_the_next_one_is_another():
    x = torch.ones(3, 50)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(first, dropout(x, 0.5))


@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (2, 5), (3, 4, 7), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_any_shape_and_dtype(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    dropped = dropout(x, 0.5)
    assert (dropped.shape, dropped.dtype) == (x.shape, dtype)
    assert set(dropped.flatten().tolist()) <= {0.0, 2.0}


def test_a_mask_does_not_depend_on_the_order_in_memory():
    x = torch.randn(6, 8)
    torch.manual_seed(2)
    wanted = dropout(x, 0.4)
    torch.manual_seed(2)
    assert torch.equal(dropout(x.T.contiguous().T, 0.4), wanted)


def test_the_gradient_passes_where_numbers_are_kept():
    x = torch.randn(50, 8, requires_grad=True)
    dropped = dropout(x, 0.25)
    dropped.backward(torch.full_like(dropped, 3.0))
    assert_close(x.grad, torch.where(dropped == 0, 0.0, 4.0))


@pytest.mark.parametrize("p", [0.999_999, 1 - 1e-12])
def test_a_probability_next_to_one_gives_numbers(p):
    assert dropout(torch.ones(1000), p).isfinite().all()


def test_evaluation_and_a_probability_of_zero_change_nothing():
    x, state = torch.randn(9), torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state)
    assert (Dropout(0.5)(x) == 0).any()


def test_what_is_not_a_number_stays_so():
    """Or a step that diverged would go unnoticed."""
    x = torch.full((100,), torch.nan)
    assert dropout(x, 0.5).isnan().all()


def test_other_devices_and_compiled_models_use_that_of_torch(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p: asked.append(p) or x)
    x = torch.ones(8)
    dropout(x, 0.5)
    dropout(x.to("meta"), 0.25)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    dropout(x, 0.75)
    assert asked == [0.25, 0.75]
