"""Int8 weights: products close to those in float32, for any shape that fits, and rows that do not meet."""

from typing import Any

import pytest
import torch
from torch import nn

from chainrule.kernels.cpu import int8_linear
from chainrule.kernels.cpu.int8_linear import HALVES, Int8Linear, quantise
from chainrule.models.gpt import GPT, GPTSettings

SMALL: dict[str, Any] = {"layers": 2, "width": 64, "heads": 2, "context": 32, "zero_init": False}


@pytest.fixture(params=[True, False], ids=["4-bit products", "int8 weights alone"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not int8_linear.has_4_bit_products():
        pytest.skip("torch has no 4-bit products on this machine")
    monkeypatch.setattr(int8_linear, "has_4_bit_products", lambda: request.param)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 1), (64, 7), (96, 33), (576, 64)])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_products_are_those_of_the_matrix_to_about_a_hundredth(inputs: int, outputs: int, rows: int) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(inputs, outputs), torch.randn(rows, inputs)
    with torch.no_grad():
        expected, found = layer(x), Int8Linear(layer.weight, layer.bias)(x)
        assert (found - expected).norm() < 0.02 * (expected - layer.bias).norm()


@pytest.mark.usefixtures("kernel")
@torch.no_grad()
def test_a_row_gets_the_same_bits_alone_and_among_others() -> None:
    layer, x = Int8Linear(torch.randn(40, 64)), torch.randn(2, 3, 64)
    assert torch.equal(layer(x)[1, 2], layer(torch.stack([-x[0], x[1]]))[1, 2])


def test_weights_are_rounded_to_the_nearest_step() -> None:
    weight = torch.randn(9, 64)
    q, scales = quantise(weight, *HALVES)
    assert HALVES[0] <= q.min()
    assert q.max() <= HALVES[1]
    inside = weight.abs() < 118 * scales[:, None]
    assert ((q * scales[:, None] - weight).abs() <= 0.501 * scales[:, None])[inside].all()
    assert (quantise(torch.zeros(2, 32), *HALVES)[0] == 0).all()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_quantised_gpt_predicts_about_the_same_and_keeps_its_embeddings(tied: bool) -> None:
    torch.manual_seed(1)
    model = GPT(GPTSettings(**SMALL, tied=tied), 50).eval()
    tokens, embeddings = torch.randint(50, (2, 9)), model.embeddings.clone()
    before = model.step(tokens, model.start(2))[0].log_softmax(-1)
    model.quantise()
    after, state = model.step(tokens, model.start(2))
    assert 0 < (after.log_softmax(-1) - before).abs().max() < 0.2
    assert torch.equal(model.embeddings, embeddings)
    assert model.step(tokens[:, :1], state)[0].shape == (2, 1, 50)
