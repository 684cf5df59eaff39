"""What torch.compile sees: marks that count once something is compiled and cost nothing before, and our operators."""

import subprocess
import sys
from collections import Counter

import pytest
import torch
from contract.moved import moved
from torch.testing import assert_close

from chainrule.kernels import ops
from chainrule.layers import cross_entropy
from chainrule.model import Batch
from chainrule.models import build
from chainrule.training.pipeline import recipe_for

SMALL = {"gpt": {"model.size": "tiny"}, "lstm": {"model.hidden": 8}, "feedforward": {"model.hidden": 8}}


@pytest.fixture
def shown(monkeypatch):
    """The graphs that the compiler is given, each as its operations and their number; it runs them as they are."""
    graphs = []

    def backend(module, inputs):
        parts = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
        nodes = [node.target for part in parts for node in part.graph.nodes]
        graphs.append(Counter(getattr(target, "__name__", str(target)) for target in nodes))
        return module

    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile(function, backend=backend))
    yield graphs
    ops.reset_marks()                                     # for other tests
    torch._dynamo.reset()


def compare(kind):
    """A model's loss and gradients, with and without torch.compile."""
    torch.manual_seed(1)
    model = build(kind, recipe_for(kind, SMALL[kind]).model, 20).eval()
    moved(model, 0.02)
    tokens = torch.randint(20, (3, 9))
    batch = Batch(tokens[:, :-1], tokens[:, 1:])
    answers = []
    for nats in (model.loss, ops.compiled(model.loss)):
        total, _, _ = nats(batch)
        answers.append([total.detach(), *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)])
    assert_close(answers[1], answers[0])
    assert all(gradient.any() for gradient in answers[0][1:])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SMALL)
def test_a_compiled_model_has_the_gradients_of_the_model(shown, kind):
    compare(kind)
    assert any("log_softmax" in graph for graph in shown)
    assert not any("lstm" in graph for graph in shown)
    assert kind == "lstm" or len(shown) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("most", [2, 16])
def test_the_chunks_of_a_compiled_output_are_few_and_have_its_gradients(shown, monkeypatch, most):
    monkeypatch.setitem(cross_entropy.CHUNK_LOGITS, "cpu", 3 * 20)           # 3 hidden vectors at a time, of 24
    monkeypatch.setattr(cross_entropy, "MAX_COMPILED_CHUNKS", most)
    compare("gpt")
    assert len(shown) == 1
    assert shown[0]["log_softmax"] == min(8, most)


@pytest.mark.filterwarnings("ignore")
def test_to_the_compiler_our_kernel_is_one_operation(shown, monkeypatch):
    monkeypatch.setattr(cross_entropy, "FUSED_DEVICES", {"cpu"})       # where it computes as torch does
    monkeypatch.setattr(cross_entropy, "MIN_FUSED_VOCAB", 1)
    compare("gpt")
    assert len(shown) == 1
    assert shown[0]["cross_entropy_and_grad"] == 1
    assert "log_softmax" not in shown[0]                        # which is within it


def test_marks_and_operators_do_not_load_the_compiler():
    program = """
import sys, torch, chainrule.models.rnn, chainrule.models.gpt
from chainrule.layers import cross_entropy, lora
cross_entropy.fused_cross_entropy_and_grad(torch.randn(2, 5), torch.tensor([1, 2]), 5, None, 0.0)
lora.add_low_rank(torch.randn(3, 4), torch.randn(3, 2), torch.randn(2, 4), 1.0)
print('torch._dynamo' in sys.modules)"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "False\n"
