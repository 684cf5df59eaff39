"""Recurrent layers that read padding: outputs, states and gradients are those of packed rows."""

import pytest
import torch
from torch.testing import assert_close

from chainrule.layers import cudnn
from chainrule.layers.recurrent import RecurrentStack

LENGTHS = torch.tensor([7, 1, 4, 6])


def results(stack, x, monkeypatch, devices):
    monkeypatch.setattr(cudnn, "PADDED_DEVICES", devices)
    outputs, state = stack(x, stack.start(len(x)), LENGTHS)
    weigh = torch.arange(outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    total = (outputs * weigh).sum() + sum((part * part + 3 * part).sum() for part in state.values())
    return outputs, *state.values(), *torch.autograd.grad(total, [*stack.parameters(), x])


@pytest.mark.parametrize("most_joined", [0, 1024], ids=["two calls", "joined"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh", "sigmoid"])
def test_padding_that_is_read_changes_nothing(cell, directions, most_joined, monkeypatch):
    monkeypatch.setattr(cudnn, "MOST_JOINED", most_joined)
    torch.manual_seed(1)
    stack = RecurrentStack(cell, 5, 6, 2, directions=directions, learned_start=True).double()
    with torch.no_grad():
        stack.initial.normal_()
    x = torch.randn(4, 7, 5, dtype=torch.double, requires_grad=True)
    packed, padded = (results(stack, x, monkeypatch, devices) for devices in (set(), {"cpu"}))
    for one, other in zip(packed, padded, strict=True):
        assert_close(one, other)


def test_what_stands_at_padding_does_not_matter(monkeypatch):
    monkeypatch.setattr(cudnn, "PADDED_DEVICES", {"cpu"})
    torch.manual_seed(1)
    stack = RecurrentStack("lstm", 5, 6, 1, directions=2)
    x = torch.randn(4, 7, 5)
    padding = torch.arange(7) >= LENGTHS[:, None]
    both = [stack(inputs, stack.start(4), LENGTHS) for inputs in (x, x.masked_fill(padding[..., None], 50.0))]
    assert_close(both[0][0], both[1][0])
    for name in ("hidden", "cell"):
        assert_close(both[0][1][name], both[1][1][name])
    assert (both[0][0][padding] == 0).all()


def test_without_gradients_rows_are_packed(monkeypatch):
    monkeypatch.setattr(cudnn, "PADDED_DEVICES", {"cpu"})
    with torch.no_grad():
        assert not cudnn.reads_padding(torch.zeros(1))
    assert cudnn.reads_padding(torch.zeros(1))
