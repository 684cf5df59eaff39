"""LoRA on a CPU: merged matrices are kept, gradients come from activations; the reference is autograd of W + s · BA."""

import copy

import pytest
import torch
from torch import Tensor, nn

from chainrule.layers.lora import LoRA, add_parametrization, merged_once


def adapted(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 7, bias), nn.Tanh(), nn.Linear(7, 5, bias=False)).double()
    for name in ("0.weight", "2.weight"):
        lora = LoRA(model.get_parameter(name), 3, 2.0).double()
        nn.init.normal_(lora.up)
        add_parametrization(model, name, lora)
    return model


def formula(model: nn.Sequential, x: Tensor) -> Tensor:
    """The same by the formula, whose gradients are autograd's."""
    weights = []
    for layer in (model[0], model[2]):
        parts = layer.parametrizations.weight
        weights.append(parts.original + parts[0].scale * (parts[0].up @ parts[0].down))
    hidden = x @ weights[0].T
    return torch.tanh(hidden if model[0].bias is None else hidden + model[0].bias) @ weights[1].T


def gradients(model: nn.Sequential, out: Tensor) -> dict[str, Tensor]:
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return dict(zip(names, torch.autograd.grad(out.square().sum(), [model.get_parameter(name) for name in names])))


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_from_activations_are_those_of_the_formula(bias: bool) -> None:
    model = adapted(bias)
    x = torch.randn(4, 6, 12, dtype=torch.float64)
    out, expected = model(x), formula(model, x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(gradients(model, out), gradients(model, expected))


def test_the_gradient_goes_on_below_the_adapted_layer() -> None:
    model = adapted()
    x, same = (torch.ones(3, 12, dtype=torch.float64, requires_grad=True) for _ in range(2))
    model(x).square().sum().backward()
    formula(model, same).square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad)


def test_a_merged_matrix_is_kept_until_its_adapter_changes() -> None:
    model = adapted()
    layer = model[0]
    x, parts = torch.randn(4, 12, dtype=torch.float64), layer.parametrizations.weight
    with torch.inference_mode():
        before = model(x)
        assert merged_once(parts[0], parts.original) is merged_once(parts[0], parts.original)
    optimizer = torch.optim.AdamW([parts[0].up], lr=0.1)
    model(x).sum().backward()    # a matrix that was merged in inference mode serves training too
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(model(x), before)
        torch.testing.assert_close(model(x), formula(model, x))


def test_a_copy_has_its_own_merged_matrix() -> None:
    model = adapted()
    x = torch.randn(4, 12, dtype=torch.float64)
    with torch.no_grad():
        model(x)
        other = copy.deepcopy(model)
        other[0].parametrizations.weight[0].up.zero_()
        torch.testing.assert_close(other(x), formula(other, x))
        torch.testing.assert_close(model(x), formula(model, x))
