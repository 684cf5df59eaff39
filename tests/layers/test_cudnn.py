"""A layer padded for the tensor cores gives the same numbers."""

import pytest
import torch
from torch.testing import assert_close

from chainrule.layers import cudnn
from chainrule.layers.cells import CELLS
from chainrule.layers.recurrent import RecurrentStack

LENGTHS = torch.tensor([9, 1, 5, 3])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "padded"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_units_changes_no_output_state_or_gradient(cell, directions, lengths, monkeypatch):
    torch.manual_seed(1)
    stack = RecurrentStack(cell, 7, 6, 3, directions=directions, learned_start=True)
    x, results = torch.randn(4, 9, 7), []
    torch.nn.init.normal_(stack.initial)
    for wished in (False, True):
        monkeypatch.setattr(cudnn, "should_pad", lambda x, hidden, wished=wished: wished)
        stack.zero_grad()
        outputs, after = stack(x, stack.start(4), lengths)
        outputs.square().sum().backward()
        results.append((outputs, after, [parameter.grad.clone() for parameter in stack.parameters()]))
    assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)


def test_the_kernel_gets_multiples_of_8():
    stack = RecurrentStack("gru", 7, 12, 1)
    (weights,) = stack.layers[0].weights()
    U, W, b_U, b_W = cudnn.pad_weights(weights)
    assert (U.shape, W.shape, b_U.shape, b_W.shape) == ((48, 8), (48, 16), (48,), (48,))
    assert_close(U.view(3, 16, 8)[:, :12, :7].flatten(0, 1), weights.U)
    assert U.view(3, 16, 8)[:, 12:].eq(0).all()


@pytest.mark.parametrize("sizes", [(7, 6), (8, 6), (7, 8), (8, 8)])
def test_a_cpu_never_pads(sizes):
    with torch.autocast("cpu", torch.bfloat16):
        assert not cudnn.should_pad(torch.zeros(1, 1, sizes[0]), sizes[1])
