"""Rollouts on a GPU: the CUDA graph of the decode loop is used again after the weights have changed."""

import numpy as np
import pytest
import torch
from contract.moved import moved

from chainrule.models import build
from chainrule.preferences.reinforce.rollouts import Sampler
from chainrule.tasks import recipe_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
VOCAB = 500
KINDS = {
    "gpt": {"layers": 2, "width": 128, "heads": 2, "context": 256, "zero_init": False},
    "lstm": {"hidden": 64, "layers": 1, "dropout": 0.0},
}


def policy_of(kind):
    torch.manual_seed(1)
    recipe = recipe_for(kind, {f"model.{name}": value for name, value in KINDS[kind].items()})
    return moved(build(kind, recipe.model, VOCAB), 0.1).cuda().eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_after_an_update_the_captured_graph_draws_what_a_new_sampler_would(kind, dtype):
    policy, limit = policy_of(kind), 64
    random = np.random.default_rng(1)
    prompts = [random.integers(1, VOCAB, size) for size in (5, 9, 9, 12) for _ in range(4)]
    sampler = Sampler(policy, limit, dtype=dtype, longest=20)
    before = sampler.draw(prompts, 1)
    graph = sampler.loop.graph
    assert graph is not None
    for number in range(2):
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        again = sampler.draw(prompts, 1)
        assert sampler.loop.graph is graph
        new = Sampler(policy, limit, dtype=dtype, longest=20).draw(prompts, 1)
        np.testing.assert_array_equal(again.tokens, new.tokens)
    assert (again.tokens != before.tokens).any()


def test_longer_prompts_than_before_are_answered_in_the_reserved_memory():
    policy = policy_of("gpt")
    sampler = Sampler(policy, 40, longest=24)
    short, long = ([np.arange(1, 1 + size)] * 6 for size in (4, 24))
    sampler.draw(short, 1)
    graph = sampler.loop.graph
    drawn = sampler.draw(long, 2)
    assert sampler.loop.graph is graph
    np.testing.assert_array_equal(drawn.tokens, Sampler(policy, 40, longest=24).draw(long, 2).tokens)
