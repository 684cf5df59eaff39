"""The same weights in Hugging Face's GPT-2 and Llama, and here: the same logits, the same gradients."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from chainrule.formats.hugging_face import to_gpt2, to_llama
from chainrule.model import Batch
from chainrule.models import build, kind, model_class
from chainrule.models.gpt import GPT
from chainrule.recipe import make_recipe

VOCAB, CONTEXT = 31, 12
LIKE_LLAMA = {
    "layers": 2, "width": 24, "heads": 6, "kv_heads": 2, "hidden": 40, "context": CONTEXT, "activation": "swiglu",
    "norm_scale": True, "qk_norm": False, "norm_embedding": False, "tied": False, "zero_init": False,
    "rope_theta": 500.0,
}


def made(name: str, **settings: Any) -> GPT:
    torch.manual_seed(1)
    given = {f"model.{key}": value for key, value in settings.items()}
    recipe = make_recipe(name, model_class(name), given, kind(name).preset)
    model: GPT = build(name, recipe.model, VOCAB)
    for parameter in model.parameters():    # gains and biases too, so that none can be left out unnoticed
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def gpt2() -> tuple[GPT, GPT2LMHeadModel]:
    ours = made("gpt2", layers=2, width=24, heads=3, context=CONTEXT)
    config = GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3)
    theirs = GPT2LMHeadModel(config).eval()
    theirs.load_state_dict(to_gpt2(ours), strict=True)
    return ours, theirs


def llama() -> tuple[GPT, LlamaForCausalLM]:
    ours = made("gpt", **LIKE_LLAMA)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(to_llama(ours), strict=True)
    return ours, theirs


PAIRS = {"gpt2": gpt2, "llama": llama}


def some_batch() -> Batch:
    tokens = torch.randint(VOCAB, (3, CONTEXT + 1), generator=torch.Generator().manual_seed(2))
    return Batch(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_weights_give_the_same_logits(name: str) -> None:
    ours, theirs = PAIRS[name]()
    batch = some_batch()
    assert_close(ours(batch), theirs(batch.tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_weights_have_the_same_gradients(name: str) -> None:
    ours, theirs = PAIRS[name]()
    batch = some_batch()
    total, count, _ = ours.loss(batch)
    loss = nn.functional.cross_entropy(theirs(batch.tokens).logits.flatten(0, 1), batch.targets.flatten())
    assert_close(total / count, loss, atol=1e-4, rtol=1e-4)
    (total / count).backward()
    loss.backward()
    assert_same_gradients(ours, theirs, to_gpt2 if name == "gpt2" else to_llama)


def assert_same_gradients(ours: GPT, theirs: nn.Module, translate: Any) -> None:
    """Our gradients by their names: each weight is replaced by its gradient, and all are converted."""
    with torch.no_grad():
        for parameter in ours.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    found: Mapping[str, Tensor] = translate(ours)
    wanted = dict(theirs.named_parameters())
    assert wanted.keys() <= found.keys()
    for name, parameter in wanted.items():
        assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_their_dropout_and_ours_is_off_in_evaluation() -> None:
    ours = made("gpt1", layers=2, width=24, heads=3, context=CONTEXT)
    assert torch.equal(ours(some_batch()), ours(some_batch()))
    ours.train()
    assert not torch.equal(ours(some_batch()), ours(some_batch()))
