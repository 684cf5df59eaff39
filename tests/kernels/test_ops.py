"""Fused operators in training give what the plain layers give: loss, gradients, taps. Torch stands in for the kernels.

The kernels themselves are tested in interpreted_kernels.py, and on a GPU in tests/gpu/layers/test_fused_on_gpu.py.
"""

from types import ModuleType
from typing import Any

import pytest
import torch
from contract.kernels_in_torch import stand_in
from contract.moved import moved
from torch import Tensor
from torch.testing import assert_close

from chainrule import kernels
from chainrule.device import bfloat16_residual
from chainrule.kernels import ops
from chainrule.layers.blocks import add_norm
from chainrule.model import Batch, watch
from chainrule.models.gpt import GPT, GPTSettings

SMALL: dict[str, Any] = {"layers": 2, "width": 24, "heads": 2, "context": 16, "zero_init": False}
AS_GPT2 = {"norm": "layer", "norm_scale": True, "biases": True, "activation": "gelu-tanh", "positions": "learned",
           "qk_norm": False}
CHOICES: list[dict[str, Any]] = [
    {},
    AS_GPT2,
    {"activation": "swiglu", "biases": True, "norm_scale": True},
    {"activation": "gelu", "biases": True, "norm": "layer"},
    {"activation": "relu", "biases": True},
    {**AS_GPT2, "dropout": 0.2},
    {"width": 32, "heads": 4, "kv_heads": 2},                            # heads whose size is a power of 2 are fused
    {"width": 32, "heads": 4, "norm": "layer", "biases": True},
    {"width": 32, "heads": 4, "norm_scale": True},
    {"width": 32, "heads": 4, "qk_norm": False, "positions": "sinusoidal"},
    {**AS_GPT2, "norm_first": False},
]


@pytest.fixture
def _on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def made(**choice: Any) -> GPT:
    torch.manual_seed(1)
    model = GPT(GPTSettings(**{**SMALL, **choice}), 50)
    return moved(model, 0.1)


def some_batch() -> Batch:
    tokens = torch.randint(50, (3, 13), generator=torch.Generator().manual_seed(2))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def gradients_of(model: GPT, fused: bool) -> dict[str, Tensor]:
    """The nats of a batch and the gradients of each parameter."""
    model.zero_grad()
    torch.manual_seed(3)
    with kernels.in_training(fused):
        nats, _, _ = model.loss(some_batch())
    nats.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"nats": nats.detach(), **gradients}


@pytest.mark.usefixtures("_on_any_device")
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_fused_or_not_a_model_has_the_same_gradients(choice: dict[str, Any]) -> None:
    model = made(**choice).train()
    unfused, fused = gradients_of(model, False), gradients_of(model, True)
    assert unfused.keys() == fused.keys()
    assert_close(fused, unfused, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("_on_any_device")
@pytest.mark.parametrize("stream", [False, True])
def test_in_mixed_precision_their_errors_are_about_as_large(stream: bool) -> None:
    model = made(**AS_GPT2).train()
    exact = gradients_of(model, False)
    with torch.autocast("cpu", torch.bfloat16), bfloat16_residual(stream):
        unfused, fused = gradients_of(model, False), gradients_of(model, True)

    def off(some: dict[str, Tensor]) -> Tensor:
        return torch.cat([(some[name] - exact[name]).flatten() for name in exact]).norm()

    length = torch.cat([gradient.flatten() for gradient in exact.values()]).norm()
    assert 0 < off(unfused) < 0.03 * length
    assert off(fused) < 1.3 * off(unfused)


@pytest.mark.usefixtures("_on_any_device")
def test_a_tap_sees_the_whole_residual_sum() -> None:
    model = made(**AS_GPT2)
    seen = []
    for fused in (False, True):
        with kernels.in_training(fused), watch(model, "stack.blocks.0.hidden", "stack.blocks.1.hidden") as found:
            model.loss(some_batch())
        seen.append({name: values[0] for name, values in found.items()})
    assert_close(seen[1], seen[0])


@pytest.mark.usefixtures("_on_any_device")
def test_kernels_are_called_only_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(module: ModuleType, name: str) -> None:
        whole = getattr(module, name)

        def call(*given: Any) -> Any:
            calls.append(name)
            return whole(*given)

        monkeypatch.setattr(module, name, call)

    counted(ops, "add_norm")
    counted(ops, "bias_act")
    model, batch = made(**AS_GPT2), some_batch()
    model.loss(batch)
    with kernels.in_training(True), torch.no_grad():
        model.loss(batch)
    assert calls == []
    with kernels.in_training(True):
        model.loss(batch)
    assert sorted(calls) == ["add_norm"] * 4 + ["bias_act"] * 2   # all norms but the first, which has no delta to add
    model.loss(batch)
    assert len(calls) == 6


@pytest.mark.usefixtures("_on_any_device")
@pytest.mark.parametrize(("choice", "fused"), [
    ({"width": 32}, True), ({"width": 32, "qk_norm": False}, True), ({"width": 32, "positions": "none"}, True),
    ({"width": 32, "norm_scale": True}, False), ({"width": 24}, False), ({"width": 32, **AS_GPT2}, False),
], ids=str)  # fmt: skip
def test_qk_norm_and_rope_are_fused_where_there_is_a_kernel(
    choice: dict[str, Any], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    whole = ops.qk_norm_rope
    monkeypatch.setattr(ops, "qk_norm_rope", lambda *given: calls.append(1) or whole(*given))
    with kernels.in_training(True):
        made(**choice).loss(some_batch())
    assert len(calls) == 2 * fused


@pytest.mark.usefixtures("_on_any_device")
def test_frozen_parameters_get_no_gradient() -> None:
    model = made(**AS_GPT2).train()
    whole = gradients_of(model, True)
    frozen = [name for name, _ in model.named_parameters() if name.endswith("bias") or "norm" in name]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    model.zero_grad(set_to_none=True)
    with kernels.in_training(True):
        model.loss(some_batch())[0].backward()
    for name, weight in model.named_parameters():
        assert (weight.grad is None) == (name in frozen)
        if weight.grad is not None:
            assert_close(weight.grad, whole[name])


@pytest.mark.usefixtures("_on_any_device")
def test_the_gradient_of_a_sum_alone_is_passed_on() -> None:
    x, delta = torch.randn(2, 3, 8, requires_grad=True), torch.randn(2, 3, 8, requires_grad=True)
    layer_norm = torch.nn.LayerNorm(8)
    torch.nn.init.normal_(layer_norm.weight)                           # equal weights would hide a gradient
    with kernels.in_training(True):
        total, _ = add_norm(x, delta, layer_norm)
    grads = torch.randn_like(total)
    assert_close(torch.autograd.grad(total, (x, delta), grads), (grads, grads))


def test_the_switch_of_training() -> None:
    with kernels.in_training(True):
        assert not kernels.use_in_training(torch.zeros(1, device="meta"))      # neither a CPU nor a GPU
        assert kernels.use_in_training(torch.zeros(1))
        with kernels.in_training(False):
            assert not kernels.use_in_training(torch.zeros(1))
        with torch.no_grad():
            assert not kernels.use_in_training(torch.zeros(1))
    assert not kernels.use_in_training(torch.zeros(1))
