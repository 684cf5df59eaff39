"""Beam search and minimum Bayes risk on a GPU find the texts that they find on the CPU, by CUDA graphs or without."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from contract.moved import moved
from contract.toy import Attentive, Recurrent, ToySettings

from chainrule.inference import decoding
from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.mbr import MinimumBayesRisk, draw_texts
from chainrule.models import build
from chainrule.models.seq2seq import Seq2Seq, Seq2SeqSettings
from chainrule.tasks import recipe_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPTS = [np.array([1, 2, 3]), np.array([], np.int64), np.array([4])]
VOCAB = 40
WRITERS = {
    "seq2seq": {"hidden": 16, "layers": 1, "dropout": 0.0},
    "transformer": {"layers": 2, "width": 64, "heads": 2, "context": 100},
    "gpt": {"layers": 2, "width": 64, "heads": 2, "context": 128},
}


def writer(kind: str) -> Any:
    torch.manual_seed(3)
    recipe = recipe_for(kind, {f"model.{name}": value for name, value in WRITERS[kind].items()}, "translate")
    return moved(build(kind, recipe.model, VOCAB).eval(), 0.1).cuda()


def sources(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, VOCAB, (rows, 9), generator=generator), torch.randint(2, 10, (rows,), generator=generator)


@contextmanager
def counted_replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    replays: list[int] = []
    replay = torch.cuda.CUDAGraph.replay
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: [replays.append(1), replay(graph)])
        yield replays


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


@pytest.mark.parametrize("kind", WRITERS)
def test_a_captured_beam_search_finds_what_a_plain_one_finds(kind, monkeypatch):
    model, (source, lengths) = writer(kind), sources(12)
    beam = Beam(width=4, best=2, limit=60, least=20)
    with counted_replays(monkeypatch) as replays:
        captured = beam_search(model, beam, source=source, lengths=lengths)
        assert len(replays) > 10
    monkeypatch.setattr(decoding, "MIN_STEPS", 1000)
    with counted_replays(monkeypatch) as replays:
        plain = beam_search(model, beam, source=source, lengths=lengths)
        assert not replays
    same = [one.texts[0].tokens == other.texts[0].tokens for one, other in zip(captured, plain)]
    assert sum(same) >= 10                                                  # rounding may change a row
    for one, other in zip(captured, plain):
        assert one.texts[0].score == pytest.approx(other.texts[0].score, abs=1e-2)


@pytest.mark.parametrize("kind", WRITERS)
def test_captured_samples_for_sources_are_the_plain_ones(kind, monkeypatch):
    model, (source, lengths) = writer(kind), sources(12)
    mbr = MinimumBayesRisk(8, limit=60)
    with counted_replays(monkeypatch) as replays:
        captured = draw_texts(model, mbr, source, lengths, range(12))
        assert len(replays) > 10
    monkeypatch.setattr(decoding, "MIN_STEPS", 1000)
    plain = draw_texts(model, mbr, source, lengths, range(12))
    same = [one == other for texts, others in zip(captured, plain) for one, other in zip(texts, others, strict=True)]
    assert sum(same) > 0.9 * len(same)                                      # rounding may change a row


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
    assert sum(alike) >= 78                                                 # but for numbers between two tokens
    assert len({tuple(text) for text in here[0]}) > 5
