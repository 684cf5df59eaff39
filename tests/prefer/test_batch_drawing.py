"""Pairs drawn in one batch, for a judge, are those that the engine draws one by one."""

import asyncio

import pytest
from prefer.made import PROMPTS, save_words

from chainrule.inference.sampling import Sampling
from chainrule.prefer import batch_drawing
from chainrule.prefer.batch_drawing import draw_pairs
from chainrule.prefer.drawing import Answer, NoPair, Pair, load_policy
from chainrule.prefer.judge import JUDGES, choose

ASKED = [(prompt, seed) for seed in (3, 4) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    policy = load_policy(save_words(tmp_path_factory.mktemp("runs")), Sampling(), 6)
    yield policy
    policy.close()


@pytest.mark.parametrize("dropped", [0.0, 0.5, 1.0])
def test_a_batch_draws_the_engines_pairs_whenever_rows_are_dropped(policy, monkeypatch, dropped):
    monkeypatch.setattr(batch_drawing, "DROPPED", dropped)

    async def both():
        return await draw_pairs(policy, ASKED), [await policy.draw_pair(*each) for each in ASKED]

    together, alone = asyncio.run(both())
    assert together == alone
    ended = {answer.ended for pair in together for answer in pair.answers}
    assert ended == {True, False}, "some answers of this test end, and some are cut"


def test_a_prompt_without_a_pair_is_no_reason_to_lose_the_others(policy, monkeypatch):
    async def refuse(prompt, seed):
        raise NoPair("all equal")

    monkeypatch.setattr(policy, "draw_pair", refuse)
    same = Answer("cat", 2, True)
    drawn = iter([same, same, same, Answer("dog ran", 3, True)])
    monkeypatch.setattr(batch_drawing, "draw_answers", lambda policy, asked: [next(drawn) for _ in asked])
    first, second = asyncio.run(draw_pairs(policy, ASKED[:2]))
    assert isinstance(first, NoPair)
    assert [answer.text for answer in second.answers] == ["cat", "dog ran"]


@pytest.mark.parametrize(("ended", "shorter", "longer"), [
    ((True, False), 0, 1), ((False, True), 1, 0), ((False, False), None, None), ((True, True), 1, 0),
])
def test_an_answer_that_was_cut_is_longer_than_one_that_ended(ended, shorter, longer):
    answers = Answer("a long answer", 3, ended[0]), Answer("a b c", 3, ended[1])
    pair = Pair("id", "a prompt", answers, 1, {})
    assert choose(JUDGES["shorter"], "shorter", pair) == shorter
    assert choose(JUDGES["longer"], "longer", pair) == longer
