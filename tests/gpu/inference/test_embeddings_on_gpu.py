"""Embeddings on a GPU: the same bits alone and among others, and the vectors of the CPU."""

import numpy as np
import pytest
import torch

from chainrule.models import build
from chainrule.serve.endpoints.embeddings import mean_vectors
from chainrule.tasks import recipe_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

TRANSFORMER = {"model.layers": 6, "model.width": 384, "model.heads": 12, "model.context": 512}
CASES = {"encoder": (TRANSFORMER, "mask"), "gpt": (TRANSFORMER, "lm"), "lstm": ({"model.hidden": 128}, "lm")}


@pytest.mark.parametrize("kind", CASES)
def test_a_vector_has_the_same_bits_alone_and_among_64_others(kind: str) -> None:
    settings, task = CASES[kind]
    torch.manual_seed(1)
    model = build(kind, recipe_for(kind, settings, task).model, 1000).eval()
    random = np.random.default_rng(1)
    texts = [[0, *random.integers(1, 1000, random.integers(1, 300)).tolist(), 0] for _ in range(64)]
    by_cpu = mean_vectors(model, texts)
    model.cuda()
    together = mean_vectors(model, texts)
    np.testing.assert_allclose(together, by_cpu, atol=2e-3)
    for number in (0, 7, 40, 63):
        assert np.array_equal(mean_vectors(model, [texts[number]])[0], together[number])
        assert np.array_equal(mean_vectors(model, [texts[number], *texts[::-1]])[0], together[number])
