"""Scoring and sampling where the model is: the GPU answers what the CPU answers."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from contract.moved import moved
from contract.toy import Attentive, Recurrent, ToySettings

from chainrule.device import tf32_products
from chainrule.inference import decoding
from chainrule.inference.forward import device_of
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling, sample_token, uniforms
from chainrule.inference.score import score_stream, score_texts
from chainrule.model import LanguageModel
from chainrule.models import build
from chainrule.training.pipeline import recipe_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
VOCAB = 50


@pytest.fixture(params=[Recurrent, Attentive], ids=["recurrent", "attentive"])
def pair(request: pytest.FixtureRequest) -> tuple[LanguageModel, LanguageModel]:
    torch.manual_seed(1)
    model = request.param(ToySettings(width=16, context=12), VOCAB)
    return model, copy.deepcopy(model).cuda()


def test_scores_are_the_same(pair: tuple[LanguageModel, LanguageModel]) -> None:
    stream = np.random.default_rng(1).integers(VOCAB, size=500, dtype=np.uint16)
    texts = [stream[size : 2 * size] for size in range(20)]
    here, there = (score_stream(model, stream) for model in pair)
    np.testing.assert_allclose(there, here, atol=1e-4)
    here, there = (np.concatenate(score_texts(model, texts)) for model in pair)
    np.testing.assert_allclose(there, here, atol=1e-4)


def test_scores_in_tf32_are_the_same_to_three_digits() -> None:
    torch.manual_seed(1)
    model = build("gpt", recipe_for("gpt", {"model.size": "tiny", "model.context": 64}).model, VOCAB).cuda()
    moved(model, 0.05)
    stream = np.random.default_rng(1).integers(VOCAB, size=2000, dtype=np.uint16)
    exact = score_stream(model, stream)
    with tf32_products(True):
        rounded = score_stream(model, stream)
    assert not np.array_equal(rounded, exact)
    np.testing.assert_allclose(rounded, exact, atol=1e-2)
    assert rounded.mean() == pytest.approx(exact.mean(), rel=1e-3)


def test_greedy_samples_are_the_same_past_the_context_too(pair: tuple[LanguageModel, LanguageModel]) -> None:
    prompts = [np.arange(size) % VOCAB for size in (0, 3, 11, 12, 40)]
    sampling = Sampling(temperature=0, repetition_penalty=1.5)
    here, there = (torch.stack(list(sample(model, prompts, 40, sampling, ends=False))) for model in pair)
    assert device_of(pair[1]).type == "cuda"
    assert torch.equal(here, there)


@pytest.mark.parametrize("kind", ["gpt", "lstm", "feedforward"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=9, top_p=0.9, repetition_penalty=1.3)], ids=str)
def test_captured_steps_sample_what_plain_steps_sample(
    kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    given = {"model.size": "tiny", "model.context": 64} if kind == "gpt" else {}
    model = build(kind, recipe_for(kind, given).model, VOCAB).cuda()
    moved(model, 0.05)
    prompts = [np.arange(size) % VOCAB for size in (0, 3, 30)]
    captured = torch.stack(list(sample(model, prompts, 150, sampling, ends=False)))
    replays: list[int] = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: [replays.append(1), replay(graph)])
    again = torch.stack(list(sample(model, prompts, 150, sampling, ends=False)))
    assert len(replays) > 100
    assert torch.equal(again, captured)
    monkeypatch.setattr(decoding, "MIN_STEPS", 1000)
    replays.clear()
    plain = torch.stack(list(sample(model, prompts, 150, sampling, ends=False)))
    assert not replays
    assert (captured == plain).float().mean() > 0.9      # rounding may change a row
    assert torch.equal(captured[:20], plain[:20])


def test_a_captured_sample_ends_where_all_rows_have_ended(pair: tuple[LanguageModel, LanguageModel]) -> None:
    here, there = (torch.stack(list(sample(model, [np.array([1])] * 5, 400))) for model in pair)
    assert len(here) == len(there)
    assert (there[-1] == 0).all()
    assert not (there[-2] == 0).all()


class Waiting(Recurrent):
    """Waits for the GPU in every step, which cannot be captured."""

    def step(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        assert tokens.max().item() < VOCAB
        return super().step(tokens, state)


def test_a_capture_that_fails_changes_nothing() -> None:
    torch.manual_seed(1)
    model = Waiting(ToySettings(width=16), VOCAB).cuda()
    torch.manual_seed(2)
    _, wanted = torch.randn(5, device="cuda"), torch.randn(5, device="cuda")
    torch.manual_seed(2)
    torch.randn(5, device="cuda")
    plain = torch.stack(list(sample(model, [np.array([1])] * 3, 60, ends=False)))
    assert torch.equal(torch.randn(5, device="cuda"), wanted)           # the generator goes on where it was
    assert torch.equal(torch.stack(list(sample(model.cpu(), [np.array([1])] * 3, 60, ends=False))), plain.cpu())


def test_a_seed_draws_the_same_tokens() -> None:
    logits = torch.randn(256, 1000, generator=torch.Generator().manual_seed(1)) * 3
    for sampling in (Sampling(), Sampling(0.7, top_k=40), Sampling(2.0, top_p=0.8), Sampling(min_p=0.1)):
        here, _ = sample_token(logits, sampling, uniforms(1, 0, 256))
        there = sample_token(logits.cuda(), sampling, uniforms(1, 0, 256).cuda())[0].cpu()
        assert (here == there).float().mean() > 0.99
