"""Tests of the exercise lora, against weights that chainrule's LoRA merged."""

import adapters
import torch
from torch import nn

from chainrule.exercises.expect import same, snapshot


def layer_of(s):
    """A linear layer with the weights of the snapshot, and the student's layer around it, untrained."""
    outputs, inputs = s["W"].shape
    linear = nn.Linear(inputs, outputs)
    linear.load_state_dict({"weight": torch.from_numpy(s["W"]), "bias": torch.from_numpy(s["c"])})
    return linear, adapters.lora_linear(linear, int(s["rank"]), float(s["alpha"]))


def trained(s):
    linear, layer = layer_of(s)
    with torch.no_grad():
        for name in ("A", "B"):
            found, values = getattr(layer, name), torch.from_numpy(s[name])
            assert found.shape == values.shape, f"{name} has shape {tuple(found.shape)}, not {tuple(values.shape)}"
            found.copy_(values)
    return linear, layer


def test_untrained_layer_computes_what_the_linear_layer_did():
    s = snapshot(__file__)
    linear, layer = layer_of(s)
    x = torch.from_numpy(s["x"])
    same(layer(x), linear(x), "forward before training", "W x + c, because B is zero", tolerance=1e-5)


def test_forward_is_that_of_the_merged_weights():
    s = snapshot(__file__)
    _, layer = trained(s)
    same(layer(torch.from_numpy(s["x"])), s["y"], "forward(x)", "W x + c + (alpha / r) · B A x", tolerance=1e-5)


def test_merged_layer_is_plain_and_equal():
    s = snapshot(__file__)
    linear, layer = trained(s)
    found = layer.merged()
    assert type(found) is nn.Linear, f"merged() returns a {type(found).__name__}, not a plain nn.Linear"
    same(found.weight, s["merged"], "the weight of merged()", "W + (alpha / r) · B A", tolerance=1e-5)
    same(found.bias, s["c"], "the bias of merged()", "the bias c of the linear layer")
    same(linear.weight, s["W"], "the weight of the linear layer after merged()", "W, unchanged")


def test_only_the_adapter_is_trained():
    s = snapshot(__file__)
    _, layer = layer_of(s)
    open_ones = sorted(name for name, parameter in layer.named_parameters() if parameter.requires_grad)
    assert open_ones == ["A", "B"], f"parameters that training changes: {open_ones}; expected: A and B alone"


def test_training_moves_away_from_the_start():
    s = snapshot(__file__)
    _, layer = layer_of(s)
    layer(torch.from_numpy(s["x"])).square().sum().backward()
    grad = layer.B.grad
    assert grad is not None, "B got no gradient: forward does not use it"
    assert grad.abs().max() > 0, "the gradient of B is zero at the start, so nothing is learned: A must not be zero"
