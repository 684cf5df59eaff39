"""Attention against worked numbers, brute force and torch; masks, RoPE and the other position encodings."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from transformers.models.t5.modeling_t5 import T5Attention

from chainrule.layers.attention import (
    Attention,
    AttentionMask,
    attend,
    attend_by_formula,
    causal_mask,
)
from chainrule.layers.kv_cache import LayerCache
from chainrule.layers.positions import RelativeBias, apply_rope, rope_tables, sinusoids
from chainrule.model import Tap, watch

ROWS, LENGTH, WIDTH = 2, 9, 16


def some(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def positions(length: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + length)[None]


def poll(weights: list[float], values: list[list[float]]) -> Tensor:
    """The output for a query whose scores give these attention weights."""
    key, value = torch.tensor(weights).log().view(1, 1, 4, 1), torch.tensor(values)[None, None]
    return attend_by_formula(torch.ones(1, 1, 1, 1), key, value, AttentionMask(), 0.0, Tap())[0, 0, 0]


def test_the_poll_of_the_lecture() -> None:
    x1, x2, x3, x4 = [1.0, 0, 0, 0], [0.0, 1, 0, 0], [0.0, 0, 2, 0], [0.0, 0, 0, 1]
    assert_close(poll([0.1, 0.2, 0.6, 0.1], [x1, x2, x3, x4]), torch.tensor([0.1, 0.2, 1.2, 0.1]))
    assert_close(poll([0.1, 0.6, 0.2, 0.1], [x1, x3, x2, x4]), torch.tensor([0.1, 0.2, 1.2, 0.1]))  # no order
    assert_close(poll([0.1, 0.2, 0.6, 0.1], [x1, x3, x2, x4]), torch.tensor([0.1, 0.6, 0.4, 0.1]))  # but weights


def test_the_formula_by_hand() -> None:
    query, key, value = (some(1, 1, LENGTH, 4, seed=seed) for seed in (1, 2, 3))
    mixed = attend_by_formula(query, key, value, AttentionMask(causal=True), 0.0, Tap())[0, 0]
    for now in range(LENGTH):
        scores = [math.exp(float(query[0, 0, now] @ key[0, 0, then]) / 2) for then in range(now + 1)]
        wanted = sum(score * value[0, 0, then] for then, score in enumerate(scores)) / sum(scores)
        assert_close(mixed[now], wanted)


MASKS = {
    "all": AttentionMask(),
    "causal": AttentionMask(causal=True),
    "window": AttentionMask(causal_mask(positions(LENGTH), torch.arange(LENGTH), 3)),
    "padding": AttentionMask((torch.arange(LENGTH) < torch.tensor([[9], [4]]))[:, None, None]),
    "bias": AttentionMask(some(1, 4, LENGTH, LENGTH, seed=5) + torch.full((LENGTH, LENGTH), -math.inf).triu(1)),
}


@pytest.mark.parametrize("keys", [4, 2, 1])
@pytest.mark.parametrize("mask_name", MASKS)
def test_the_fused_kernel_and_the_formula_agree(mask_name: str, keys: int) -> None:
    torch.manual_seed(1)
    attention = Attention(WIDTH, 4, keys, 4)
    x = some(ROWS, LENGTH, WIDTH)
    fused, _ = attention(x, MASKS[mask_name], rope_tables(positions(LENGTH), 4, 100.0))
    with watch(attention) as seen:
        written, _ = attention(x, MASKS[mask_name], rope_tables(positions(LENGTH), 4, 100.0))
    assert_close(fused, written)
    (pattern,) = seen["pattern"]
    assert pattern.shape == (ROWS, 4, LENGTH, LENGTH)
    assert_close(pattern.sum(-1), torch.ones(ROWS, 4, LENGTH))
    assert bool((pattern.triu(1) == 0).all()) == (mask_name not in ("all", "padding"))


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_without_queries_keys_and_values_x_attends_to_itself(heads: int, scaled: bool) -> None:
    """softmax(X Xᵀ) X, head by head; no parameters at all."""
    attention, x = Attention(WIDTH, heads, heads, WIDTH // heads, qkv=False, scaled=scaled), some(1, LENGTH, WIDTH)
    assert not list(attention.parameters())
    mixed, _ = attention(x, AttentionMask(causal=True))
    with watch(attention) as seen:
        assert_close(attention(x, AttentionMask(causal=True))[0], mixed)
    for now in range(LENGTH):
        for head, part in enumerate(x[0].chunk(heads, -1)):
            scores = torch.tensor([float(part[now] @ part[then]) for then in range(now + 1)])
            weights = (scores / (math.sqrt(WIDTH // heads) if scaled else 1)).softmax(-1)
            assert_close(mixed[0, now].chunk(heads)[head], weights @ part[: now + 1])
            assert_close(seen["pattern"][0][0, head, now, : now + 1], weights)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_a_window_is_what_a_brute_force_mask_says(window: int) -> None:
    query, key, value = (some(1, 2, LENGTH, 4, seed=seed) for seed in (1, 2, 3))
    mask = torch.tensor([[0 <= now - then < window for then in range(LENGTH)] for now in range(LENGTH)])
    seen = causal_mask(positions(LENGTH), torch.arange(LENGTH), window)
    assert torch.equal(seen[0, 0], mask)
    wanted = scaled_dot_product_attention(query, key, value, mask)
    assert_close(attend_by_formula(query, key, value, AttentionMask(seen), 0.0, Tap()), wanted)


def test_dropout_drops_attention_weights_only_in_training() -> None:
    torch.manual_seed(1)
    attention, x = Attention(WIDTH, 4, 4, 4, dropout=0.5), some(ROWS, LENGTH, WIDTH)
    for watched in (False, True):
        attention.pattern.callback = (lambda _: None) if watched else None
        once, again = (attention.train()(x, AttentionMask())[0] for _ in range(2))
        assert not torch.equal(once, again)
        assert torch.equal(attention.eval()(x, AttentionMask())[0], attention(x, AttentionMask())[0])


def test_a_cache_writes_each_row_at_its_own_position() -> None:
    keys, values = torch.zeros(2, 1, 6, 4), torch.zeros(2, 1, 6, 4)
    layer = LayerCache(keys, values, torch.tensor([[0, 1], [3, 4]]))
    new = some(2, 1, 2, 4)
    with torch.no_grad():
        written, _ = layer.write(new, -new)
    assert written is keys                                             # in place: the old state is not used again
    assert_close(keys[0, 0, :2], new[0, 0])
    assert_close(values[1, 0, 3:5], -new[1, 0])
    assert int((keys != 0).sum()) == new.numel()
    with torch.enable_grad():
        copied, _ = layer.write(new + 1, new)
    assert copied is not keys


@pytest.mark.parametrize("width", [9, 10])
def test_sinusoids_are_those_of_2017(width: int) -> None:
    table = sinusoids(torch.arange(50), width)
    assert table.shape == (50, width)
    for place, number in [(0, 0), (7, 0), (7, 3), (7, 6), (49, 8)]:
        angle = place / 10_000 ** (number // 2 * 2 / width)
        assert float(table[place, number]) == pytest.approx([math.sin, math.cos][number % 2](angle), abs=1e-5)


def test_rope_scores_depend_on_distances_only() -> None:
    query, key = some(1, 1, 1, 8, seed=1), some(1, 1, 1, 8, seed=2)

    def score(here: int, there: int) -> Tensor:
        near, far = rope_tables(positions(1, here), 8, 100.0), rope_tables(positions(1, there), 8, 100.0)
        return (apply_rope(query, near) * apply_rope(key, far)).sum()

    assert_close(score(9, 5), score(104, 100))
    assert not torch.isclose(score(9, 5), score(9, 6))
    assert_close(apply_rope(query, rope_tables(positions(1, 0), 8, 100.0)), query)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_relative_buckets_are_those_of_t5(bidirectional: bool) -> None:
    distance = torch.arange(-300, 300)
    wanted = T5Attention._relative_position_bucket(-distance, bidirectional, 32, 128)
    assert torch.equal(RelativeBias(2, bidirectional=bidirectional).bucket(distance), wanted)


def test_the_backward_pass_in_bfloat16_on_a_cpu_is_that_of_float32():
    """There the kernel gets float32, under autocast too; the output and the gradients have the dtype of the inputs."""
    query, key, value = (torch.randn(2, 3, 8, 4).bfloat16().requires_grad_() for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attend(query, key, value, AttentionMask(causal=True), 0.0, Tap())
    exact = attend(query.float(), key.float(), value.float(), AttentionMask(causal=True), 0.0, Tap())
    assert mixed.dtype == torch.bfloat16
    assert torch.equal(mixed, exact.bfloat16())
    upstream = torch.randn(mixed.shape).bfloat16()
    ours = torch.autograd.grad(mixed, (query, key, value), upstream)
    assert all(map(torch.equal, ours, torch.autograd.grad(exact, (query, key, value), upstream.float())))
