"""Texts on a GPU are those on the CPU: the best that a beam finds, and what is drawn by the same luck."""

import numpy as np
import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings

from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.mbr import MinimumBayesRisk, draw_texts
from chainrule.models.seq2seq import Seq2Seq, Seq2SeqSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPTS = [np.array([1, 2, 3]), np.array([], np.int64), np.array([4])]


@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_a_gpu_finds_the_same_texts(kind):
    torch.manual_seed(5)
    model = kind(ToySettings(context=32), 9)
    with torch.no_grad():
        model.out.weight *= 6
    beam = Beam(width=4, best=3, limit=12)
    here = beam_search(model, beam, prompts=PROMPTS)
    there = beam_search(model.cuda(), beam, prompts=PROMPTS)
    for one, other in zip(here, there):
        assert [text.tokens for text in one.texts] == [text.tokens for text in other.texts]
        assert [text.log_prob for text in one.texts] == pytest.approx([text.log_prob for text in other.texts], abs=1e-3)


def test_a_gpu_draws_the_same_texts():
    torch.manual_seed(1)
    model = Seq2Seq(Seq2SeqSettings(hidden=8, layers=1), vocab=12).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)                                               # so that sources matter
    source, lengths = torch.randint(1, 12, (5, 7)), torch.tensor([7, 3, 5, 1, 7])
    here = draw_texts(model, MinimumBayesRisk(16, limit=10), source, lengths, range(5))
    there = draw_texts(model.cuda(), MinimumBayesRisk(16, limit=10), source.cuda(), lengths.cuda(), range(5))
    alike = [one == other for texts, others in zip(here, there) for one, other in zip(texts, others, strict=True)]
    assert sum(alike) >= 78                                                 # but for a number on the edge of two tokens
    assert len({tuple(text) for text in here[0]}) > 5
