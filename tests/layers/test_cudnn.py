"""A layer that runs wide gives the same numbers, and only where that pays."""

import pytest
import torch
from torch.testing import assert_close

from chainrule.layers import cudnn
from chainrule.layers.cells import CELLS
from chainrule.layers.recurrent import Stack

LENGTHS = torch.tensor([9, 1, 5, 3])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "padded"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_running_wide_changes_no_output_state_or_gradient(cell, directions, lengths, monkeypatch):
    torch.manual_seed(1)
    stack, x, results = Stack(cell, 7, 6, 3, directions=directions, learned_start=True), torch.randn(4, 9, 7), []
    torch.nn.init.normal_(stack.first)
    for wished in (False, True):
        monkeypatch.setattr(cudnn, "is_worth_it", lambda x, hidden, wished=wished: wished)
        stack.zero_grad()
        outputs, after = stack(x, stack.start(4), lengths)
        outputs.square().sum().backward()
        results.append((outputs, after, [parameter.grad.clone() for parameter in stack.parameters()]))
    assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)


def test_the_kernel_sees_sizes_that_suit_it():
    stack = Stack("gru", 7, 12, 1)
    (weights,) = stack.layers[0].weights()
    U, W, b_U, b_W = cudnn.widen_weights(weights)
    assert (U.shape, W.shape, b_U.shape, b_W.shape) == ((48, 8), (48, 16), (48,), (48,))
    assert_close(U.view(3, 16, 8)[:, :12, :7].flatten(0, 1), weights.U)
    assert U.view(3, 16, 8)[:, 12:].eq(0).all()


@pytest.mark.parametrize("sizes", [(7, 6), (8, 6), (7, 8), (8, 8)])
def test_a_cpu_never_runs_wide(sizes):
    with torch.autocast("cpu", torch.bfloat16):
        assert not cudnn.is_worth_it(torch.zeros(1, 1, sizes[0]), sizes[1])
