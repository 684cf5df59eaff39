"""GPT beside the contract: every choice, the KV cache, initial weights, the published sizes, and wrong settings."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.layers import kv_cache
from chainrule.layers.blocks import TransformerStack
from chainrule.layers.transformer_settings import SIZES, TransformerSettings
from chainrule.model import Batch, cross_entropy, join, taps, watch
from chainrule.models import build, kind, model_class
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.published import PUBLISHED
from chainrule.recipe import make_recipe
from chainrule.settings import make

VOCAB = 11
SMALL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 4, "context": 32, "zero_init": False}
CHOICES: list[dict[str, Any]] = [
    {"positions": "rotary"},
    {"positions": "learned", "norm": "layer", "norm_scale": True, "biases": True, "activation": "gelu-tanh"},
    {"positions": "sinusoidal", "norm_first": False, "norm": "layer", "norm_scale": True, "activation": "relu"},
    {"positions": "relative", "kv_heads": 2, "activation": "gelu"},
    {"positions": "none", "window": 3, "kv_heads": 1, "activation": "swiglu", "qk_norm": False},
    {"norm_embedding": False, "logit_softcap": 3.0, "tied": True, "head_size": 6, "norm_scale": True},
]


def made(**settings: Any) -> GPT:
    torch.manual_seed(1)
    model = GPT(GPTSettings(**{**SMALL, **settings}), VOCAB).eval()
    if model.stack.bias is not None:
        torch.nn.init.normal_(model.stack.bias.weight)
    return model


def some_batch(rows: int = 3, length: int = 12) -> Batch:
    tokens = torch.randint(VOCAB, (rows, length + 1), generator=torch.Generator().manual_seed(2))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def by_steps(model: GPT, tokens: Tensor) -> Tensor:
    state, columns = model.start(len(tokens)), []
    for column in tokens.split(1, 1):
        logits, state = model.step(column, state)
        columns.append(logits)
    return torch.cat(columns, 1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_watched_model_gives_the_same_logits(choice: dict[str, Any]) -> None:
    model, batch = made(**choice), some_batch()
    with torch.no_grad():
        fused = model(batch)
        with watch(model) as seen:
            written = model(batch)
            steps = by_steps(model, batch.tokens)
    assert_close(fused, written)
    assert_close(fused, steps)
    assert len(seen["stack.blocks.1.attention.pattern"]) == 1 + batch.tokens.shape[1]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_decoding_step_by_step_gives_the_same_in_bfloat16_too(choice: dict[str, Any]) -> None:
    model, batch = made(**choice), some_batch()
    with torch.no_grad():
        exact = model(batch)
        with torch.autocast("cpu", torch.bfloat16):
            whole, steps = model(batch), by_steps(model, batch.tokens)
            state = model.step(batch.tokens, model.start(3))[1]
    assert state["keys"].dtype == torch.bfloat16
    assert_close(whole.float(), exact, atol=0.15, rtol=0.1)
    assert_close(steps.float(), exact, atol=0.15, rtol=0.1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_text_goes_on_from_its_source_as_in_one_row(choice: dict[str, Any]) -> None:
    """In training or token by token: what one row of source and text would give, whatever is padded."""
    model, text = made(**choice), torch.tensor([[0, 3, 4, 5], [0, 6, 7, 0]])
    source, lengths = torch.tensor([[8, 9, 1, 2, 0], [10, 5, 0, 7, 7]]), torch.tensor([5, 3])    # a 0 ends each
    batch = Batch(text, text.roll(-1, 1), torch.tensor([4, 3]), source=source, source_lengths=lengths)
    with torch.no_grad():
        whole, state = model(batch), model.start(2, source, lengths)
        assert state["length"] is not lengths               # decoding by kernels changes it in place
        first, state = model.step(text[:, :1], state)
        rest, _ = model.step(text[:, 1:], state)
        alone = [model(Batch(row[None], row[None]))[0, -size:] for row, size in
                 ((torch.tensor([0, 8, 9, 1, 2, 0, 3, 4, 5]), 4), (torch.tensor([0, 10, 5, 0, 6, 7]), 3))]
    assert_close(torch.cat([first, rest], 1)[batch.loss_mask], whole[batch.loss_mask])
    assert_close(whole[batch.loss_mask], torch.cat(alone))
    assert model.max_tokens(source) == model.context - 5
    assert torch.equal(model.start(2, source)["length"], torch.tensor([5, 5]))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_gradients_through_the_cache_are_those_without_it(choice: dict[str, Any]) -> None:
    batch = some_batch()
    whole, steps = made(**choice), made(**choice)
    cross_entropy(whole(batch), batch)[0].backward()
    cross_entropy(by_steps(steps, batch.tokens), batch)[0].backward()
    for (name, one), other in zip(whole.named_parameters(), steps.parameters()):
        assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_training_loss_has_the_gradients_of_cross_entropy(choice: dict[str, Any]) -> None:
    batch = some_batch()
    plain, chunked = made(**choice), made(**choice)
    cross_entropy(plain(batch), batch)[0].backward()
    total, _, state = chunked.loss(batch)
    total.backward()
    assert state is None                                        # learning keeps no cache
    for one, other in zip(plain.parameters(), chunked.parameters()):
        assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)


def test_the_taps_are_the_residual_stream_the_attention_weights_and_the_neurons() -> None:
    model, batch = made(), some_batch()
    each = ("attention.pattern", "feed_forward.neurons", "hidden")
    names = [f"stack.blocks.{layer}.{tap}" for layer in (0, 1) for tap in each]
    assert sorted(taps(model)) == sorted(names)
    with watch(model) as seen, torch.no_grad():
        logits = model(batch)
    assert seen["stack.blocks.0.feed_forward.neurons"][0].shape == (3, 12, 64)
    top = seen["stack.blocks.1.hidden"][0]
    assert_close(model.logits(model.stack.norm(top)), logits)   # the logit lens, at the top


# The cache


def test_the_capacity_doubles_and_a_step_writes_in_place() -> None:
    model = made(context=256)
    tokens = torch.randint(VOCAB, (2, 200))
    with torch.no_grad():
        _, state = model.step(tokens[:, :3], model.start(2))
        capacities, moves = [kv_cache.capacity(state)], 0
        for column in tokens[:, 3:].split(1, 1):
            before = state["keys"]
            _, state = model.step(column, state)
            moves += state["keys"] is not before
            capacities.append(kv_cache.capacity(state))
    assert sorted(set(capacities)) == [64, 128, 256]
    assert moves == 2
    assert state["length"].tolist() == [200, 200]


def test_caches_of_different_capacity_can_be_joined() -> None:
    model = made(context=256)
    short, long = torch.randint(VOCAB, (1, 5)), torch.randint(VOCAB, (1, 90))
    with torch.no_grad():
        states = [model.step(text, model.start(1))[1] for text in (short, long)]
        assert [kv_cache.capacity(state) for state in states] == [64, 128]
        together, _ = model.step(torch.tensor([[1], [2]]), join(states))
        for row, text in enumerate((short, long)):
            alone = model(Batch(torch.cat([text, torch.tensor([[row + 1]])], 1), text))
            assert_close(together[row, -1], alone[0, -1])


def test_an_empty_cache_can_be_joined_with_others() -> None:
    model, text = made(), torch.randint(VOCAB, (1, 5))
    with torch.no_grad():
        state = join([model.start(1), model.step(text, model.start(1))[1]])
        logits, _ = model.step(torch.tensor([[3], [3]]), state)
        assert_close(logits[0, 0], model(Batch(torch.tensor([[3]]), text))[0, 0])


def test_a_text_longer_than_the_context_is_refused() -> None:
    model = made(context=8)
    long = torch.zeros(1, 9, dtype=torch.long)
    with pytest.raises(UserError, match=r"9 tokens is longer than model.context=8"):
        model(Batch(long, long))
    _, state = model.step(long[:, :8], model.start(1))
    with pytest.raises(UserError, match=r"9 tokens is longer than model.context=8"):
        model.step(long[:, :1], state)


def test_a_list_of_attention_kinds_is_repeated_over_the_layers() -> None:
    settings = make(GPTSettings, {**SMALL, "layers": 5, "attention": "local,compressed"}, "model")
    assert settings.attention_kinds == ("local", "compressed", "local", "compressed", "local")
    assert (settings.block, settings.stride, settings.window) == (256, 3, None)
    assert settings.span("local") == settings.context                    # a block is never longer than the context
    assert make(GPTSettings, settings.__dict__, "model") == settings
    assert made(window=3).settings.attention_kinds == ("sliding", "sliding")
    assert made().settings.attention_kinds == ("full", "full")


def test_the_receptive_field_grows_by_a_window_with_each_layer() -> None:
    assert made(window=3, layers=2).receptive_field == 5
    assert made().receptive_field is None


# An encoder of the same blocks


@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_an_encoder_attends_to_all_of_its_text_and_no_padding(positions: str) -> None:
    torch.manual_seed(1)
    stack = TransformerStack(TransformerSettings(**{**SMALL, "positions": positions}), causal=False)
    x, positions = torch.randn(2, 7, 16), torch.arange(7)[None]
    lengths = torch.tensor([7, 4])
    together, _ = stack(x, positions, lengths)
    alone, _ = stack(x[1:, :4], positions[:, :4])
    assert_close(together[1, :4], alone[0])
    x[0, 6] += 1
    other, _ = stack(x, positions, lengths)
    assert not torch.isclose(other[0, 0], together[0, 0]).all()    # the last token is seen by the first


# First weights


def test_with_zero_init_the_blocks_add_zero_and_all_tokens_are_equally_likely() -> None:
    model, batch = made(zero_init=True, tied=False), some_batch()
    with watch(model) as seen, torch.no_grad():
        logits = model(batch)
    assert torch.equal(seen["stack.blocks.0.hidden"][0], seen["stack.blocks.1.hidden"][0])
    assert_close(logits, torch.zeros_like(logits))


def test_published_models_have_the_published_initial_deviations() -> None:
    model = preset("gpt2", layers=8, width=96, heads=4)
    weights = dict(model.named_parameters())
    for name, deviation in {
        "embedding.tokens.weight": 0.02,
        "embedding.positions.weight": 0.02,
        "stack.blocks.0.attention.project.weight": 0.02,
        "stack.blocks.7.feed_forward.out.weight": 0.02 / 16**0.5,
    }.items():
        assert float(weights[name].detach().std()) == pytest.approx(deviation, rel=0.1)
    assert not weights["stack.blocks.0.attention.project.bias"].any()


@pytest.mark.parametrize(("vocab", "tied"), [(20, False), (2000, True)])
def test_weights_are_tied_where_that_saves_many_parameters(vocab: int, tied: bool) -> None:
    model = GPT(GPTSettings(**SMALL), vocab)
    assert (model.output is None) == tied
    matrix = model.embedding.tokens.weight if tied else None if model.output is None else model.output.weight
    assert model.output_matrix is matrix


# Sizes


def preset(name: str, vocab: int = VOCAB, **settings: Any) -> GPT:
    given = {f"model.{key}": value for key, value in settings.items()}
    recipe = make_recipe(name, model_class(name), given, kind(name).preset)
    model: GPT = build(name, recipe.model, vocab)
    return model


COUNTS = {    # millions, as published; of GPT-2 as its files have them, for its paper counts otherwise
    "gpt1": 116.5, "gpt2": 124.4, "gpt2-medium": 354.8, "gpt2-large": 774.0, "gpt2-xl": 1557.6,
    "gpt3-small": 125, "gpt3-medium": 350, "gpt3-large": 760, "gpt3-xl": 1_300, "gpt3-2.7b": 2_700,
    "gpt3-6.7b": 6_700, "gpt3-13b": 13_000, "gpt3-175b": 174_600,
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)    # the others: tests/test_plan.py
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    with shapes_only():
        model = preset(name, PUBLISHED[name].vocab)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    exact = not name.startswith("gpt3") or name == "gpt3-175b"
    assert millions == pytest.approx(COUNTS[name], rel=0.0005 if exact else 0.02)


def test_gpt2_has_exactly_its_parameters() -> None:
    with shapes_only():
        model = preset("gpt2", 50257)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_gpt1_and_gpt2_have_the_published_heads() -> None:
    """By their configuration files; the number of parameters does not depend on it."""
    heads = {"gpt1": 12, "gpt2": 12, "gpt2-medium": 16, "gpt2-large": 20, "gpt2-xl": 25}
    for name, wanted in heads.items():
        settings = make_recipe(name, GPT, {}, kind(name).preset).model
        assert (settings.heads, settings.kv_heads, settings.head_size) == (wanted, wanted, 64)


def test_gpt3_is_the_table_of_its_paper() -> None:
    """Table 2.1: layers, width, heads, head size, tokens in a step (M), learning rate (1e-4). But XL has 16 heads."""
    table = {
        "small": (12, 768, 12, 64, 0.5, 6), "medium": (24, 1024, 16, 64, 0.5, 3), "large": (24, 1536, 16, 96, 0.5, 2.5),
        "xl": (24, 2048, 16, 128, 1, 2), "2.7b": (32, 2560, 32, 80, 1, 1.6), "6.7b": (32, 4096, 32, 128, 2, 1.2),
        "13b": (40, 5140, 40, 128, 2, 1), "175b": (96, 12288, 96, 128, 3.2, 0.6),
    }  # fmt: skip
    for name, (layers, width, heads, size, batch, lr) in table.items():
        recipe = make_recipe(f"gpt3-{name}", GPT, {}, kind(f"gpt3-{name}").preset)
        model, train = recipe.model, recipe.train
        assert (model.layers, model.width, model.heads, model.head_size) == (layers, width, heads, size)
        assert (train.tokens, train.lr) == (pytest.approx(batch * 1e6, rel=0.05), pytest.approx(lr * 1e-4))


def test_the_size_sets_what_is_not_given_and_is_then_forgotten() -> None:
    settings = GPTSettings(size="tiny", layers=3)
    assert (settings.layers, settings.width, settings.heads, settings.context) == (3, *SIZES["tiny"][1:])
    assert settings.size is None
    assert GPTSettings() == GPTSettings(size="small")
    assert make(GPTSettings, settings.__dict__, "model") == settings


def test_a_model_of_any_size_can_be_built() -> None:
    counts = []
    for size in SIZES:
        with shapes_only():
            counts.append(sum(p.numel() for p in GPT(make(GPTSettings, {"size": size}, "model"), 256).parameters()))
    assert counts == sorted(counts)


WRONG = {
    "model.heads=5 does not divide model.width=16, as 4 and 8 would": {"heads": "5"},
    "model.kv_heads=3 does not divide model.heads=4": {"kv_heads": "3"},
    "model.size=tinny is not one of": {"size": "tinny"},
    "model.size=tiny changes nothing": {"size": "tiny"},
    "model.head_size=3 is odd": {"head_size": "3"},
    "model.layers=-1": {"layers": "-1"},
    "model.window=0": {"window": "0"},
    "model.block=0": {"attention": "local", "block": "0"},
    "model.stride=1": {"attention": "compressed", "stride": "1"},
    "model.attention=locl is not one of .* Did you mean local": {"attention": "full,locl"},
    "model.attention=full,local,full is 3 kinds for model.layers=2": {"attention": "full,local,full"},
    "model.block=8 is for layers with model.attention=local, not full": {"block": "8"},
    "model.window=8 is for layers with model.attention=sliding, not local": {"attention": "local", "window": "8"},
    "model.stride=4 is for layers with model.attention=compressed, not local": {"attention": "local", "stride": "4"},
    "model.qkv=false leaves no keys and values": {"qkv": "false", "attention": "compressed"},
    "model.qkv=false splits x itself into heads: 4 of 4 numbers each": {"qkv": "false", "kv_heads": "2"},
    "model.dropout=1": {"dropout": "1"},
    "it must be more than 0": {"epsilon": "0"},
    "model.rope_theta=5 needs model.positions=rotary, not none": {"rope_theta": "5", "positions": "none"},
    "model.logit_softcap=-2": {"logit_softcap": "-2"},
    "model.positions=rotari is not one of .* Did you mean rotary": {"positions": "rotari"},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_setting_says_what_is_wrong(message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make(GPTSettings, {**SMALL, **WRONG[message]}, "model")
    assert "\n" not in str(caught.value)
