"""Beam search on a GPU finds what it finds on the CPU."""

import numpy as np
import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings

from chainrule.use.beam import Beam, search

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPTS = [np.array([1, 2, 3]), np.array([], np.int64), np.array([4])]


@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_a_gpu_finds_the_same_texts(kind):
    torch.manual_seed(5)
    model = kind(ToySettings(context=32), 9)
    with torch.no_grad():
        model.out.weight *= 6
    beam = Beam(width=4, best=3, limit=12)
    here = search(model, beam, prompts=PROMPTS)
    there = search(model.cuda(), beam, prompts=PROMPTS)
    for one, other in zip(here, there):
        assert [text.tokens for text in one.texts] == [text.tokens for text in other.texts]
        assert [text.log_prob for text in one.texts] == pytest.approx([text.log_prob for text in other.texts], abs=1e-3)
