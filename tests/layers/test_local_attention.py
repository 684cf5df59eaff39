"""Local and sliding-window attention against sums by loops; blocks against one mask; caches of bounded size."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from chainrule.layers.attention import Attention, TokenLayout
from chainrule.layers.local_attention import LocalAttention, SlidingAttention, window_kernel
from chainrule.model import Batch, join, state_bytes, watch
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.models.gpt import GPT, GPTSettings

ROWS, WIDTH, SIZE, VOCAB = 2, 8, 4, 11
SMALL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "context": 512, "zero_init": False}
KINDS = {"local": LocalAttention, "sliding": SlidingAttention}


def some(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def made(kind: type[Attention], **options: Any) -> Attention:
    torch.manual_seed(1)
    return kind(WIDTH, 2, 1, 4, **options)


def layout(tokens: int, **more: Any) -> TokenLayout:
    return TokenLayout(torch.arange(tokens)[None], ROWS, **{"causal": True, **more})


def sees(kind: str, now: int, then: int, *, causal: bool = True) -> bool:
    if kind == "sliding":
        return 0 <= now - then < SIZE
    return now // SIZE == then // SIZE and (then <= now or not causal)


def by_loops(attention: Any, x: Tensor, allowed: Any) -> Tensor:
    """softmax(q k / √d) v, one query, head and key at a time; `allowed(row, t, j)`."""
    query, key, value = attention.project(x).split(attention.parts, -1)
    rows = []
    for row in range(len(x)):
        for now in range(x.shape[1]):
            mixed = []
            for head in range(2):
                q = query[row, now, 4 * head : 4 * head + 4]
                seen = [then for then in range(x.shape[1]) if allowed(row, now, then)]
                scores = [math.exp(float(q @ key[row, then]) / 2) for then in seen]
                mixed.append(sum(score * value[row, then] for score, then in zip(scores, seen)) / sum(scores))
            rows.append(attention.out(torch.cat(mixed)))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("tokens", [3, 4, 8, 13])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_it_is_the_sum_over_what_a_token_sees(kind: str, tokens: int) -> None:
    attention, x = made(KINDS[kind], size=SIZE), some(ROWS, tokens, WIDTH)
    mixed, _ = attention(x, attention.mask(layout(tokens)))
    assert_close(mixed, by_loops(attention, x, lambda row, now, then: sees(kind, now, then)))


@pytest.mark.parametrize("lengths", [None, [13, 6], [13, 3]])
@torch.no_grad()
def test_blocks_of_an_encoder_see_both_ways_and_no_padding(lengths: list[int] | None) -> None:
    attention, x = made(LocalAttention, size=SIZE), some(ROWS, 13, WIDTH)
    given = None if lengths is None else torch.tensor(lengths)
    real = lengths or [13, 13]
    mixed, _ = attention(x, attention.mask(layout(13, causal=False, lengths=given)))
    assert mixed.isfinite().all()
    for row, length in enumerate(real):
        short = x[row : row + 1, :length]
        wanted = by_loops(attention, short, lambda _, now, then: sees("local", now, then, causal=False))
        assert_close(mixed[row, :length], wanted[0])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_documents_of_a_packed_row_do_not_see_each_other(kind: str) -> None:
    documents = torch.tensor([[0] * 3 + [1] * 7 + [2] * 3, [0] * 6 + [1] * 7])
    attention, x = made(KINDS[kind], size=SIZE), some(ROWS, 13, WIDTH)
    mixed, _ = attention(x, attention.mask(layout(13, documents=documents)))
    wanted = by_loops(attention, x, lambda row, now, then:
                      sees(kind, now, then) and bool(documents[row, now] == documents[row, then]))
    assert_close(mixed, wanted)
    with watch(attention):
        assert_close(attention(x, attention.mask(layout(13, documents=documents), whole=True))[0], wanted)


def gpt(**settings: Any) -> GPT:
    torch.manual_seed(1)
    model = GPT(GPTSettings(**{**SMALL, **settings}), VOCAB).eval()
    if model.stack.bias is not None and list(model.stack.bias.parameters()):
        torch.nn.init.normal_(model.stack.bias.weight)
    return model


def tokens_of(rows: int, length: int) -> Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("positions", ["rotary", "relative", "alibi"])
@pytest.mark.parametrize("attention", [("local",), ("sliding",), ("local", "sliding", "compressed", "full")], ids=str)
@torch.no_grad()
def test_a_watched_model_gives_the_same_logits(attention: Any, positions: str) -> None:
    """In blocks; with one mask for all tokens, as the formula says; and in two pieces, the second from the cache."""
    sizes = {name: 7 for name, kind in (("block", "local"), ("window", "sliding")) if kind in attention}
    model, tokens = gpt(attention=attention, layers=4, positions=positions, **sizes), tokens_of(2, 30)
    fast = model(Batch(tokens, tokens))
    with watch(model) as seen:
        assert_close(model(Batch(tokens, tokens)), fast)
    first, state = model.step(tokens[:, :9], model.start(2))
    assert_close(torch.cat([first, model.step(tokens[:, 9:], state)[0]], 1), fast)
    for layer, kind in enumerate(model.settings.attention_kinds):
        (pattern,) = seen[f"stack.blocks.{layer}.attention.pattern"]
        assert pattern.shape == (2, 2, 30, 30)
        assert not pattern.triu(1).any()
        if kind != "compressed":
            assert_close(pattern.sum(-1), torch.ones(2, 2, 30))
        if kind == "sliding":
            assert not pattern.tril(-7).any()


class Largest(TorchDispatchMode):
    """The most numbers in a tensor that any operator makes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, Tensor):
                self.numbers = max(self.numbers, part.numel())
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_has_a_number_for_each_pair_of_tokens(kind: str) -> None:
    length = 512
    model, tokens = gpt(attention=(kind,), **{"block" if kind == "local" else "window": 16}), tokens_of(1, length)
    with Largest() as largest:
        model.loss(Batch(tokens, tokens))[0].backward()
    assert largest.numbers < length * length // 4
    with torch.no_grad(), Largest() as largest:                        # nor where a long text is read after others
        _, state = model.step(tokens[:, :2], model.start(1))
        model.step(tokens[:, 2:], state)
    assert largest.numbers < length * length // 2
    with Largest() as full:
        gpt(positions="relative")(Batch(tokens, tokens))
    assert full.numbers >= length * length                             # so it would have been noticed


@pytest.mark.parametrize(("settings", "growth"), [
    ({"attention": ("local",), "block": 16}, 0.0),
    ({"attention": ("sliding",), "window": 16}, 0.0),
    ({"window": 16}, 0.0),
    ({"attention": ("compressed",)}, 1 / 3),
    ({"attention": ("compressed",), "stride": 4}, 1 / 4),
    ({"attention": ("local", "compressed"), "block": 16}, 1 / 6),
    ({}, 1.0),
], ids=str)  # fmt: skip
@torch.no_grad()
def test_the_cache_holds_only_what_can_still_be_seen(settings: dict[str, Any], growth: float) -> None:
    """The bytes of 512 tokens less those of 128, against the keys and values of 384 tokens."""
    model, sizes = gpt(**settings), []
    for length in (128, 512):
        _, state = model.step(tokens_of(1, length), model.start(1))
        sizes.append(state_bytes(state))
    assert sizes[1] - sizes[0] == pytest.approx(growth * 384 * 2 * 2 * 16 * 4, abs=300)
    if growth == 0:
        assert sizes[0] <= 2 * 2 * 16 * 16 * 4 + 8                     # two layers, keys and values, 16 tokens


@pytest.mark.parametrize("settings", [
    {"attention": ("local",), "block": 4}, {"window": 4}, {"attention": ("compressed",)},
], ids=str)  # fmt: skip
@torch.no_grad()
def test_sources_of_different_lengths_go_on_as_each_would_alone(settings: dict[str, Any]) -> None:
    """The padding after a short source must not push its last tokens out of a ring."""
    model, source, lengths = gpt(**settings), tokens_of(3, 11), torch.tensor([11, 5, 7])
    text = tokens_of(3, 6)
    together, _ = model.step(text, model.start(3, source, lengths))
    for row, length in enumerate(lengths.tolist()):
        alone, _ = model.step(text[row : row + 1], model.start(1, source[row : row + 1, :length]))
        assert_close(together[row], alone[0])
    states = [model.start(1, source[row : row + 1, :length]) for row, length in enumerate(lengths.tolist())]
    assert_close(model.step(text, join(states))[0], together)


def test_an_encoder_can_be_local_and_compressed() -> None:
    torch.manual_seed(1)
    settings = {**SMALL, "attention": ("local", "compressed"), "block": 4}
    model = TransformerEncoder(EncoderSettings(**settings), VOCAB).eval()
    tokens, lengths = tokens_of(2, 10), torch.tensor([10, 6])
    together = model.encode(tokens, lengths)
    assert_close(together[1, :6], model.encode(tokens[1:, :6])[0])
    assert_close(together[0], model.encode(tokens[:1])[0])


@pytest.mark.parametrize(("settings", "tokens"), [
    ({"attention": ("local",), "block": 4}, 4),
    ({"attention": ("local", "sliding"), "block": 4, "window": 3}, 1 + 3 + 2),
    ({"attention": ("local", "compressed")}, None),
    ({"attention": ("sliding", "full")}, None),
])  # fmt: skip
def test_the_receptive_field(settings: dict[str, Any], tokens: int | None) -> None:
    assert gpt(**settings).receptive_field == tokens


def test_the_window_kernel_of_torch_is_known_by_its_options() -> None:
    assert window_kernel(grouped=False) in (True, False)
    assert window_kernel(grouped=True) <= window_kernel(grouped=False)
