"""Fused operators on a GPU: they compute what torch computes, also compiled, captured in a graph and in training."""

from types import SimpleNamespace

import pytest
import torch
from contract.moved import moved
from torch.testing import assert_close
from training.small import corpus, walk

from chainrule import kernels
from chainrule.device import choose_precision
from chainrule.kernels.ops import compiled
from chainrule.model import Batch
from chainrule.models import build
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.transformer import EncoderDecoder, EncoderDecoderSettings
from chainrule.recipe import Gradient
from chainrule.training.compile import runner as engines
from chainrule.training.interrupt import Stop
from chainrule.training.log import Log
from chainrule.training.pipeline import recipe_for
from chainrule.training.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

GPU = torch.device("cuda")
AS_GPT2 = {"norm": "layer", "norm_scale": True, "biases": True, "activation": "gelu-tanh", "qk_norm": False}
CHOICES = [
    {},
    AS_GPT2 | {"positions": "learned"},
    {"activation": "swiglu", "biases": True, "norm_scale": True},
    {"activation": "gelu", "biases": True, "norm": "layer", "width": 1600, "heads": 25},
    {"activation": "relu", "biases": True, "dropout": 0.1},
    AS_GPT2 | {"norm_first": False},
]


def some_batch(vocab=70, rows=5, length=33):
    tokens = torch.randint(vocab, (rows, length + 1), generator=torch.Generator().manual_seed(2)).to(GPU)
    return Batch(tokens[:, :-1], tokens[:, 1:])


def gradients(model, batch, fused, precision="float32", nats=None):
    """Of all parameters, in float64, one after another; and the nats."""
    torch.manual_seed(3)
    with choose_precision(precision, GPU)(), kernels.in_training(fused):
        total, _, _ = (nats or model.loss)(batch)
    parts = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return torch.cat([part.double().flatten() for part in parts if part is not None]), float(total.detach())


def off(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_fused_or_not_a_model_has_the_same_gradients(choice):
    torch.manual_seed(1)
    settings = {"layers": 2, "width": 96, "heads": 4, "context": 64, "zero_init": False} | choice
    model, batch = moved(GPT(GPTSettings(**settings), 70), 0.05).to(GPU).train(), some_batch()
    exact, nats = gradients(model, batch, False)
    fused, also = gradients(model, batch, True)
    assert abs(also - nats) < 1e-4 * nats
    assert off(fused, exact) < 1e-4
    if not choice.get("dropout"):                           # whose random numbers differ with the dtype
        for precision in ("bfloat16", "bfloat16-stream"):
            unfused = off(gradients(model, batch, False, precision)[0], exact)
            assert off(gradients(model, batch, True, precision)[0], exact) < 1.3 * unfused < 0.1


def test_a_decoder_with_a_source_has_the_same_gradients():
    torch.manual_seed(1)
    small = {"layers": 2, "width": 64, "heads": 4, "context": 64}
    settings = EncoderDecoderSettings(**small, zero_init=False, biases=True, norm_scale=True)
    model, batch = moved(EncoderDecoder(settings, 70), 0.05).to(GPU).train(), some_batch()
    lengths = torch.tensor([9, 3, 7, 9, 1], device=GPU)
    batch = Batch(batch.tokens, batch.targets, None, None, batch.tokens[:, :9].contiguous(), lengths)
    exact, _ = gradients(model, batch, False)
    assert off(gradients(model, batch, True)[0], exact) < 1e-4


@pytest.mark.filterwarnings("ignore")    # torch.compile has its own
@pytest.mark.parametrize(("kind", "precision"), [("gpt2", "bfloat16"), ("gpt", "bfloat16-stream")])
def test_compiled_they_are_fused(kind, precision):
    """In twelve layers: a compiler that logged the whole expression before each operator would never end."""
    torch.manual_seed(1)
    given = {"model.layers": 12, "model.width": 64, "model.heads": 2, "model.context": 64, "model.dropout": 0.0}
    model, batch = moved(build(kind, recipe_for(kind, given).model, 5000), 0.05).to(GPU), some_batch(5000)
    plain, nats = gradients(model, batch, True, precision)
    fast, also = gradients(model, batch, True, precision, compiled(model.loss))
    assert abs(also - nats) < 0.01 * nats
    assert off(fast, plain) < 0.03


def test_their_sums_are_the_same_every_time():
    from chainrule.kernels import add_norm, bias_act

    torch.manual_seed(1)
    x, delta, grad_out, grad_total = torch.randn(4, 30_001, 200, device=GPU)
    weight = torch.randn(200, device=GPU)
    total, _, *level = add_norm.add_norm_forward(x, delta, weight, weight, 1e-5, True, torch.bfloat16)
    given = grad_total, grad_out, total, *level, weight, True, torch.bfloat16, True
    once, again = (add_norm.add_norm_backward(*given) for _ in range(2))
    assert all(map(torch.equal, once, again))
    assert_close(once[2][1], grad_out.double().sum(0).float(), rtol=1e-4, atol=1e-3)
    once, again = (bias_act.bias_act_backward(grad_out, x, weight, "gelu") for _ in range(2))
    assert all(map(torch.equal, once, again))
    assert_close(once[1], once[0].double().sum(0).float(), rtol=1e-4, atol=1e-3)


def test_an_empty_batch():
    from chainrule.kernels import add_norm, bias_act

    empty = torch.empty(0, 40, device=GPU)
    assert add_norm.add_norm_forward(empty, empty, None, None, 1e-5, True, torch.float32)[1].shape == (0, 40)
    bias = torch.zeros(40, device=GPU)
    assert not bias_act.bias_act_backward(empty, empty, bias, "relu")[1].any()


def test_long_training_is_fused_also_in_a_graph(monkeypatch):
    settings = {"tokens": 512, "length": 32, "lr": 0.003, "steps": 60, "compile": "false", "precision": "float32"}

    def trained(repaid, graph):
        monkeypatch.setattr(engines, "REPAID", repaid)
        torch.manual_seed(1)
        model = GPT(GPTSettings(layers=2, width=64, heads=4, context=32), 7).to(GPU)
        training = Trainer(model, corpus(walk(4001)), Gradient(**settings, graph=graph), Log())
        training.begin()
        assert training.run(Stop())
        return SimpleNamespace(
            training=training, nats=[line["nats_per_token"] for line in training.log.records if line["event"] == "step"]
        )

    unfused = trained(1e9, "false")
    assert not unfused.training.step.fused
    for graph in ("false", "true"):
        fused = trained(0.0, graph)
        assert fused.training.step.fused
        assert bool(fused.training.runner.graphs) == (graph == "true")
        assert_close(torch.tensor(fused.nats), torch.tensor(unfused.nats), rtol=0.02, atol=0.02)
