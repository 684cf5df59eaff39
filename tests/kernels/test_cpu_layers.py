"""The C++ kernels for training on a CPU give what plain torch gives, in float32 and bfloat16, in one thread or two."""

from typing import Any

import pytest
import torch
from contract import kernels_in_torch as reference
from test_ops import CHOICES, gradients_of, made
from torch import Tensor
from torch.testing import assert_close

from chainrule import kernels
from chainrule.device import bfloat16_residual
from chainrule.kernels.cpu import layers

FLOAT, ROUNDED = torch.float32, torch.bfloat16
TOLERANCES: dict[torch.dtype, dict[str, float]] = {FLOAT: {"atol": 1e-5, "rtol": 1e-5},
                                                  ROUNDED: {"atol": 0.05, "rtol": 0.02}}
EITHER = pytest.mark.parametrize("dtype", [FLOAT, ROUNDED], ids=str)
SIZES = [(1, 1), (3, 1), (2, 7, 40), (5, 33), (9, 96)]


@pytest.fixture(autouse=True, params=[1, 2], ids=["one thread", "two threads"])
def _threads(request, _compiled_layers):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(1)
    yield
    torch.set_num_threads(before)


def some(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.randn(*shape).to(dtype)


def transposed(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    """Numbers that do not lie one after the other."""
    return some(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT


def check(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other.view(one.shape), **TOLERANCES[dtype])


@EITHER
@pytest.mark.parametrize("stream", [FLOAT, ROUNDED], ids=["float32 stream", "bfloat16 stream"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_sum_and_its_norm(dtype, stream, weighted):
    for shape in SIZES:
        x, delta = transposed(*shape, dtype=stream), transposed(*shape, dtype=dtype)
        weight = some(shape[-1]) if weighted else None
        given = x, delta, weight, None, 1e-5, False, dtype
        total, out, rstd, mean = layers.add_norm_forward(*given)
        loose = max(dtype, stream, key=[FLOAT, ROUNDED].index)
        check((total, out), reference.add_norm_forward(*given)[:2], loose)
        check((rstd, mean), reference.add_norm_forward(total, torch.zeros_like(delta), *given[2:])[2:], FLOAT)


@EITHER
@pytest.mark.parametrize("added", [False, True], ids=["alone", "added"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_the_gradient_of_a_sum_and_its_norm(dtype, added, weighted):
    for shape in SIZES[2:]:
        weight = some(shape[-1]) if weighted else None
        total, _, rstd, mean = layers.add_norm_forward(
            some(*shape), some(*shape, dtype=dtype), weight, None, 1e-2, False, dtype
        )
        grad_total, grad = transposed(*shape) if added else None, transposed(*shape, dtype=dtype)
        given = grad_total, grad, total, rstd, mean, weight, False, dtype, weighted
        found, wanted = layers.add_norm_backward(*given), reference.add_norm_backward(*given)
        check(found[:2], wanted[:2], dtype)
        assert_close(found[2], wanted[2][:1], atol=1e-4, rtol=1e-4)


@EITHER
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_norm_alone(dtype, weighted):
    for shape in SIZES:
        x, weight = transposed(*shape, dtype=dtype), some(shape[-1]) if weighted else None
        found, rstd = layers.norm_forward(x, weight, 1e-2)
        wanted = reference.add_norm_forward(x, torch.zeros_like(x), weight, None, 1e-2, False, dtype)
        check([found], wanted[1:2], dtype)
        check([rstd], wanted[2:3], FLOAT)
        grad = transposed(*shape, dtype=dtype)
        back = reference.add_norm_backward(None, grad, x, rstd, rstd, weight, False, dtype, weighted)
        grad_x, columns = layers.norm_backward(grad, x, rstd, weight)
        check([grad_x], back[:1], dtype)
        assert_close(columns, back[2][:1], atol=1e-4, rtol=1e-4)


@EITHER
@pytest.mark.parametrize("biased", [False, True])
def test_relu2(dtype, biased):
    for shape in SIZES:
        product, bias = transposed(*shape, dtype=dtype), some(shape[-1]) if biased else None
        grad = transposed(*shape, dtype=dtype)
        check([layers.bias_act_forward(product, bias, "relu2")],
              [reference.bias_act_forward(product, bias, "relu2")], dtype)
        found, wanted = (module.bias_act_backward(grad, product, bias, "relu2") for module in (layers, reference))
        check(found[:1], wanted[:1], dtype)
        assert_close(found[1], wanted[1], atol=0.05 if dtype == ROUNDED else 1e-4, rtol=0.02)


@EITHER
@pytest.mark.parametrize("norm", [None, "rms"])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(("queries", "keys", "size"), [(3, 3, 8), (4, 2, 32), (2, 1, 6), (1, 1, 66)])
def test_qk_norm_and_rope(dtype, norm, rotated, queries, keys, size):
    packed = transposed(2, 5, (queries + 2 * keys) * size, dtype=dtype)
    angles = torch.randn(1, 5, 1, size // 2)
    tables = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
    cos, sin = tables if rotated else (None, None)
    given = packed, cos, sin, queries, keys, 1e-2, norm
    wanted = reference.qk_norm_rope_forward(*given)
    check(layers.qk_norm_rope_forward(*given), wanted, dtype)
    grads = [transposed(*part.shape, dtype=dtype) for part in wanted]
    back = *grads, packed, cos, sin, 1e-2, norm
    check([layers.qk_norm_rope_backward(*back)], [reference.qk_norm_rope_backward(*back)], dtype)


def test_each_row_of_a_batch_may_have_its_own_positions():
    angles = torch.randn(2, 5, 1, 4)
    tables = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
    given = some(2, 5, 24), *tables, 1, 1, 1e-6, "rms"
    check(layers.qk_norm_rope_forward(*given), reference.qk_norm_rope_forward(*given), FLOAT)


def splitmix(x: int) -> int:
    """The first number of Steele, Lea & Flood's generator for this seed, with Python's integers."""
    kept = 2**64 - 1
    x = x * 0x9E3779B97F4A7C15 & kept
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & kept
    x = (x ^ x >> 27) * 0x94D049BB133111EB & kept
    return x ^ x >> 31


@pytest.mark.parametrize("key", [7, -5, 2**63 - 3])
def test_the_mask_of_dropout_follows_from_its_key(key):
    words = (splitmix((key + place) % 2**64) for place in range(50))
    levels = torch.tensor([word >> 16 * part & 0xFFFF for word in words for part in range(4)])[:197]
    assert_close(layers.dropout(torch.ones(197), 0.25, key), torch.where(levels < 0.25 * 65536, 0.0, 1 / 0.75))


def test_no_rows_are_no_error():
    none = torch.empty(0, 4, 24)
    total, out, rstd, _ = layers.add_norm_forward(none, none, None, None, 1e-6, False, FLOAT)
    assert total.shape == out.shape == none.shape
    assert len(rstd) == 0
    assert layers.bias_act_backward(none, none, torch.ones(24), "relu2")[1].tolist() == [0] * 24
    assert layers.qk_norm_rope_forward(none, None, None, 1, 1, 1e-6, "rms")[0].shape == (0, 4, 1, 8)


def test_what_has_no_kernel_is_refused():
    x = some(2, 24)
    for call in (
        lambda: layers.add_norm_forward(x, x, None, None, 1e-6, True, FLOAT),
        lambda: layers.bias_act_forward(x, None, "gelu"),
        lambda: layers.qk_norm_rope_forward(x, None, None, 1, 1, 1e-6, "layer"),
    ):
        with pytest.raises(NotImplementedError, match="RMSNorm and ReLU²"):
            call()


@EITHER
def test_what_is_not_a_number_stays_so(dtype):
    """Or a step that diverged would go unnoticed."""
    x = some(3, 24, dtype=dtype)
    x[1, 3] = torch.nan
    assert layers.bias_act_forward(x, None, "relu2").isnan().tolist() == x.isnan().tolist()
    _, out, *_ = layers.add_norm_forward(x, x, None, None, 1e-6, False, dtype)
    assert out.isnan().any(1).tolist() == [False, True, False]
    query, *_ = layers.qk_norm_rope_forward(x, None, None, 1, 1, 1e-6, "rms")
    assert query.isnan().any(-1).flatten().tolist() == [False, True, False]


def test_bfloat16_is_rounded_as_torch_rounds_it():
    """Half of the distance between two numbers goes to the even one: here half of 1/128, up and down in turn."""
    every = (1 + torch.arange(128) / 128).to(ROUNDED)
    for more in (1 / 256, 1 / 300, 1 / 200):
        delta = torch.full_like(every, more)
        total, *_ = layers.add_norm_forward(every, delta, None, None, 1.0, False, ROUNDED)
        assert torch.equal(total, every + delta)
    relu2 = layers.bias_act_forward(every, None, "relu2")
    assert torch.equal(relu2, every.float().square().to(ROUNDED))


WITHOUT_DROPOUT = [choice for choice in CHOICES if "dropout" not in choice]    # its masks are others (test_dropout.py)


@pytest.mark.parametrize("choice", [*WITHOUT_DROPOUT, {"width": 32, "heads": 4, "biases": True}], ids=str)
def test_a_model_has_the_same_gradients(choice):
    model = made(**choice).train()
    assert_close(gradients_of(model, True), gradients_of(model, False), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("stream", [False, True])
def test_in_mixed_precision_errors_are_about_as_large(stream):
    model = made(width=32, heads=4).train()
    exact = gradients_of(model, False)
    with torch.autocast("cpu", torch.bfloat16), bfloat16_residual(stream):
        plain, fused = gradients_of(model, False), gradients_of(model, True)

    def off(found):
        return torch.cat([(found[name] - exact[name]).flatten() for name in exact]).norm()

    assert 0 < off(fused) < 1.3 * off(plain)


def test_they_are_called_in_training(monkeypatch):
    called = []
    names = ["add_norm_forward", "bias_act_forward", "norm_forward", "qk_norm_rope_forward"]
    for name in names:
        whole = getattr(layers, name)
        monkeypatch.setattr(layers, name, lambda *given, name=name, whole=whole: called.append(name) or whole(*given))
    model = made(width=32, heads=4).train()
    gradients_of(model, False)
    assert called == []
    gradients_of(model, True)
    assert sorted(set(called)) == names
    assert kernels.use_in_training(torch.zeros(1)) is False
