"""The counting models answer on a GPU what they answer on the CPU, and learn there too."""

import pytest
import torch

from chainrule.model import Batch
from chainrule.models import build, model_class

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

KINDS = {
    "uniform": {}, "unigram": {"order": 1}, "bigram": {"order": 2}, "ngram": {"order": 4}, "hmm": {"states": 8},
}
VOCAB = 40


def text(seed: int) -> torch.Tensor:
    """(1, 4001) a walk with a boundary now and then, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (4001,), generator=generator)
    walk = (steps.cumsum(0) % (VOCAB - 1)) + 1
    walk[torch.rand(4001, generator=generator) < 0.05] = 0
    walk[0] = 0
    return walk[None]


def made(kind: str, device: str):
    model = build(kind, model_class(kind).Settings(**KINDS[kind]), VOCAB)
    model.forget(torch.Generator().manual_seed(1))
    model = model.to(device)
    tokens = text(1).to(device)
    for _ in range(3 if kind == "hmm" else 1):
        model.update(model.collect(Batch(tokens[:, :-1], tokens[:, 1:])))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_answers_as_the_cpu_does(kind):
    here, there = made(kind, "cpu"), made(kind, "cuda")
    tokens = text(2)
    wanted, _ = here.score(tokens[:, :-1], tokens[:, 1:], here.start(1))
    found, _ = there.score(tokens[:, :-1].cuda(), tokens[:, 1:].cuda(), there.start(1))
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)
    wanted, _ = here.step(tokens[:, :50], here.start(1))
    found, _ = there.step(tokens[:, :50].cuda(), there.start(1))
    assert found.is_cuda
    torch.testing.assert_close(found.cpu().exp(), wanted.exp(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_moves_between_devices(kind):
    model = made(kind, "cuda")
    tokens = text(3)
    there, _ = model.score(tokens[:, :-1].cuda(), tokens[:, 1:].cuda(), model.start(1))
    model = model.cpu()
    here, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start(1))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-3, atol=1e-3)
