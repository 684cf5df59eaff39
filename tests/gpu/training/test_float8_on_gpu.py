"""Float8 training on a GPU: casts are torch's, gradients as near as the emulation's, also compiled and in a graph."""

import pytest
import torch
from contract.moved import moved
from training.small import corpus, walk

from chainrule import kernels
from chainrule.device import FLOAT8_CAPABILITY, Precision, choose_precision
from chainrule.kernels import float8, float8_layers
from chainrule.kernels.float8 import E4M3, E5M2
from chainrule.kernels.ops import compiled
from chainrule.model import Batch
from chainrule.models import build
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.recipe import Gradient
from chainrule.training.compile import runner as engines
from chainrule.training.interrupt import Stop
from chainrule.training.log import Log
from chainrule.training.param_groups import Optimizers
from chainrule.training.pipeline import recipe_for
from chainrule.training.step import Step
from chainrule.training.trainer import Trainer

GPU = torch.device("cuda")
OLD = not torch.cuda.is_available() or torch.cuda.get_device_capability() < FLOAT8_CAPABILITY
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(OLD, reason="no CUDA device here that multiplies float8")]

CHOICES = [("gpt2", {}), ("gpt", {}), ("gpt", {"model.activation": "swiglu", "model.biases": True})]


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("shape", [(300, 96), (1024, 768), (77, 48)])
def test_the_kernel_casts_as_torch_does(dtype, shape):
    torch.manual_seed(1)
    x = 3 * torch.randn(shape, device=GPU, dtype=torch.bfloat16)
    x[5, 7], x[0, :2] = 1e6, torch.tensor([0.0, 1e-6])
    amax = float8.sampled_amax(x[:5], dtype)                # x[5, 7] saturates
    here = float8.cast(x, None, None, None, amax, dtype, sums=True)
    there = float8.cast(x.cpu(), None, None, None, amax._replace(found=amax.found.cpu()), dtype, sums=True)
    for one, other in zip(here[:3], there[:3], strict=True):
        assert torch.equal(one.cpu().float(), other.float())
    torch.testing.assert_close(here.sums.cpu(), there.sums, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("activation", ["relu", "relu2", "gelu", "gelu-tanh", "swiglu"])
def test_the_kernel_casts_activations_and_their_gradients(activation):
    torch.manual_seed(1)
    wide = 192 if activation == "swiglu" else 96
    product, grad = torch.randn(300, wide, device=GPU).bfloat16(), torch.randn(300, 96, device=GPU).bfloat16()
    bias = torch.randn(wide, device=GPU)
    given = [(product, bias, activation), (product.cpu(), bias.cpu(), activation)]
    forward = [float8.cast_activation(*some) for some in given]
    backward = [float8.cast_grad_before(grad.to(some[0].device), *some) for some in given]
    for found, wanted in (forward, backward):
        assert torch.equal(found.inverse.cpu(), wanted.inverse)
        one, other = found.plain.cpu().float(), wanted.plain.float()
        assert (one == other).float().mean() > 0.99         # erf and exp round a little differently
        assert ((one - other).abs() <= 0.26 * other.abs() + 1e-2).all()
        assert torch.equal(found.transposed[:, :300].float(), found.plain.float().T)


def made(kind, extra):
    torch.manual_seed(1)
    sizes = {"model.layers": 2, "model.width": 64, "model.heads": 2, "model.context": 64, "model.dropout": 0.0}
    return moved(build(kind, recipe_for(kind, sizes | extra).model, 5000), 0.05).train()


def gradients(model, precision, fused=False, compile=False):
    device = next(model.parameters()).device
    step = Step(model, Optimizers(model, Gradient()), precision, 1.0, 5, False)
    step.fused, step.loss = fused, compiled(model.loss) if compile else model.loss
    tokens = torch.randint(5000, (5, 62), generator=torch.Generator().manual_seed(2)).to(device)
    totals, _ = step.accumulate(Batch(tokens[:, :-1], tokens[:, 1:]), None)
    return float(totals[0]), torch.cat([weight.grad.flatten().double().cpu() for weight in model.parameters()])


def off(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.filterwarnings("ignore")    # torch.compile has its own
@pytest.mark.parametrize(("kind", "extra"), CHOICES, ids=str)
def test_gradients_are_as_near_to_float32_as_those_of_the_emulation(monkeypatch, kind, extra):
    """With the output in float8 too, which the emulation on a CPU has in float32; not compiled, and compiled."""
    monkeypatch.setattr(float8_layers, "MIN_WEIGHT", 3 * 64 * 64)    # of queries, keys and values; others are small
    nats, exact = gradients(made(kind, extra), Precision("cpu", torch.float32, ""))
    _, emulated = gradients(made(kind, extra), Precision("cpu", torch.float32, "", float8=True))
    precision = choose_precision("float8", GPU)
    for options in ({}, {"fused": True}, {"fused": True, "compile": True}):
        near, found = gradients(made(kind, extra).to(GPU), precision, **options)
        assert near == pytest.approx(nats, rel=0.005)
        assert off(found, exact) < 1.4 * off(emulated, exact) < 0.2


def test_training_in_float8_also_in_a_graph(monkeypatch):
    settings = {"tokens": 512, "length": 32, "lr": 0.003, "steps": 60, "compile": "false"}
    monkeypatch.setattr(engines, "REPAID", 0.0)

    def trained(precision, graph):
        torch.manual_seed(1)
        model = GPT(GPTSettings(layers=2, width=64, heads=4, context=32), 7).to(GPU)
        training = Trainer(model, corpus(walk(4001)), Gradient(**settings, graph=graph, precision=precision), Log())
        training.begin()
        assert training.run(Stop())
        assert training.step.fused == kernels.available()
        assert bool(training.runner.graphs) == (graph == "true")
        report = training.step.report()
        return report.nats / report.targets

    near = trained("bfloat16", "false")
    for graph in ("false", "true"):
        assert trained("float8", graph) == pytest.approx(near, abs=0.02)
