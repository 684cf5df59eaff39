"""What the compiler is shown: marks that are heeded once something is compiled, and cost nothing before."""

import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from chainrule.model import Batch
from chainrule.models import build, tracing
from chainrule.train.pipeline import recipe_for

SMALL = {"gpt": {"model.size": "tiny"}, "lstm": {"model.hidden": 8}, "feedforward": {"model.hidden": 8}}


@pytest.fixture
def shown(monkeypatch):
    """The graphs that the compiler is given, each as the names of its operations; it runs them as they are."""
    graphs = []

    def backend(module, inputs):
        graphs.append({getattr(node.target, "__name__", str(node.target)) for node in module.graph.nodes})
        return module

    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile(function, backend=backend))
    yield graphs
    for mark in tracing._marked:                            # other tests find them as they were
        mark.now, mark.changed = getattr(mark.now, "_torchdynamo_orig_callable", mark.now), False
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SMALL)
def test_a_compiled_model_has_the_gradients_of_the_model(shown, kind):
    torch.manual_seed(1)
    model = build(kind, recipe_for(kind, SMALL[kind]).model, 20).eval()
    tokens = torch.randint(20, (3, 9))
    batch = Batch(tokens[:, :-1], tokens[:, 1:])
    answers = []
    for nats in (model.nats, tracing.compiled(model.nats)):
        total, _, _ = nats(batch)
        answers.append([total.detach(), *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)])
    assert_close(answers[1], answers[0])
    assert any("log_softmax" in graph for graph in shown)                   # by itself …
    assert not any({"log_softmax", "embedding"} <= graph for graph in shown)    # … and apart from the model
    assert not any("lstm" in graph for graph in shown)


def test_marks_do_not_load_the_compiler():
    program = "import sys, chainrule.models.rnn, chainrule.models.gpt; print('torch._dynamo' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == "False\n"
