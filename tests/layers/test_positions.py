"""Positions beyond the trained length: RoPE scaling against transformers' tables, ALiBi against a written-out bias."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.layers.positions import ALiBi, alibi_slopes, rope_frequencies, rope_tables
from chainrule.layers.transformer_settings import RopeScaling, TransformerSettings
from chainrule.model import Batch
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.transformer import EncoderDecoder, EncoderDecoderSettings

TRAINED = 256
SMALL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "context": 16}


def theirs(kind: str, size: int, theta: float, factor: float, **how: Any) -> tuple[torch.Tensor, float]:
    """The inverse frequencies of transformers, and its factor of cos and sin."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": kind, "rope_theta": theta, "factor": factor, "original_max_position_embeddings": TRAINED}
    config = LlamaConfig(hidden_size=4 * size, num_attention_heads=4, max_position_embeddings=TRAINED,
                         rope_parameters=parameters)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **how)


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0, 32.0])
@pytest.mark.parametrize(("size", "theta"), [(8, 10_000.0), (64, 10_000.0), (128, 500_000.0)])
@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn"])
def test_scaled_frequencies_are_those_of_transformers(kind: str, size: int, theta: float, factor: float) -> None:
    ours = rope_frequencies(size, theta, RopeScaling(kind, factor, TRAINED))    # type: ignore[arg-type]
    if kind == "ntk":    # theirs depends on the length of the text: at factor · trained tokens it is the same
        wanted = theirs("dynamic", size, theta, 1.0, seq_len=int(factor * TRAINED))
    else:
        wanted = theirs(kind, size, theta, factor)
    assert_close(ours[0], wanted[0])
    assert ours[1] == pytest.approx(wanted[1])


def test_yarn_leaves_the_fastest_pair_and_stretches_the_slowest() -> None:
    plain, _ = rope_frequencies(64, 10_000.0)
    yarn, _ = rope_frequencies(64, 10_000.0, RopeScaling("yarn", 8.0, TRAINED))
    assert_close(yarn[0], plain[0])             # it turns 40 times in the trained length
    assert_close(yarn[-1], plain[-1] / 8)       # and this one not once
    assert bool((yarn <= plain).all())


def test_the_attention_factor_of_yarn_is_in_cos_and_sin() -> None:
    cos, sin = rope_tables(torch.arange(5)[None], 8, 100.0, scaling=RopeScaling("yarn", 8.0, TRAINED))
    assert_close(cos**2 + sin**2, torch.full((1, 5, 1, 8), (0.1 * math.log(8) + 1) ** 2))


def test_slopes_of_a_power_of_two_are_a_geometric_series() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(1) == [1 / 256]


@pytest.mark.parametrize("heads", [3, 6, 12])
def test_slopes_of_other_numbers_of_heads_are_those_of_the_paper(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    mask = torch.ones(1, 2)                                             # BLOOM's bias of the key at position 1: +slope
    theirs = build_alibi_tensor(mask, heads, torch.float32)[:, 0, 1]
    assert_close(torch.tensor(alibi_slopes(heads)), theirs)


def test_alibi_is_the_bias_written_out() -> None:
    heads, queries, keys = 6, torch.tensor([[2, 3], [0, 4]]), torch.arange(5)
    bias = ALiBi(heads)(queries, keys)
    assert bias.shape == (2, heads, 2, 5)
    for row in range(2):
        for head, slope in enumerate(alibi_slopes(heads)):
            for place, query in enumerate(queries[row].tolist()):
                assert_close(bias[row, head, place], torch.tensor([-slope * abs(query - key) for key in range(5)]))


@pytest.mark.parametrize("given", [
    {"positions": "alibi"},
    {"rope_scaling": "yarn", "rope_factor": 4.0},
])  # fmt: skip
@pytest.mark.parametrize("pieces", [[1] * 12, [5, 1, 6]])
def test_the_cache_gives_what_one_pass_gives(given: dict[str, Any], pieces: list[int]) -> None:
    torch.manual_seed(1)
    model = GPT(GPTSettings(**SMALL, **given, zero_init=False), 7).eval()
    tokens = torch.randint(7, (2, 12))
    state, logits = model.start(2), []
    for piece in tokens.split(pieces, 1):
        some, state = model.step(piece, state)
        logits.append(some)
    assert_close(torch.cat(logits, 1), model(Batch(tokens, tokens)))


def test_alibi_in_an_encoder_penalises_both_sides() -> None:
    torch.manual_seed(1)
    settings = EncoderDecoderSettings(**SMALL, positions="alibi", zero_init=False)
    model = EncoderDecoder(settings, 7).eval()
    attention: Any = model.encoder.blocks[0].attention
    mask = attention.mask(model.encoder.layout(torch.arange(4)[None]))
    assert mask.tensor is not None
    assert_close(mask.tensor, mask.tensor.mT)
    assert_close(mask.tensor[0, 0, 0], -alibi_slopes(2)[0] * torch.arange(4.0))


def adjusted(settings: TransformerSettings, **given: Any) -> tuple[int, int, float]:
    made = settings.adjusted(given)
    return made.context, made.trained_context, made.rope_factor


def test_a_trained_model_is_stretched_from_its_own_context() -> None:
    settings = TransformerSettings(**SMALL)
    assert adjusted(settings, rope_scaling="yarn", rope_factor="8") == (128, 16, 8.0)
    assert adjusted(settings, rope_scaling="linear", rope_factor=4.0, context=100) == (100, 16, 4.0)
    assert adjusted(settings, rope_scaling="ntk", rope_factor=2.0, trained_context=8) == (16, 8, 2.0)
    assert adjusted(settings, context=64) == (64, 0, 1.0)                    # nothing but a longer context
    again = settings.adjusted({"rope_scaling": "yarn", "rope_factor": 2})    # what was stretched before
    assert adjusted(again, rope_factor=4) == (64, 16, 4.0)


@pytest.mark.parametrize(("given", "message"), [
    ({"rope_factor": 8.0}, "model.rope_factor=8 needs model.rope_scaling=linear, ntk, yarn or llama3"),
    ({"trained_context": 8}, "model.trained_context=8 needs model.rope_scaling=linear, ntk, yarn or llama3"),
    ({"rope_scaling": "yarn", "positions": "alibi"}, "model.rope_scaling=yarn needs model.positions=rotary, not alibi"),
    ({"rope_scaling": "ntk", "head_size": 2}, "model.rope_scaling=ntk needs heads of 4 numbers or more"),
    ({"rope_scaling": "linear", "rope_factor": 0.5}, "model.rope_factor=0.5: it must be 1 or more"),
    ({"rope_scaling": "yarn", "rope_theta": 1.0}, "model.rope_theta of more than 1"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        TransformerSettings(**SMALL, **given)


def test_only_settings_that_change_no_weight_can_be_changed_afterwards() -> None:
    with pytest.raises(UserError, match=r"model\.width=32 cannot be set here: the run has its own. Only model"):
        TransformerSettings(**SMALL).adjusted({"width": 32})
    with pytest.raises(UserError, match=r"model\.context=32 cannot be set here: model\.positions=learned has vectors "
                                        "for 16 positions"):
        TransformerSettings(**SMALL, positions="learned").adjusted({"context": "32"})
