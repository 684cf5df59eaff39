"""Each kernel against plain torch. Run by test_decode.py in a process of its own, with Triton's interpreter."""

import math
from typing import Any

import pytest
import torch
from contract import kernels_in_torch as reference
from test_decode import CHOICES, compare_steps, made
from torch import Tensor
from torch.testing import assert_close

from chainrule.inference.sampling import Sampling, sample_token
from chainrule.kernels import add_norm, bias_act, decode_attention, draw, qk_norm_rope, softmax_loss, step_parameters
from chainrule.kernels import linear as linears
from chainrule.layers import cross_entropy, decode
from chainrule.layers.positions import rope_tables

PRECISIONS = [(torch.float32, 1e-5), (torch.float16, 0.01), (torch.bfloat16, 0.08)]    # and how far they may err
EITHER = pytest.mark.parametrize(("dtype", "error"), PRECISIONS, ids=str)


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one after another."""
    monkeypatch.setattr(linears, "PROGRAMS", 3)
    torch.manual_seed(1)


def a_norm(kind: str, size: int, dtype: torch.dtype) -> add_norm.Norm:
    weight, bias = torch.randn(2, size).to(dtype)
    return add_norm.Norm(kind, 1e-5, weight, bias if kind == "layer" else None)


@EITHER
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_the_norm_of_a_sum(kind: str, dtype: torch.dtype, error: float) -> None:
    x, delta = torch.randn(2, 3, 40).to(dtype)
    how = a_norm(kind, 40, dtype)
    for given in (delta, None):
        wanted = reference.fused_add_norm(x, given, how)
        assert_close(add_norm.fused_add_norm(x, given, how), wanted, atol=2 * error, rtol=error)


LEVELS = [("rms", 40, 5), ("layer", 40, 5), ("rms", 1500, 2), ("layer", 1500, 2), ("layer", 600, 40)]


@EITHER
@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "width", "rows"), LEVELS)
def test_the_norm_of_a_sum_has_a_backward_pass(
    kind: str, width: int, rows: int, low: torch.dtype, dtype: torch.dtype, error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`dtype` of the residual stream, `low` of delta; rows for one program, or for several with some left over."""
    monkeypatch.setattr(add_norm, "MAX_PROGRAMS", 2)
    x, grads = torch.randn(2, 1, rows, width).to(dtype)
    delta, grad_normed = torch.randn(2, 1, rows, width).to(low)
    how = a_norm(kind, width, torch.float32)
    near = {"atol": 8 * error, "rtol": 2 * error}
    if low == torch.bfloat16:
        near = {"atol": 0.25, "rtol": 0.05}
    for weight, bias in ((how.weight, how.bias), (None, None)):
        upward = (x, delta, weight, bias, 1e-5, kind == "layer", low)
        sums, wanted = add_norm.add_norm_forward(*upward), reference.add_norm_forward(*upward)
        assert [part.dtype for part in sums[:2]] == [dtype, low]
        assert_close(sums[0], wanted[0], atol=2 * error, rtol=error)
        assert_close(sums[1], wanted[1], **near)
        assert_close(sums[2:], wanted[2:], atol=error, rtol=error)
        total, _, rstd, mean = wanted
        for grad_total in (grads, None):
            backward = (grad_total, grad_normed, total, rstd, mean, weight, kind == "layer", low, weight is not None)
            both = add_norm.add_norm_backward(*backward), reference.add_norm_backward(*backward)
            for one, other in zip(*both, strict=True):
                assert one.dtype == other.dtype
                assert_close(one, other, atol=near["atol"] * (rows if one.ndim < 3 else 1), rtol=near["rtol"])


@EITHER
@pytest.mark.parametrize("kind", ["relu", "relu2", "gelu", "gelu-tanh", "swiglu"])
@pytest.mark.parametrize(("rows", "width"), [(3, 40), (37, 2 * 1030)])
def test_bias_and_activation_have_a_backward_pass(
    kind: str, rows: int, width: int, dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bias_act, "MAX_PROGRAMS", 3)
    product, bias = torch.randn(1, rows, width).to(dtype), torch.randn(width)
    grad_out = torch.randn(1, rows, width // (1 + (kind == "swiglu"))).to(dtype)
    for shift in (bias, None):
        wanted = reference.bias_act_forward(product, shift, kind)
        assert_close(bias_act.bias_act_forward(product, shift, kind), wanted, atol=error, rtol=error)
        grad_product, grad_bias = bias_act.bias_act_backward(grad_out, product, shift, kind)
        wanted, wanted_bias = reference.bias_act_backward(grad_out, product, shift, kind)
        assert_close(grad_product, wanted, atol=error, rtol=error)
        assert_close(grad_bias, wanted_bias, atol=rows * error / 10, rtol=error)


HEADS = [(3, 1, 8, "rms", True), (2, 2, 16, "layer", True), (4, 2, 8, None, True), (5, 5, 4, "rms", False)]


@EITHER
@pytest.mark.parametrize(("queries", "keys", "size", "kind", "rotary"), HEADS)
@pytest.mark.parametrize("alike", [True, False])
def test_qk_norm_and_rope_have_a_backward_pass(
    queries: int, keys: int, size: int, kind: str | None, rotary: bool, alike: bool, dtype: torch.dtype, error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(qk_norm_rope, "MAX_PROGRAMS", 3)
    product = torch.randn(2, 5, (queries + 2 * keys) * size).to(dtype)
    positions = torch.arange(5)[None] if alike else torch.tensor([[0], [7]]) + torch.arange(5)
    tables = rope_tables(positions, size, 100.0, dtype) if rotary else (None, None)
    made = qk_norm_rope.qk_norm_rope_forward(product, *tables, queries, keys, 1e-5, kind)
    wanted = reference.qk_norm_rope_forward(product, *tables, queries, keys, 1e-5, kind)
    assert_close(made, wanted, atol=4 * error, rtol=error)
    grads = [torch.randn_like(part) for part in made]
    grad_product = qk_norm_rope.qk_norm_rope_backward(*grads, product, *tables, 1e-5, kind)
    wanted_grad = reference.qk_norm_rope_backward(*grads, product, *tables, 1e-5, kind)
    assert_close(grad_product, wanted_grad, atol=16 * error, rtol=2 * error)


@EITHER
@pytest.mark.parametrize("activation", [None, "relu", "relu2", "gelu", "gelu-tanh", "swiglu"])
def test_a_fused_linear_layer_has_its_norm_activation_and_residual(
    activation: str | None, dtype: torch.dtype, error: float
) -> None:
    x, weight, bias = torch.randn(3, 40).to(dtype), torch.randn(26, 40).to(dtype) / 6, torch.randn(26).to(dtype)
    outputs = 13 if activation == "swiglu" else 26
    more: dict[str, Any] = {"activation": activation, "residual": torch.randn(3, outputs).to(dtype)}
    for extra in (more, {"activation": activation}, {**more, "norm": a_norm("layer", 40, dtype)}):
        for shift in (bias, None):
            answer = linears.fused_linear(x, weight, shift, **extra)
            assert_close(answer, reference.fused_linear(x, weight, shift, **extra), atol=4 * error, rtol=4 * error)


CASES: list[tuple[int, int, int, str, int, str | None, bool]] = [
    (2, 2, 32, "full", 1, None, False),
    (4, 2, 32, "sliding", 1, "rms", True),
    (3, 1, 64, "full", 4, "layer", True),
    (2, 2, 32, "sliding", 2, "rms", False),
    (2, 1, 32, "local", 1, "rms", True),
    (2, 2, 64, "local", 4, None, False),
    (1, 1, 128, "full", 8, None, True),
]


@EITHER
@pytest.mark.parametrize(("heads", "groups", "size", "layer", "splits", "kind", "rotary"), CASES, ids=str)
def test_attention_reads_the_keys_of_each_row(
    heads: int, groups: int, size: int, layer: str, splits: int, kind: str | None, rotary: bool,
    dtype: torch.dtype, error: float,
) -> None:  # fmt: skip
    capacity, length = 150 if layer == "full" else 40, torch.tensor([0, 3, 70, 149])
    caches = torch.randn(2, 4, 3, groups, capacity, size).to(dtype)
    for row, held in enumerate(length.tolist()):                               # what comes after a row must not be read
        if layer != "sliding" or held < capacity:
            caches[:, row, :, :, held % capacity :] = math.nan
    packed = torch.randn(4, (heads + 2 * groups) * size).to(dtype)
    how: dict[str, Any] = {"layer": layer}
    if kind is not None:
        how["norms"] = a_norm(kind, size, dtype), a_norm(kind, size, dtype)
    if rotary:
        how["rope"] = [part[0, :, 0].contiguous() for part in rope_tables(torch.arange(150)[None], size, 100.0)]
    beside = caches.clone()
    delta = decode_attention.decode_attention(packed, *_layer(caches), length, splits=splits, **how)
    wanted = reference.decode_attention(packed, *_layer(beside), length, **how).mixed
    if splits > 1:
        delta = decode_attention.AttentionParts(linears.fused_linear(delta, torch.eye(heads * size, dtype=dtype)))
    assert_close(delta.mixed, wanted, atol=4 * error, rtol=error)
    assert_close(caches, beside, atol=4 * error, rtol=error, equal_nan=True)


def _layer(caches: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of one of several layers, as they lie in a cache."""
    return caches[0].unbind(1)[1], caches[1].unbind(1)[1]


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("choice", CHOICES[:3], ids=str)
def test_a_step_by_kernels_is_a_step(choice: dict[str, Any], rows: int) -> None:
    compare_steps(made(**choice), rows, steps=1)


WHOLE = [CHOICES[0], CHOICES[1], {**CHOICES[2], "window": None}, CHOICES[3]]


@pytest.mark.parametrize("choice", WHOLE, ids=str)
def test_a_step_in_one_kernel_is_a_step(choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With one program, which waits for no other."""
    monkeypatch.setattr(decode, "_on_gpu", lambda tensor: True)
    monkeypatch.setattr(decode, "_processors", lambda device: 1)
    monkeypatch.setattr(step_parameters, "fits", lambda *_: True)
    model = made(**choice)
    assert decode.fits_one_kernel(model, model.start(1))
    compare_steps(model, 1, steps=2)


@EITHER
@pytest.mark.parametrize(("cap", "label_smoothing"), [(None, 0.0), (None, 0.1), (3.0, 0.0), (3.0, 0.1)])
@pytest.mark.parametrize(("vocab", "width"), [(70, 128), (2048, 2048), (4500, 4544)])
def test_cross_entropy_and_its_gradient(
    vocab: int, width: int, cap: float | None, label_smoothing: float, dtype: torch.dtype, error: float
) -> None:
    logits, targets = 4 * torch.randn(5, width).to(dtype), torch.randint(vocab, (5,))
    nats, grads = softmax_loss.softmax_loss(logits, targets, vocab, cap, label_smoothing)
    wanted, beside = cross_entropy.cross_entropy_and_grad(logits.float(), targets, vocab, cap, label_smoothing)
    assert_close(nats, wanted, atol=1e-5, rtol=1e-5)
    assert_close(grads[:, :vocab].float(), beside[:, :vocab], atol=error / 10, rtol=error)
    assert not grads[:, vocab:].any()


@pytest.mark.parametrize(("temperature", "penalty"), [(1.0, 1.0), (0.7, 1.7), (5.0, 1.0), (1e-40, 1.0)])
def test_kernels_draw_the_same_tokens(temperature: float, penalty: float) -> None:
    logits, uniform = 3 * torch.randn(20, 2500), torch.rand(20, dtype=torch.float64)
    logits[0, :2400] = -math.inf
    logits[1], logits[1, 2499] = -math.inf, 0.0
    logits[2, ::2] = -math.inf
    uniform[:6] = torch.tensor([0.0, 1 - 2**-53, 1 - 2**-53, 0.0, 1 - 2**-53, 1.0])
    seen = None if penalty == 1 else torch.rand(20, 2500) < 0.3
    sampling = Sampling(temperature, repetition_penalty=penalty)
    token, possible = draw.draw_tokens(logits, uniform, temperature, seen, penalty)
    assert token.tolist() == sample_token(logits, sampling, uniform, seen)[0].tolist()
    assert possible.all()


@pytest.mark.parametrize("ends", [False, True])
def test_a_kernel_that_draws_in_place_goes_through_a_block_of_steps(ends: bool) -> None:
    rows, end_of_turn, temperature = 5, 7, 0.8
    numbers, columns = torch.rand(4, rows, dtype=torch.float64), torch.full((4, rows), -1)
    place, token = torch.tensor([-1]), torch.zeros(rows, dtype=torch.long)
    possible, ended = torch.ones(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.bool)
    over, can = ended.clone(), possible.clone()
    for step in range(4):
        logits = torch.randn(rows, 1100)
        logits[1, end_of_turn if step == 1 else 1050] = 99.0
        logits[2, 0 if step == 2 else 3] = 99.0
        logits[3] = torch.nan if step == 1 else logits[3]
        wanted, this = draw.draw_tokens(logits, numbers[step], temperature)
        can &= this
        if ends:
            wanted[over] = 0
            over |= (wanted == 0) | (wanted == end_of_turn)
        given = logits, numbers, place, columns, token, possible
        draw.draw_in_place(*given, ended if ends else None, end_of_turn if ends else None, temperature)
        assert token.tolist() == columns[step].tolist() == wanted.tolist()
        assert (ended.tolist(), possible.tolist(), place.tolist()) == (over.tolist(), can.tolist(), [step])
        assert (columns[step + 1 :] == -1).all()
    assert possible.tolist() == [True, True, True, False, True]
    assert ended[1:3].tolist() == [ends, ends]


def test_a_row_without_any_possible_token_is_reported() -> None:
    logits = torch.randn(4, 1100)
    logits[0], logits[1, 3], logits[2, 1050] = -math.inf, math.nan, math.inf
    token, possible = draw.draw_tokens(logits, torch.full((4,), 0.5, dtype=torch.float64))
    assert possible.tolist() == [False, False, False, True]
    assert ((token >= 0) & (token < 1100)).all()


def test_a_number_between_two_tokens_belongs_to_the_second() -> None:
    token, _ = draw.draw_tokens(torch.zeros(4, 4), torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64))
    assert token.tolist() == [0, 1, 2, 3]
