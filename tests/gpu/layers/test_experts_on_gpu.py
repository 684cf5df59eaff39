"""Mixture of experts on a GPU: the grouped product against the loop, no waiting, CUDA graphs, compiling, sampling."""

import warnings

import numpy as np
import pytest
import torch
from contract.moved import moved
from torch.testing import assert_close

from chainrule import kernels
from chainrule.device import choose_precision
from chainrule.inference import decoding
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.kernels.ops import compiled
from chainrule.layers import experts
from chainrule.layers.blocks import make_feed_forward
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Batch
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.recipe import Gradient
from chainrule.training.compile.step_graph import StepGraph
from chainrule.training.param_groups import Optimizers
from chainrule.training.step import Step

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]  # fmt: skip
GPU = torch.device("cuda")
SMALL = {"layers": 2, "width": 128, "heads": 2, "context": 128, "experts": 8, "active": 2}
groups_here = pytest.mark.skipif(
    not (torch.cuda.is_available() and experts._gpu_groups(0)), reason="this GPU has no grouped product of its own"
)


def net(**choice) -> GPT:
    torch.manual_seed(1)
    return moved(GPT(GPTSettings(**{**SMALL, **choice}), 50).to(GPU), 0.02)


def a_step(model: GPT, lr: float = 1e-3) -> Step:
    settings = Gradient(optimizer="muon", lr=lr)
    return Step(model.train(), Optimizers(model, settings), choose_precision("bfloat16", GPU), 1.0, 100, carries=False)


def a_batch(rows: int = 8) -> Batch:
    tokens = torch.randint(50, (rows, 129), generator=torch.Generator().manual_seed(2)).to(GPU)
    return Batch(tokens[:, :-1], tokens[:, 1:])


@groups_here
@pytest.mark.parametrize("ends", [[100, 100, 357, 1000], [0, 0, 0, 1000], [1, 2, 3, 1000]], ids=str)
def test_the_grouped_product_and_its_gradients_are_the_loop(ends):
    rows, weight = torch.randn(1000, 64, device=GPU), torch.randn(4, 96, 64, device=GPU) / 8
    places, found = torch.tensor(ends, dtype=torch.int32, device=GPU), []
    for multiply in (experts._grouped_mm, experts._one_by_one):
        inputs = [part.bfloat16().requires_grad_() for part in (rows, weight)]
        out = multiply(*inputs, places)
        out.backward(torch.linspace(-1, 1, out.numel(), device=GPU).view_as(out).bfloat16())
        found.append((out.detach(), *(part.grad for part in inputs)))
    for one, other in zip(*found):
        assert_close(one.float(), other.float(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("choice", [{}, {"activation": "swiglu", "renormalise": False}, {"active": 6}], ids=str)
def test_a_layer_on_the_gpu_is_that_on_the_cpu(choice):
    torch.manual_seed(1)
    layer = make_feed_forward(TransformerSettings(**{**SMALL, **choice}))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(4, 33, 128).bfloat16()
    wanted, routing = layer(x.float()), layer.route(x.float().flatten(0, 1))
    layer.to(GPU)
    assert torch.equal(layer.route(x.to(GPU).flatten(0, 1)).chosen.cpu(), routing.chosen)
    assert_close(layer(x.to(GPU).float()).cpu(), wanted, atol=1e-4, rtol=1e-3)
    with torch.autocast("cuda", torch.bfloat16):
        assert_close(layer(x.to(GPU)).float().cpu(), wanted, atol=0.05, rtol=0.05)


@pytest.fixture
def waiting_is_an_error():
    """By hand: torch's own switch warns that it is a prototype, and stays on if the test fails."""
    def forbid(mode):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode(mode)

    yield lambda: forbid("error")
    forbid("default")


@groups_here
def test_a_step_of_training_never_waits_for_the_gpu(waiting_is_an_error):
    step, batch = a_step(net()), a_batch()
    step.take(batch, None)
    torch.cuda.synchronize()
    waiting_is_an_error()
    step.take(batch, None)


@groups_here
def test_a_step_as_a_graph_and_with_kernels_is_the_same():
    found = []
    for way in ("eager", "kernels", "graph"):
        step, batch = a_step(net()), a_batch()
        step.fused = way == "kernels" and kernels.available()
        for _ in range(3):
            step.take(batch, None)
        graph = StepGraph(step, batch, None) if way == "graph" else None
        for _ in range(5):
            step.take(batch, None) if graph is None else graph.take(batch, None)
        report = step.report()
        found.append((report.nats, experts.report_experts(report.experts, []).balance))
    for nats, balance in found[1:]:
        assert nats == pytest.approx(found[0][0], rel=0.01)
        assert balance == pytest.approx(found[0][1], rel=0.02)


@groups_here
@pytest.mark.filterwarnings("ignore")    # torch.compile has its own
def test_a_compiled_step_is_about_the_same():
    step, batch = a_step(net()), a_batch()
    step.take(batch, None)
    wanted = step.gradient_norm(batch, None)
    step.loss = compiled(step.model.loss)
    assert step.gradient_norm(batch, None) == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 20])
def test_samples_by_graphs_and_kernels_do_not_change(rows, dtype, monkeypatch):
    model = net(context=512).to(dtype).eval()
    prompts, written, captured = [np.arange(size % 40) % 50 for size in range(3, 3 + rows)], [], []
    graph = decoding.CudaGraph
    monkeypatch.setattr(decoding, "CudaGraph", lambda *args, **named: [graph(*args, **named), captured.append(1)][0])
    for worth in (10**9, 16):
        monkeypatch.setattr(kernels, "STEPS_TO_LOAD", worth)
        monkeypatch.setattr(kernels, "STEPS_ONCE_LOADED", worth)
        captured.clear()
        written.append(torch.stack(list(sample(model, prompts, 200, Sampling(), ends=False))))
        assert captured
    assert (written[0][:10] == written[1][:10]).float().mean() > 0.9     # rounding may choose another expert
