"""Vectors on a GPU: a step there is the step of the CPU, and no step waits for the GPU."""

from copy import deepcopy

import pytest
import torch
from torch.testing import assert_close

from chainrule.model import map_state
from chainrule.models.glove import GloVe, GloVeSettings
from chainrule.models.word2vec import Word2Vec, Word2VecSettings
from chainrule.training.compile.vector_steps import OFTEN, VectorSteps
from chainrule.training.pipeline import make_run, recipe_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

VOCAB = 500
MODELS = {
    "skip-gram": lambda: Word2Vec(Word2VecSettings(embedding=32), VOCAB),
    "cbow": lambda: Word2Vec(Word2VecSettings(algorithm="cbow", embedding=32), VOCAB),
    "glove": lambda: GloVe(GloVeSettings(embedding=32), VOCAB),
}
every_model = pytest.mark.parametrize("name", MODELS)


def begun(name):
    """The model, and examples for it, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    model, tokens = MODELS[name](), torch.randint(2, VOCAB, (20_000,), generator=generator)
    model.initialise(torch.bincount(tokens, minlength=VOCAB), generator)
    pairs = model.collect_pairs(tokens, torch.arange(len(tokens)) // 50, generator)
    return model, model.shuffled(pairs, generator) if model.counts_first else pairs


@every_model
def test_a_step_is_that_of_the_cpu(name):
    model, examples = begun(name)
    there = deepcopy(model).cuda()
    for _ in range(3):
        model.train_step(examples, 0.05)
        there.train_step(map_state(examples, lambda part: part.cuda()), 0.05)
    assert_close(there.embeddings.cpu(), model.embeddings, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@every_model
def test_no_step_waits_for_the_gpu(name):
    model, examples = begun(name)
    model, examples = model.cuda(), map_state(examples, lambda part: part.cuda())
    model.train_step(examples, 0.05)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        model.train_step(examples, 0.05)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_model
def test_a_step_of_a_graph_is_that_without_one(name):
    """With another learning rate and other examples than those of the capture."""
    model, examples = begun(name)
    plain, captured = deepcopy(model).cuda(), deepcopy(model).cuda()
    steps = VectorSteps(captured.train_step, torch.device("cuda"))
    for number in range(OFTEN + 4):
        some = map_state(examples, lambda part, at=number: part[2 * at : 2 * at + 2].cuda())
        plain.train_step(some, 0.05 / (1 + number))
        steps.take(some, 0.05 / (1 + number))
    assert list(steps.graphs) == [2]
    assert_close(captured.embeddings, plain.embeddings, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["word2vec", "glove"])
def test_a_run_is_made_there(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    book = tmp_path / "book.txt"
    book.write_text("the ripe apple tastes sweet\na quick dog runs home barking\n" * 500)
    recipe = recipe_for(kind, {"model.embedding": 16, "train.epochs": 2.0})
    made = make_run([str(book)], recipe, tmp_path / "run", device="cuda")
    assert made.finished
