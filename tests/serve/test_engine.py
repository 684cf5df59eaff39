"""The engine of the server: the same bits alone and among others, for every kind; and what it does with requests."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contract.cases import CASES, GPT, VOCAB, Case
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling, sample_token, uniforms
from chainrule.inference.score import score_texts
from chainrule.model import LanguageModel
from chainrule.serve.batching import row_groups, row_sampling
from chainrule.serve.batching.row_sampling import Columns, column_values, sample_rows
from chainrule.serve.batching.uniform_numbers import row_uniforms
from chainrule.serve.engine import Engine, Limits
from chainrule.serve.requests import EngineClosed, EngineError, EngineFull, Request, Token
from chainrule.serve.service import submit_all

PLAIN = [case for case in CASES if case.source is None]
LONG = Case("gpt", {"layers": 2, "width": 16, "heads": 2, "context": 200})
SAMPLINGS = [Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.7, top_p=0.9, seed=7),
             Sampling(repetition_penalty=1.5, top_k=3, seed=5), Sampling(min_p=0.1, seed=9)]


def made(case: Case) -> LanguageModel:
    """A network gets random weights: those that it begins with may give all tokens the same probability."""
    model = case.make()
    if model.learns_by == "counting":
        return case.train()
    random = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=random)
    return model.eval()


def some_requests(count: int, longest: int, vocab: int = VOCAB, seed: int = 1) -> list[Request]:
    """Mixed lengths and settings, some with log-probabilities, some that are only scored."""
    random = np.random.default_rng(seed)
    return [Request(random.integers(1, vocab, random.integers(0, longest)).tolist(), int(random.integers(0, 12)),
                    SAMPLINGS[number % 5], logprobs=(None, 2, 0)[number % 3], prompt_logprobs=number % 4 == 1,
                    ends=number % 2 == 0) for number in range(count)]


def answers(engine: Engine, requests: Sequence[Request]) -> list[list[Token]]:
    generations = [engine.submit(request) for request in requests]
    return [generation.read() for generation in generations]


def alone(model: LanguageModel, request: Request, **limits: int) -> list[Token]:
    engine = Engine(model, Limits(**limits))
    tokens = engine.submit(request).read()
    engine.close()
    return tokens


def sampled(tokens: Sequence[Token]) -> list[int]:
    return [token.id for token in tokens if not token.prompt]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_request_has_the_same_bits_alone_and_among_others(case: Case) -> None:
    requests = some_requests(8, 14)
    engine = Engine(made(case))
    one_by_one = [engine.submit(request).read() for request in requests]
    assert answers(engine, requests) == one_by_one
    assert answers(engine, requests[::-1]) == one_by_one[::-1]
    engine.close()


def test_long_texts_have_the_same_bits_through_every_width_and_capacity() -> None:
    model, requests = made(LONG), some_requests(12, 190)
    engine = Engine(model)
    together = answers(engine, requests)
    again = answers(engine, requests[::-1])[::-1]                    # from the prefix cache
    assert engine.stats.cached_tokens > 0
    assert together == again == [alone(model, request, prefix_bytes=0) for request in requests]
    engine.close()


def test_a_served_text_is_the_text_of_sample() -> None:
    for case in (LONG, Case("ngram", {"order": 3}), Case("lstm", {"hidden": 8})):
        model = made(case)
        for request in some_requests(6, 20):
            rows = sample(model, [np.array(request.prompt, int)] * 2, request.max_tokens, request.sampling,
                          ends=request.ends)
            texts = torch.stack(list(rows), 1).tolist() if request.max_tokens else [[], []]
            for row, text in enumerate(texts):
                answer = sampled(alone(model, Request(request.prompt, request.max_tokens, request.sampling, row,
                                                      ends=request.ends)))
                assert answer == text[: len(answer)]
                assert len(answer) == len(text) or answer[-1] == 0


@pytest.mark.parametrize("case", [LONG, Case("ngram", {"order": 3}), Case("hmm", {"states": 3})], ids=str)
def test_log_probabilities_of_a_prompt_are_those_of_score(case: Case) -> None:
    model, prompt = made(case), [1, 2, 3, 4, 1, 2, 3, 3, 2, 1] * 9
    tokens = alone(model, Request([0, *prompt], 1, logprobs=2, prompt_logprobs=True))
    assert [token.id for token in tokens if token.prompt] == [0, *prompt]
    assert tokens[0].logprob is None
    expected = -score_texts(model, [np.array(prompt)])[0][:-1]
    np.testing.assert_allclose([token.logprob for token in tokens[1:-1]], expected, atol=1e-5)
    for token in tokens[1:]:
        assert len(token.top) == 2
        assert token.top[0][1] >= token.top[1][1]
        assert token.logprob == dict(token.top).get(token.id, token.logprob)


def test_a_prompt_without_its_boundary_is_the_same_text() -> None:
    model = made(LONG)
    first, second = (alone(model, Request(prompt, 5, logprobs=1, prompt_logprobs=True))
                     for prompt in ([1, 2, 3], [0, 1, 2, 3]))
    assert [token.id for token in first[:3]] == [1, 2, 3]
    assert first[0].logprob is None
    assert first[1:] == second[2:]


def test_a_long_prompt_does_not_stall_the_others() -> None:
    model = made(Case("gpt", {"layers": 1, "width": 16, "heads": 2, "context": 2048}))
    engine, order = Engine(model), []
    step, read = engine._decode, engine._read

    def decode(group):
        order.append("step")
        step(group)

    def prefill(some):
        order.append("prefill")
        read(some)

    engine._decode, engine._read = decode, prefill    # type: ignore[method-assign]
    short = engine.submit(Request([1], 60, ends=False))
    long = engine.submit(Request([1, 2] * 1000, 1))
    short.read(), long.read()
    engine.close()
    first, last = order.index("prefill"), len(order) - order[::-1].index("prefill")
    assert "prefill prefill" not in " ".join(order[first:last])


def test_a_shared_prefix_is_read_once() -> None:
    model, engine = made(LONG), Engine(made(LONG))
    prompt = [1, 2, 3, 4] * 30
    texts = answers(engine, [Request(prompt, 5, Sampling(seed=3), row, ends=False) for row in range(6)])
    assert engine.stats.prefill_calls == 4 + 6 * 2
    assert engine.stats.cached_tokens == 5 * 112
    for row, text in enumerate(texts):
        assert text == alone(model, Request(prompt, 5, Sampling(seed=3), row, ends=False), prefix_bytes=0)
    engine.close()


def test_a_prefix_is_that_of_the_same_tokens_and_calls() -> None:
    model, first = made(LONG), [1, 2, 3, 4] * 16
    engine = Engine(model)
    for prompt in (first, [*first[:-2], 1, 1], [*first, 3, 2], first * 2):    # the first differ in their last tokens
        request = Request(prompt, 5, logprobs=2, ends=False)
        assert engine.submit(request).read() == alone(model, request, prefix_bytes=0)
    engine.close()


def test_the_prefix_cache_has_a_bounded_number_of_bytes() -> None:
    engine = Engine(made(LONG), Limits(prefix_bytes=100_000))
    answers(engine, some_requests(20, 190))
    assert 0 < engine._cache.bytes <= 100_000
    assert engine._cache.bytes == sum(map(_bytes, engine._cache._states.values()))
    engine.close()


def _bytes(state: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def test_an_answer_ends_at_the_boundary_at_its_limit_or_where_the_context_is_full() -> None:
    model = made(Case("gpt", GPT))
    engine = Engine(model)
    generation = engine.submit(Request([1, 2, 3], 1000, ends=False))
    assert len(generation.read()) == 16 - 4 + 1
    assert generation.finish_reason == "length"
    for seed in range(9):
        generation = engine.submit(Request([1], 8, Sampling(seed=seed)))
        ids = sampled(generation.read())
        assert (generation.finish_reason == "stop") == (ids[-1] == 0)
        assert 0 not in ids[:-1]
    engine.close()


def test_what_cannot_be_answered_is_refused_in_one_line() -> None:
    engine = Engine(made(Case("gpt", GPT)), Limits(waiting=2))
    for request, line in [
        (Request([1] * 16, 1), "the prompt has 17 tokens, with the boundary that begins it, and the model's context is "
                               "16"),
        (Request([1, 5], 1), "token 5 is not in the vocabulary, whose ids are from 0 to 4"),
        (Request([1], -1), "max_tokens=-1"),
        (Request([1], 1, logprobs=21), "logprobs=21"),
    ]:
        with pytest.raises(UserError, match=line):
            engine.submit(request)
    assert len(engine.submit(Request([1] * 16, 0, prompt_logprobs=True)).read()) == 16
    engine.close()
    with pytest.raises(EngineClosed):
        engine.submit(Request([1], 1))


def test_too_many_requests_are_refused() -> None:
    engine = Engine(made(LONG), Limits(rows=1, waiting=1))
    engine._admit = lambda: None    # type: ignore[method-assign]
    engine.submit(Request([1], 1))
    with pytest.raises(EngineFull):
        engine.submit(Request([1], 1))
    engine.close(drain=False)


def test_a_cancelled_request_frees_its_row_and_changes_no_other() -> None:
    model, engine = made(LONG), Engine(made(LONG), Limits(rows=3))
    endless = [engine.submit(Request([1], 150, ends=False)) for _ in range(2)]
    kept = engine.submit(Request([1, 2], 40, Sampling(seed=2), ends=False))
    for generation in endless:
        generation.cancel()
    assert kept.read() == alone(model, Request([1, 2], 40, Sampling(seed=2), ends=False))
    assert engine.submit(Request([3], 3, ends=False)).read()
    engine.close()
    assert engine.stats.running == 0
    assert len(endless[0].read()) < 150


def test_a_model_that_fails_ends_the_requests_of_its_call_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(made(LONG))
    read = engine.model.next_logits
    engine.model.next_logits = lambda tokens, state: read(tokens + 9 if (tokens == 4).any() else tokens, state)
    bad, good = engine.submit(Request([4] * 70, 5)), engine.submit(Request([1] * 70, 5, ends=False))
    with pytest.raises(EngineError, match="the model failed on this request: "):
        bad.read()
    assert len(good.read()) == 5
    engine.close()
    assert "Traceback" in capsys.readouterr().err


def test_closing_finishes_what_is_under_way_or_ends_it() -> None:
    for drain in (True, False):
        engine = Engine(made(LONG))
        generation = engine.submit(Request([1], 100, ends=False))
        engine.close(drain)
        if drain:
            assert len(generation.read()) == 100
        else:
            with pytest.raises(EngineClosed):
                generation.read()


def test_tokens_come_to_an_event_loop_as_they_are_made() -> None:
    model = made(LONG)

    async def client(engine: Engine, request: Request) -> list[Token]:
        return [token async for tokens in engine.submit(request) for token in tokens]

    async def clients() -> list[list[Token]]:
        engine = Engine(model)
        found = await asyncio.gather(*(client(engine, request) for request in some_requests(9, 100)))
        engine.close()
        return found

    assert asyncio.run(clients()) == [alone(model, request) for request in some_requests(9, 100)]


def as_on_a_gpu(model: LanguageModel, rows: int = 8, **limits: int) -> Engine:
    """An engine with the groups, the sampling and the delayed reports of a GPU, on a CPU: all but the graphs."""
    engine = Engine(model, Limits(**limits))
    engine.shapes = replace(engine.shapes, gpu=True, rows=rows)
    return engine


class FakeGraph:
    """A graph that runs its function again when it is replayed, and not when it is captured."""

    def __init__(self, function: Callable[[], Iterable[Tensor]], inputs: list[Tensor], state: Iterable[Tensor]):
        self.function, self.state = function, list(state)

    def replay(self, inputs: Sequence[Tensor]) -> None:
        for static, new in zip(self.state, self.function(), strict=True):
            static.copy_(new)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_groups, row_sampling):
        monkeypatch.setattr(module, "capture_step", FakeGraph)
    monkeypatch.setattr(row_groups, "can_capture", lambda tensor: True)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_graphs_give_the_same_texts_however_long_rows_are_idle(positions: str) -> None:
    model = made(Case("gpt", {"layers": 1, "width": 16, "heads": 2, "context": 70, "positions": positions}))
    engine = as_on_a_gpu(model)
    for request in some_requests(30, 68):                # one by one: the other rows are idle for 150 steps
        together = engine.submit(request).read()
        assert [token.id for token in together] == [token.id for token in alone(model, request)]
    assert engine.stats.steps > 150
    groups = [*engine._prefill, *engine._decoding]
    assert all(group.state["length"].tolist() == group.held for group in groups)
    engine.close()


@pytest.mark.parametrize("case", [LONG, Case("lstm", {"hidden": 8}), Case("ngram", {"order": 3})], ids=str)
def test_the_schedule_of_a_gpu_gives_the_same_texts(case: Case) -> None:
    model, requests = made(case), some_requests(20, 100)
    engine = as_on_a_gpu(model)
    for request, together in zip(requests, answers(engine, requests)):
        single = alone(model, request)
        assert [token.id for token in together] == [token.id for token in single]
        for one, other in zip(together, single):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
    engine.close()


def test_more_rows_than_a_step_has_go_on_in_several_groups() -> None:
    model = made(LONG)
    engine = as_on_a_gpu(model, rows=2)
    texts = answers(engine, [Request([1, 2], 20, Sampling(seed=seed), ends=False) for seed in range(7)])
    assert [sampled(text) for text in texts] == [
        sampled(alone(model, Request([1, 2], 20, Sampling(seed=seed), ends=False))) for seed in range(7)]
    engine.close()


@pytest.mark.parametrize("vocab", [5, 300])
def test_rows_sampled_together_are_sampled_as_each_alone(vocab: int) -> None:
    random = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(40, vocab, generator=random)
    logits[:, 3] = -torch.inf
    uniform, seen = torch.rand(40, generator=random).double(), torch.rand(40, vocab, generator=random) < 0.3
    every = [replace(sampling, temperature=temperature) for sampling in SAMPLINGS
             for temperature in (0.0, 0.5, 1.0, 1.5, 1e-30, torch.inf)] + [Sampling(top_p=0.2, top_k=2, min_p=0.3)] * 10
    columns = Columns(*torch.tensor([column_values(sampling) for sampling in every])[..., None].unbind(1))
    tokens, possible = sample_rows(logits, columns, uniform, seen, True, vocab)
    for row, sampling in enumerate(every):
        own = seen[row : row + 1] if sampling.repetition_penalty != 1 else None
        one, sure = sample_token(logits[row : row + 1], sampling, uniform[row : row + 1], own)
        assert int(tokens[row]) == int(one), sampling
        assert bool(possible[row]) == bool(sure)
    padded = torch.nn.functional.pad(logits, (0, 11), value=-torch.inf)
    assert torch.equal(sample_rows(padded, columns, uniform, seen, True, vocab)[0], tokens)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**70 + 3])
def test_the_numbers_of_a_row_are_those_of_sampling(seed: int) -> None:
    for row in (0, 3):
        expected = [float(uniforms(seed, step, row + 1)[-1]) for step in range(2, 9)]
        assert row_uniforms(seed, row, 2, 7) == expected


def test_of_several_requests_all_are_taken_or_none() -> None:
    class AlmostFull:
        def __init__(self) -> None:
            self.taken: list[SimpleNamespace] = []

        def submit(self, request: Request) -> SimpleNamespace:
            if len(self.taken) == 2:
                raise EngineFull("full")
            one = SimpleNamespace(request=request, cancelled=False)
            one.cancel = lambda: setattr(one, "cancelled", True)
            self.taken.append(one)
            return one

    requests, engine = some_requests(3, 4), AlmostFull()
    assert [one.request for one in submit_all(engine, requests[:2])] == requests[:2]
    assert [one.cancelled for one in engine.taken] == [False, False]
    engine = AlmostFull()
    with pytest.raises(EngineFull):
        submit_all(engine, requests)
    assert [one.cancelled for one in engine.taken] == [True, True]
