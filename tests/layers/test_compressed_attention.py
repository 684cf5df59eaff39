"""Memory-compressed attention against a strided convolution and a sum by loops; what a query near a boundary sees."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d
from torch.testing import assert_close

from chainrule.layers.attention import TokenLayout
from chainrule.layers.compressed_attention import CompressedAttention, spread
from chainrule.model import watch

ROWS, WIDTH, HEAD = 2, 8, 4


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def made(*, causal: bool = True, stride: int = 3, **options: Any) -> CompressedAttention:
    torch.manual_seed(1)
    return CompressedAttention(WIDTH, 2, 1, HEAD, stride=stride, causal=causal, **options)


def layout(tokens: int, *, causal: bool = True, **more: Any) -> TokenLayout:
    return TokenLayout(torch.arange(tokens)[None], ROWS, causal, **more)


def shortened(linear: Any, part: Tensor, stride: int) -> Tensor:
    """(T, d) -> (M, d): torch's convolution of kernel and stride `stride`, along the tokens."""
    if len(part) < stride:
        return part[:0]
    kernel = linear.weight.unflatten(1, (stride, -1)).transpose(1, 2)            # (outputs, inputs, kernel)
    return conv1d(part.T[None], kernel, linear.bias, stride)[0].T


def by_loops(attention: CompressedAttention, x: Tensor, visible: Any) -> Tensor:
    """One row (T, D): the null key has score 0 and value 0; key i is added where `visible(t, i)`."""
    stride, size = attention.stride, attention.head_size
    assert attention.project is not None
    query, key, value = attention.project(x).split(attention.parts, -1)
    keys, values = shortened(attention.compress_keys, key, stride), shortened(attention.compress_values, value, stride)
    rows = []
    for now in range(len(x)):
        mixed = []
        for head in range(2):
            q = query[now, size * head : size * head + size]
            total, whole = torch.zeros(size), 1.0                                # exp(0) of the null key
            for place in range(len(keys)):
                if visible(now, place):
                    weight = math.exp(float(q @ keys[place]) / math.sqrt(size))
                    total, whole = total + weight * values[place], whole + weight
            mixed.append(total / whole)
        rows.append(attention.out(torch.cat(mixed)))
    return torch.stack(rows)


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 12, 13])
@torch.no_grad()
def test_it_is_the_sum_over_the_whole_groups_so_far(tokens: int, stride: int) -> None:
    attention, x = made(stride=stride, bias=True), some(ROWS, tokens, WIDTH)
    torch.nn.init.normal_(attention.compress_keys.bias)
    mixed, _ = attention(x, attention.mask(layout(tokens)))
    masked, _ = attention(x, attention.mask(layout(tokens), whole=True))
    for row in range(ROWS):
        wanted = by_loops(attention, x[row], lambda now, place: stride * place + stride - 1 <= now)
        assert_close(mixed[row], wanted)
        assert_close(masked[row], wanted)


@pytest.mark.parametrize("changed", [3, 4, 5, 6])
@torch.no_grad()
def test_a_group_is_seen_from_its_last_token_on(changed: int) -> None:
    """Token 3, 4 or 5 changes the key of the group 3 to 5, which queries from 5 on see; and its own query."""
    attention, x = made(), some(1, 10, WIDTH)
    other = x.clone()
    other[0, changed] += 1
    before, after = (attention(each, attention.mask(layout(10)))[0][0] for each in (x, other))
    differs = {place for place in range(10) if not torch.allclose(before[place], after[place], atol=1e-6)}
    end = changed // 3 * 3 + 2
    assert differs == {changed, *range(end, 10)}


@torch.no_grad()
def test_a_query_before_the_first_group_gets_zeros() -> None:
    attention = made(bias=True)
    mixed, _ = attention(some(1, 4, WIDTH), attention.mask(layout(4)))
    assert_close(mixed[0, :2], attention.out.bias.expand(2, -1))
    assert not torch.allclose(mixed[0, 2], attention.out.bias)


@pytest.mark.parametrize("lengths", [[7, 7], [7, 4]])
@torch.no_grad()
def test_an_encoder_sees_every_group_and_no_padding(lengths: list[int]) -> None:
    attention, x = made(causal=False), some(ROWS, 7, WIDTH)
    mixed, _ = attention(x, attention.mask(layout(7, causal=False, lengths=torch.tensor(lengths))))
    assert attention.project is not None
    for row, length in enumerate(lengths):
        alone = x[row, :length]
        query, rest = attention.project(alone).split([2 * HEAD, 2 * HEAD], -1)
        padded = torch.cat([rest, torch.zeros(-length % 3, 2 * HEAD)])           # zeros after the last token
        keys, values = shortened(attention.compress_keys, padded[:, :HEAD], 3), shortened(
            attention.compress_values, padded[:, HEAD:], 3)
        keys, values = (torch.cat([torch.zeros(1, HEAD), part]) for part in (keys, values))
        for head in range(2):
            weights = (query[:, HEAD * head : HEAD * head + HEAD] @ keys.T / 2).softmax(-1)
            rest[:, HEAD * head : HEAD * head + HEAD] = weights @ values
        assert_close(mixed[row, :length], attention.out(rest))


@torch.no_grad()
def test_a_key_that_begins_in_another_document_is_not_seen() -> None:
    documents = torch.tensor([[0] * 4 + [1] * 8, [0] * 6 + [1] * 6])
    attention, x = made(), some(ROWS, 12, WIDTH)
    mixed, _ = attention(x, attention.mask(layout(12, documents=documents)))
    for row in range(ROWS):
        def visible(now: int, place: int, row: int = row) -> bool:
            return 3 * place + 2 <= now and bool(documents[row, 3 * place] == documents[row, now])

        assert_close(mixed[row], by_loops(attention, x[row], visible))


@torch.no_grad()
def test_a_pattern_has_the_weight_of_a_key_on_its_tokens() -> None:
    weights = torch.tensor([[0.4, 0.6, 0.0], [0.1, 0.3, 0.6]])[None, None]
    shown = spread(weights, 3, 5)[0, 0]
    assert_close(shown, torch.tensor([[0.2, 0.2, 0.2, 0, 0], [0.1, 0.1, 0.1, 0.3, 0.3]]))
    attention, x = made(), some(ROWS, 8, WIDTH)
    with watch(attention) as seen:
        attention(x, attention.mask(layout(8), whole=True))
    (pattern,) = seen["pattern"]
    assert pattern.shape == (ROWS, 2, 8, 8)
    assert not pattern[:, :, :2].any()                                           # the null key's weight is left out
    assert (pattern.sum(-1) < 1).all()
