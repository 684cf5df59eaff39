"""Each kernel beside its judge. Run by test_decode.py in a process of its own, with Triton's interpreter."""

import math
from typing import Any

import pytest
import torch
from contract import kernels_in_torch as judge
from test_decode import CHOICES, both_ways, made
from torch import Tensor
from torch.testing import assert_close

from chainrule.inference.sampling import Sampling, sample_token
from chainrule.kernels import add_norm, bias_act, decode_attention, draw, qk_norm_rope, softmax_loss
from chainrule.kernels import linear as linears
from chainrule.layers import cross_entropy
from chainrule.layers.positions import rope_tables

PRECISIONS = [(torch.float32, 1e-5), (torch.float16, 0.01), (torch.bfloat16, 0.08)]    # and how far they may err
EITHER = pytest.mark.parametrize(("dtype", "error"), PRECISIONS, ids=str)


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one after another."""
    monkeypatch.setattr(linears, "PROGRAMS", 3)
    torch.manual_seed(1)


def a_norm(kind: str, size: int, dtype: torch.dtype) -> add_norm.Norm:
    gains, shift = torch.randn(2, size).to(dtype)
    return add_norm.Norm(kind, 1e-5, gains, shift if kind == "layer" else None)


@EITHER
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_sum_is_normed(kind: str, dtype: torch.dtype, error: float) -> None:
    x, found = torch.randn(2, 3, 40).to(dtype)
    how = a_norm(kind, 40, dtype)
    for given in (found, None):
        assert_close(add_norm.add_norm(x, given, how), judge.add_norm(x, given, how), atol=2 * error, rtol=error)


LEVELS = [("rms", 40, 5), ("layer", 40, 5), ("rms", 1500, 2), ("layer", 1500, 2), ("layer", 600, 40)]


@EITHER
@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "width", "rows"), LEVELS)
def test_a_sum_is_normed_and_goes_back(
    kind: str, width: int, rows: int, low: torch.dtype, dtype: torch.dtype, error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`dtype` of the stream, `low` of what is found; rows that one program has, or several, and some left over."""
    monkeypatch.setattr(add_norm, "PROGRAMS", 2)
    x, slopes = torch.randn(2, 1, rows, width).to(dtype)
    found, to_normed = torch.randn(2, 1, rows, width).to(low)
    how = a_norm(kind, width, torch.float32)
    near = {"atol": 8 * error, "rtol": 2 * error}
    if low == torch.bfloat16:
        near = {"atol": 0.25, "rtol": 0.05}
    for gains, shift in ((how.gains, how.shift), (None, None)):
        upward = (x, found, gains, shift, 1e-5, kind == "layer", low)
        sums, wanted = add_norm.add_norm_to_learn(*upward), judge.add_norm_to_learn(*upward)
        assert [part.dtype for part in sums[:2]] == [dtype, low]
        assert_close(sums[0], wanted[0], atol=2 * error, rtol=error)
        assert_close(sums[1], wanted[1], **near)
        assert_close(sums[2:], wanted[2:], atol=error, rtol=error)
        total, _, scale, mean = wanted
        for to_total in (slopes, None):
            backward = (to_total, to_normed, total, scale, mean, gains, kind == "layer", low, gains is not None)
            for one, other in zip(add_norm.add_norm_back(*backward), judge.add_norm_back(*backward), strict=True):
                assert one.dtype == other.dtype
                assert_close(one, other, atol=near["atol"] * (rows if one.ndim < 3 else 1), rtol=near["rtol"])


@EITHER
@pytest.mark.parametrize("kind", ["relu", "relu2", "gelu", "gelu-tanh", "swiglu"])
@pytest.mark.parametrize(("rows", "width"), [(3, 40), (37, 2 * 1030)])
def test_an_activation_and_its_bias_go_back(
    kind: str, rows: int, width: int, dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bias_act, "PROGRAMS", 3)
    product, bias = torch.randn(1, rows, width).to(dtype), torch.randn(width)
    above = torch.randn(1, rows, width // (1 + (kind == "swiglu"))).to(dtype)
    for shift in (bias, None):
        assert_close(bias_act.bend(product, shift, kind), judge.bend(product, shift, kind), atol=error, rtol=error)
        below, sums = bias_act.bend_back(above, product, shift, kind)
        wanted, beside = judge.bend_back(above, product, shift, kind)
        assert_close(below, wanted, atol=error, rtol=error)
        assert_close(sums, beside, atol=rows * error / 10, rtol=error)


HEADS = [(3, 1, 8, "rms", True), (2, 2, 16, "layer", True), (4, 2, 8, None, True), (5, 5, 4, "rms", False)]


@EITHER
@pytest.mark.parametrize(("queries", "keys", "size", "kind", "rotary"), HEADS)
@pytest.mark.parametrize("alike", [True, False])
def test_heads_are_normed_and_turned_and_go_back(
    queries: int, keys: int, size: int, kind: str | None, rotary: bool, alike: bool, dtype: torch.dtype, error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(qk_norm_rope, "PROGRAMS", 3)
    product = torch.randn(2, 5, (queries + 2 * keys) * size).to(dtype)
    places = torch.arange(5)[None] if alike else torch.tensor([[0], [7]]) + torch.arange(5)
    tables = rope_tables(places, size, 100.0, dtype) if rotary else (None, None)
    made = qk_norm_rope.heads(product, *tables, queries, keys, 1e-5, kind)
    assert_close(made, judge.heads(product, *tables, queries, keys, 1e-5, kind), atol=4 * error, rtol=error)
    slopes = [torch.randn_like(part) for part in made]
    below = qk_norm_rope.heads_back(*slopes, product, *tables, 1e-5, kind)
    assert_close(below, judge.heads_back(*slopes, product, *tables, 1e-5, kind), atol=16 * error, rtol=2 * error)


@EITHER
@pytest.mark.parametrize("bent", [None, "relu", "relu2", "gelu", "gelu-tanh", "swiglu"])
def test_a_map_is_all_that_goes_before_it_and_comes_after(
    bent: str | None, dtype: torch.dtype, error: float
) -> None:
    x, weight, bias = torch.randn(3, 40).to(dtype), torch.randn(26, 40).to(dtype) / 6, torch.randn(26).to(dtype)
    outputs = 13 if bent == "swiglu" else 26
    more: dict[str, Any] = {"activation": bent, "added": torch.randn(3, outputs).to(dtype)}
    for extra in (more, {"activation": bent}, {**more, "norm": a_norm("layer", 40, dtype)}):
        for shift in (bias, None):
            answer = linears.linear(x, weight, shift, **extra)
            assert_close(answer, judge.linear(x, weight, shift, **extra), atol=4 * error, rtol=4 * error)


CASES: list[tuple[int, int, int, int | None, int, str | None, bool]] = [
    (2, 2, 32, None, 1, None, False),
    (4, 2, 32, 7, 1, "rms", True),
    (3, 1, 64, None, 4, "layer", True),
    (2, 2, 32, 5, 2, "rms", False),
    (1, 1, 128, None, 8, None, True),
]


@EITHER
@pytest.mark.parametrize(("heads", "groups", "size", "window", "splits", "kind", "rotary"), CASES, ids=str)
def test_attention_looks_at_what_is_there(
    heads: int, groups: int, size: int, window: int | None, splits: int, kind: str | None, rotary: bool,
    dtype: torch.dtype, error: float,
) -> None:  # fmt: skip
    room, length = 150, torch.tensor([0, 3, 70, 149])
    caches = torch.randn(2, 4, 3, groups, room, size).to(dtype)
    caches[:, :, :, :, 149:] = math.nan                                        # what is behind a row must not be read
    caches[:, 1, :, :, 3:] = math.nan
    projected = torch.randn(4, (heads + 2 * groups) * size).to(dtype)
    how: dict[str, Any] = {"window": window}
    if kind is not None:
        how["norms"] = a_norm(kind, size, dtype), a_norm(kind, size, dtype)
    if rotary:
        how["rope"] = [part[0, :, 0].contiguous() for part in rope_tables(torch.arange(room)[None], size, 100.0)]
    beside = caches.clone()
    found = decode_attention.attend(projected, *_layer(caches), length, splits=splits, **how)
    wanted = judge.attend(projected, *_layer(beside), length, **how).mixed
    if splits > 1:
        found = decode_attention.Parts(linears.linear(found, torch.eye(heads * size, dtype=dtype)))
    assert_close(found.mixed, wanted, atol=4 * error, rtol=error)
    assert_close(caches, beside, atol=4 * error, rtol=error, equal_nan=True)


def _layer(caches: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of one of several layers, as they lie in a cache."""
    return caches[0].unbind(1)[1], caches[1].unbind(1)[1]


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("choice", CHOICES[:3], ids=str)
def test_a_step_by_kernels_is_a_step(choice: dict[str, Any], rows: int) -> None:
    both_ways(made(**choice), rows, turns=1)


@EITHER
@pytest.mark.parametrize(("cap", "smoothing"), [(None, 0.0), (None, 0.1), (3.0, 0.0), (3.0, 0.1)])
@pytest.mark.parametrize(("vocab", "width"), [(70, 128), (2048, 2048), (4500, 4544)])
def test_surprise_and_its_gradient(
    vocab: int, width: int, cap: float | None, smoothing: float, dtype: torch.dtype, error: float
) -> None:
    logits, targets = 4 * torch.randn(5, width).to(dtype), torch.randint(vocab, (5,))
    nats, slopes = softmax_loss.surprise(logits, targets, vocab, cap, smoothing)
    wanted, beside = cross_entropy.surprises(logits.float(), targets, vocab, cap, smoothing)
    assert_close(nats, wanted, atol=1e-5, rtol=1e-5)
    assert_close(slopes[:, :vocab].float(), beside[:, :vocab], atol=error / 10, rtol=error)
    assert not slopes[:, vocab:].any()


@pytest.mark.parametrize(("temperature", "penalty"), [(1.0, 1.0), (0.7, 1.7), (5.0, 1.0), (1e-40, 1.0)])
def test_the_die_falls_where_it_fell(temperature: float, penalty: float) -> None:
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


def test_where_nothing_is_possible_the_die_says_so() -> None:
    logits = torch.randn(4, 1100)
    logits[0], logits[1, 3], logits[2, 1050] = -math.inf, math.nan, math.inf
    token, possible = draw.draw_tokens(logits, torch.full((4,), 0.5, dtype=torch.float64))
    assert possible.tolist() == [False, False, False, True]
    assert ((token >= 0) & (token < 1100)).all()


def test_a_number_between_two_shares_belongs_to_the_second() -> None:
    token, _ = draw.draw_tokens(torch.zeros(4, 4), torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64))
    assert token.tolist() == [0, 1, 2, 3]
