"""The engine of the server on a GPU: the same bits alone and among others, and the texts of offline sampling."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.inference.score import score_texts
from chainrule.model import LanguageModel
from chainrule.models import build
from chainrule.serve.engine import Engine, Limits
from chainrule.serve.requests import Request, Token
from chainrule.training.pipeline import recipe_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SMALL = {"model.layers": 2, "model.width": 128, "model.heads": 4, "model.context": 640, "model.zero_init": False}
GPT2 = {"model.layers": 2}
SAMPLINGS = [Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.7, top_p=0.9, seed=7),
             Sampling(repetition_penalty=1.5, top_k=30, seed=5), Sampling(min_p=0.1, seed=9)]
CASES = [
    ("gpt", SMALL, 1001, torch.float32),
    ("gpt", SMALL, 1001, torch.bfloat16),
    ("gpt", {**SMALL, "model.kv_heads": 2, "model.attention": ("local", "full")}, 1001, torch.bfloat16),
    ("gpt2", GPT2, 50_257, torch.bfloat16),
    ("lstm", {"model.hidden": 192}, 1001, torch.float32),
    ("feedforward", {}, 1001, torch.float32),
    ("gpt", {**SMALL, "model.experts": 4, "model.active": 2}, 1001, torch.bfloat16),
]


def made(kind: str, changed: dict[str, object], vocab: int, dtype: torch.dtype) -> LanguageModel:
    torch.manual_seed(1)
    model: LanguageModel = build(kind, recipe_for(kind, changed).model, vocab).to("cuda", dtype).eval()
    return model


def some_requests(count: int, vocab: int, longest: int = 500) -> list[Request]:
    random = np.random.default_rng(1)
    return [Request(random.integers(1, vocab, random.integers(0, longest)).tolist(), int(random.integers(0, 30)),
                    SAMPLINGS[number % 5], logprobs=(None, 2, 0)[number % 3], prompt_logprobs=number % 4 == 1,
                    ends=False) for number in range(count)]


def answers(engine: Engine, requests: Sequence[Request]) -> list[list[Token]]:
    generations = [engine.submit(request) for request in requests]
    return [generation.read() for generation in generations]


@pytest.mark.parametrize(("kind", "changed", "vocab", "dtype"), CASES, ids=str)
def test_a_request_has_the_same_bits_alone_and_among_64_others(
    kind: str, changed: dict[str, object], vocab: int, dtype: torch.dtype
) -> None:
    engine, requests = Engine(made(kind, changed, vocab, dtype), Limits(prefix_bytes=0)), some_requests(65, vocab)
    together = answers(engine, requests)
    backwards = answers(engine, requests[::-1])[::-1]
    assert together == backwards
    for request, answer in list(zip(requests, together))[::4]:
        assert engine.submit(request).read() == answer
    engine.close()


def test_the_prefix_cache_changes_no_bit() -> None:
    model, requests = made("gpt", SMALL, 1001, torch.bfloat16), some_requests(20, 1001)
    plain, cached = Engine(model, Limits(prefix_bytes=0)), Engine(model)
    expected = answers(plain, requests)
    assert answers(cached, requests) == expected
    assert answers(cached, requests) == expected
    assert cached.stats.cached_tokens > 0
    plain.close()
    cached.close()


def test_a_step_is_a_cuda_graph() -> None:
    for kind, changed, vocab, dtype in (CASES[1], CASES[4]):
        engine = Engine(made(kind, changed, vocab, dtype))
        answers(engine, some_requests(3, vocab))
        assert all(graph is not None for group in (*engine._decoding, *engine._prefill)
                   for graph in group.graphs.values()), kind
        engine.close()


def test_a_served_text_is_the_text_of_sample() -> None:
    model = made("gpt", SMALL, 1001, torch.float32)
    engine = Engine(model)
    same = 0
    for seed in range(10):
        request = Request([1, 2, 3], 20, Sampling(seed=seed), ends=False)
        text = torch.stack(list(sample(model, [np.array([1, 2, 3])], 20, request.sampling, ends=False)))[:, 0].tolist()
        same += [token.id for token in engine.submit(request).read()] == text
    assert same >= 9                                     # a number may lie at the border of two tokens
    engine.close()


def test_log_probabilities_of_a_prompt_are_those_of_score() -> None:
    model = made("gpt", SMALL, 1001, torch.float32)
    engine, prompt = Engine(model), list(range(1, 400))
    tokens = engine.submit(Request([0, *prompt], 0, logprobs=0, prompt_logprobs=True)).read()
    expected = -score_texts(model, [np.array(prompt)])[0][:-1]
    np.testing.assert_allclose([token.logprob for token in tokens[1:]], expected, atol=2e-3)
    engine.close()


def test_a_model_that_cannot_be_captured_is_served_too() -> None:
    model = build("ngram", recipe_for("ngram").model, 50).to("cuda").eval()
    engine = Engine(model)
    generations = [engine.submit(Request([1, 2], 5, Sampling(seed=seed), ends=False)) for seed in range(9)]
    assert all(len(generation.read()) == 5 for generation in generations)
    engine.close()
