"""Float8 casts and products against the definition of the formats: a table of their numbers, and written-out sums."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from chainrule.kernels import float8, float8_layers, float8_output
from chainrule.kernels.float8 import E4M3, E5M2
from chainrule.layers import cross_entropy as chunked
from chainrule.layers.blocks import ACTIVATIONS
from chainrule.layers.cross_entropy import chunked_cross_entropy
from chainrule.model import IGNORE, Batch


def table(dtype):
    """All numbers of the format that are not negative, by their definition; numbers at even places have even codes."""
    mantissa, bias, codes = (3, 7, 127) if dtype == E4M3 else (2, 15, 124)
    parts = [divmod(code, 1 << mantissa) for code in range(codes)]
    values = [(part / 2**mantissa + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias) for exponent, part in parts]
    return torch.tensor(values, dtype=torch.float64)


def rounded(x, dtype, amax, limit):
    """x as float8 with a scale holds it, in float64: the nearest number of the table, of two the even one."""
    scale = 2.0 ** math.floor(math.log2(limit / amax))
    every = table(dtype)
    size = (x.double().abs() * scale).clamp(max=every[-1])
    above = torch.searchsorted(every, size).clamp(max=len(every) - 1)
    below = (above - 1).clamp(min=0)
    up, down = every[above] - size, size - every[below]
    place = torch.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return x.sign().double() * every[place] / scale


def by_sample(x, dtype):
    most, least, headroom = (448, 1 / 4, 4) if dtype == E4M3 else (57344, 1 / 16, 256)
    return rounded(x, dtype, max(float(x.abs().max()), least), most / headroom)


def exactly(weight):
    return rounded(weight, E4M3, float(weight.abs().max()), 448)


def numbers(*shape, seed=1, scale=1.0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return scale * x * torch.exp2(torch.randint(-6, 4, shape, generator=torch.Generator().manual_seed(seed + 1)))


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("scale", [1.0, 300.0, 1e-4])
def test_a_cast_is_the_nearest_number_of_the_format(dtype, scale):
    x = numbers(37, 24, scale=scale)
    found = float8.cast_rows(x, dtype, sums=True)
    assert found.plain.dtype == found.transposed.dtype == dtype
    assert_close(found.plain.double() * found.inverse.double(), by_sample(x, dtype), rtol=0, atol=0)
    assert_close(found.transposed[:, :37].float(), found.plain.T.float(), rtol=0, atol=0)
    assert found.transposed.shape == (24, 48)
    assert not found.transposed[:, 37:].float().any()
    assert_close(found.sums, x.sum(0))


def test_a_whole_tensor_uses_the_whole_range_and_a_sample_leaves_headroom():
    x = numbers(50, 16)
    exact = float8.cast(x, None, None, None, float8.exact_amax(float8.largest(x)), E4M3)
    assert 224 < exact.plain.float().abs().max() <= 448
    for dtype, headroom in ((E4M3, 4), (E5M2, 256)):
        most = torch.finfo(dtype).max
        assert most / headroom / 2 < float8.cast_rows(x, dtype).plain.float().abs().max() <= most / headroom


def test_the_largest_number_is_looked_for_in_a_sample_and_others_saturate(monkeypatch):
    monkeypatch.setattr(float8, "SAMPLE", 4)
    x = torch.ones(32, 16)
    x[1] = 100.0                                            # is not in the sample: every 8th row
    found = float8.cast_rows(x, E4M3)
    back = found.plain.float() * found.inverse
    assert (back[0] == 1).all()
    assert (back[1] == 7).all()                             # 448 / 64


@pytest.mark.parametrize(("dtype", "most"), [(E4M3, 1.75), (E5M2, 28.0)])
def test_a_sample_of_zeros_does_not_spoil_the_other_rows(monkeypatch, dtype, most):
    monkeypatch.setattr(float8, "SAMPLE", 1)
    x = torch.zeros(20, 16)
    x[3], x[4] = 0.5, 1000.0
    found = float8.cast_rows(x, dtype)
    back = found.plain.float() * found.inverse
    assert (back[3] == 0.5).all()
    assert (back[4] == most).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(value):
    x = torch.ones(4, 16)
    x[2, 3] = value
    found = float8.cast_rows(x, E4M3)
    weight = float8.cast_rows(torch.ones(16, 16), E4M3)
    product = float8.multiply(found.plain, weight.plain, found.inverse, weight.inverse, torch.float32)
    assert not product[2].isfinite().any()


def prepared(inputs, outputs, bias=True, seed=3):
    torch.manual_seed(seed)
    layer = torch.nn.Linear(inputs, outputs, bias)
    model = torch.nn.Sequential()
    model.add_module("blocks", torch.nn.ModuleList([torch.nn.ModuleDict({"up": layer})]))
    outer = torch.nn.ModuleDict({"stack": model})
    float8_layers.Casts(outer).refresh()
    return layer


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_and_its_gradients_are_the_written_out_products(monkeypatch, bias, small):
    monkeypatch.setattr(float8_layers, "MIN_WEIGHT", 1 << 20 if small else 1)
    layer, x, grad = prepared(32, 48, bias), numbers(3, 7, 32).requires_grad_(), numbers(3, 7, 48, seed=5)
    with float8_layers.in_training(True):
        out = float8_layers.linear(x, layer)
    out.backward(grad)
    rows, grads = by_sample(x.detach().flatten(0, 1), E4M3), by_sample(grad.flatten(0, 1), E5M2)
    weight = exactly(layer.weight.detach())
    wanted = rows @ weight.T + (layer.bias.detach().double() if bias else 0)
    close = {"rtol": 1e-5, "atol": 1e-4}
    assert_close(out.detach().flatten(0, 1), wanted.float(), **close)
    assert_close(x.grad.flatten(0, 1), (grads @ weight).float(), **close)
    if small:                                               # its gradient is not in float8
        grads, rows = grad.flatten(0, 1).double(), x.detach().flatten(0, 1).double()
    assert_close(layer.weight.grad, (grads.T @ rows).float(), **close)
    if bias:
        assert_close(layer.bias.grad, grad.flatten(0, 1).sum(0), **close)


def test_a_frozen_weight_has_no_gradient():
    layer, x = prepared(16, 32), numbers(5, 16).requires_grad_()
    layer.requires_grad_(False)
    with float8_layers.in_training(True):
        float8_layers.linear(x, layer).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is None
    assert x.grad.any()


@pytest.mark.parametrize("activation", ["relu", "relu2", "gelu", "gelu-tanh", "swiglu"])
def test_a_feed_forward_layer_and_its_gradients_are_the_written_out_products(activation):
    wide = 64 if activation == "swiglu" else 32
    up, out = prepared(16, wide), prepared(32, 16, seed=4)
    x, grad = numbers(21, 16, scale=0.5).requires_grad_(), numbers(21, 16, seed=5, scale=0.1)
    with float8_layers.in_training(True):
        result = float8_layers.feed_forward(x, up, out, activation)
    result.backward(grad)

    rows, up8, out8 = by_sample(x.detach(), E4M3), exactly(up.weight.detach()), exactly(out.weight.detach())
    before = ((rows @ up8.T).float() + up.bias.detach()).requires_grad_()
    hidden = ACTIVATIONS[activation](before)
    hidden8, grad8 = by_sample(hidden.detach(), E4M3), by_sample(grad, E5M2)
    (grad_before,) = torch.autograd.grad(hidden, before, (grad8 @ out8).float())
    before8 = by_sample(grad_before, E5M2)
    near = {"rtol": 1e-3, "atol": 2e-3}                     # a number at the middle may be rounded the other way
    assert_close(result.detach(), (hidden8 @ out8.T).float() + out.bias.detach(), **near)
    assert_close(x.grad, (before8 @ up8).float(), **near)
    assert_close(up.weight.grad, (before8.T @ rows).float(), **near)
    assert_close(up.bias.grad, grad_before.sum(0), **near)
    assert_close(out.weight.grad, (grad8.T @ hidden8).float(), **near)
    assert_close(out.bias.grad, grad.sum(0), **near)


@pytest.mark.parametrize("cap", [None, 3.0])
def test_the_output_in_float8_has_the_written_out_loss_and_gradients(monkeypatch, cap):
    """In chunks of 16, of which the last is smaller; some targets do not count."""
    monkeypatch.setattr(chunked, "FUSED_DEVICES", {"cpu"})
    monkeypatch.setattr(chunked, "MIN_FUSED_VOCAB", 1)
    monkeypatch.setitem(chunked.VOCAB_MULTIPLE, "cpu", 16)
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cpu", 16 * 40)
    hidden, weight = numbers(37, 32, scale=0.3).requires_grad_(), (0.1 * numbers(40, 32, seed=7)).requires_grad_()
    targets = torch.randint(40, (1, 37), generator=torch.Generator().manual_seed(1))
    targets[0, 5:8] = IGNORE
    with float8_layers.in_training(True):
        loss, count = chunked_cross_entropy(hidden[None], weight, None, Batch(targets, targets), cap)
    loss.backward()
    assert count == 34

    size = chunked.chunk_rows(37, 40, "cpu")
    assert 37 % size
    total, grad_hidden, grad_weight = 0.0, [], 0.0
    weight8 = exactly(weight.detach())
    for first in range(0, 37, size):
        here = slice(first, first + size)
        some, goal = hidden.detach()[here], targets[0, here]
        counts = (goal != IGNORE).double()[:, None]
        logits = (by_sample(some, E4M3) @ weight8.T).requires_grad_()
        capped = logits if cap is None else cap * torch.tanh(logits / cap)
        each = torch.nn.functional.cross_entropy(capped, goal.clamp(min=0), reduction="none")
        (grad,) = torch.autograd.grad(each.sum(), logits)
        grad8 = rounded(grad, E5M2, 1.0, float8_output.GRAD_SCALE)
        total = total + (each.detach() @ counts).sum()
        grad_hidden.append((grad8 @ weight8) * counts)
        grad_weight = grad_weight + grad8.T @ by_sample(some * counts.float(), E4M3)
    assert_close(float(loss.detach()), float(total), rtol=1e-5, atol=1e-4)
    near = {"rtol": 1e-3, "atol": 1e-3}
    assert_close(hidden.grad, torch.cat(grad_hidden).float(), **near)
    assert_close(weight.grad, grad_weight.float(), **near)


@pytest.mark.parametrize(("bias", "small"), [(True, False), (False, True)])
def test_the_operators_say_what_they_return(monkeypatch, bias, small):
    """Shapes, strides and dtypes of real results, which torch.compile learns from empty ones."""
    monkeypatch.setattr(float8_layers, "MIN_WEIGHT", 1 << 20 if small else 1)
    up, out, x, grad = prepared(16, 32, bias), prepared(32, 16, bias), numbers(3, 7, 16), numbers(3, 7, 16)
    casts = [(each.weight8, each.weight8_t, each.inverse8) for each in (up, out)]
    ops = torch.ops.chainrule
    one = (x, up.weight, up.bias, *casts[0], torch.float32)
    two = (x, up.weight, up.bias, out.weight, out.bias, *casts[0], *casts[1], "gelu", torch.float32)
    linear = x if small else None, *ops.float8_linear(*one)[1:]
    _, *saved = ops.float8_feed_forward(*two)
    backward = (grad, *saved, up.bias, *casts[0][1:], *casts[1][1:], "gelu", bias, torch.float32)
    calls = [
        (ops.float8_linear, one), (ops.float8_feed_forward, two), (ops.float8_feed_forward_backward, backward),
        (ops.float8_linear_backward, (numbers(3, 7, 32), *linear, *casts[0][1:], True, bias, torch.float32)),
        (ops.float8_linear_backward, (numbers(3, 7, 32), *linear, *casts[0][1:], False, bias, torch.float32)),
        (ops.float8_cast, (x[0], False)), (ops.float8_transpose, (casts[0][0],)),
        (ops.float8_product, (casts[0][0], casts[0][0], casts[0][2], casts[0][2], torch.bfloat16, True)),
    ]
    with torch.no_grad():
        for op, given in calls:
            found = op(*given)
            said = op(*(each.to("meta") if isinstance(each, Tensor) else each for each in given))
            for real, empty in zip(*((each,) if isinstance(each, Tensor) else each for each in (found, said))):
                assert (real.shape, real.dtype, real.stride()) == (empty.shape, empty.dtype, empty.stride()), op
