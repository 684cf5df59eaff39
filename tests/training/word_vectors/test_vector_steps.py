"""Steps of word vectors as CUDA graphs, with CUDA simulated: a graph takes the step that an eager one would take."""

import pytest
import torch

from chainrule.models.word2vec import Word2Vec, Word2VecSettings
from chainrule.training.compile import vector_steps
from chainrule.training.compile.vector_steps import OFTEN, VectorSteps, graph_size
from chainrule.training.word_vectors import rows_of

VOCAB = 40


class FakeGraph:
    """Runs the captured function again at each replay; a capture itself computes nothing."""

    made = 0

    def __init__(self, function, inputs, *, share, tidy):
        self.function, self.inputs = function, list(inputs)
        FakeGraph.made += 1

    def replay(self, inputs):
        for static, new in zip(self.inputs, inputs, strict=True):
            static.copy_(new)
        self.function()


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setattr(vector_steps, "CudaGraph", FakeGraph)
    FakeGraph.made = 0


def model_and_blocks():
    generator = torch.Generator().manual_seed(1)
    model = Word2Vec(Word2VecSettings(embedding=8, sample=0.0), VOCAB)
    tokens = torch.randint(2, VOCAB, (4000,), generator=generator)
    model.initialise(torch.bincount(tokens, minlength=VOCAB), generator)
    return model, model.collect_pairs(tokens, torch.arange(len(tokens)) // 50, generator)


def trained(on_gpu):
    model, blocks = model_and_blocks()
    steps = VectorSteps(model.train_step, torch.device("cpu"))
    steps.on_gpu = on_gpu
    for number in range(8):
        steps.take(rows_of(blocks, 4 * number, 4 if number != 6 else 3), 0.1 / (1 + number))
    return model, steps


@pytest.mark.usefixtures("simulated")
def test_graphs_take_the_steps_that_would_be_taken_without_them():
    (eager, _), (replayed, steps) = trained(False), trained(True)
    assert (FakeGraph.made, list(steps.graphs), steps.came[4]) == (1, [4], 7)
    assert steps.came[3] < OFTEN
    assert torch.equal(replayed.vectors, eager.vectors)
    assert torch.equal(replayed.outputs, eager.outputs)


def test_a_step_that_cannot_be_captured_runs_eagerly(monkeypatch, capsys):
    def fails(*_, **__):
        raise RuntimeError("capturing")

    monkeypatch.setattr(vector_steps, "CudaGraph", fails)
    (eager, _), (model, steps) = trained(False), trained(True)
    assert not steps.graphs
    assert torch.equal(model.vectors, eager.vectors)
    assert capsys.readouterr().err.count("runs eagerly") <= 1


def test_sizes_are_few_and_never_larger_than_asked():
    sizes = [graph_size(rows, 500) for rows in range(1, 600)]
    assert set(sizes) == {1, 2, 4, 8, 16, 32, 64, 128, 256, 500}
    assert all(size <= rows for rows, size in zip(range(1, 600), sizes))
