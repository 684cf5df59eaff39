"""The distance of weights from where they began is the root of the summed squares of all their differences."""

import pytest
import torch

from chainrule.errors import UserError
from chainrule.layers.lora import LoRA, add_parametrization
from chainrule.models.gpt import GPT
from chainrule.training.finetune import weight_distances


def gpt(seed, vocab=9, **settings):
    torch.manual_seed(seed)
    return GPT(GPT.Settings(**({"layers": 2, "width": 8, "heads": 2, "context": 8, "tied": False} | settings)), vocab)


def root(pairs):
    total = 0.0
    for one, other in pairs:
        for a, b in zip(one.flatten().tolist(), other.flatten().tolist()):
            total += (a - b) ** 2
    return total**0.5


def test_distances_are_sums_by_layer_and_of_all():
    base, model, random = gpt(1), gpt(2), gpt(3)
    there, here, other = (dict(one.named_parameters()) for one in (base, model, random))
    found = {one.name: one for one in weight_distances(model, base, random)}
    parts = {"embeddings": "embedding", "layer 1": "stack.blocks.0.", "layer 2": "stack.blocks.1.",
             "above the layers": "output", "all": ""}
    assert list(found) == list(parts)
    for name, prefix in parts.items():
        names = [one for one in there if one.startswith(prefix)]
        assert found[name].parameters == sum(there[one].numel() for one in names)
        assert found[name].distance == pytest.approx(root((here[one], there[one]) for one in names), rel=1e-6)
        assert found[name].norm == pytest.approx(root((there[one], 0 * there[one]) for one in names), rel=1e-6)
        assert found[name].from_random == pytest.approx(root((here[one], other[one]) for one in names), rel=1e-6)
        assert found[name].relative == found[name].distance / (found[name].norm or 1)


def test_new_tokens_are_left_out_and_adapters_count():
    base, model = gpt(1), gpt(1, vocab=11)
    with torch.no_grad():
        for name, weight in base.named_parameters():
            model.get_parameter(name)[: len(weight)] = weight
    assert weight_distances(model, base, gpt(3, vocab=11))[-1].distance == 0
    adapted = LoRA(model.stack.blocks[0].attention.out.weight, 1, 2.0)
    adapted.up.data += 1
    wanted = 2 * (adapted.up @ adapted.down).detach().norm()
    add_parametrization(model, "stack.blocks.0.attention.out.weight", adapted)
    found = {one.name: one.distance for one in weight_distances(model, base, gpt(3, vocab=11))}
    assert found["layer 1"] == pytest.approx(float(wanted), rel=1e-5)
    assert found["layer 2"] == 0


def test_another_body_is_refused():
    with pytest.raises(UserError, match="different bodies"):
        weight_distances(gpt(1, width=16), gpt(1), gpt(2))
