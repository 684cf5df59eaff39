"""Rollouts: answers are repeated by a seed, follow the weights of the policy, and the decode loop is used again."""

from typing import Any

import numpy as np
import pytest
import torch
from contract.moved import moved
from contract.played_graph import PlayedGraph, play_graphs

from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.layers.lora import LoRA, add_parametrization
from chainrule.model import IGNORE
from chainrule.models import build
from chainrule.preferences.reinforce.rollouts import (
    Answers,
    Sampler,
    answer_rows,
    best_of_n,
    find_ends,
    plain_copy,
    rollout_seed,
)
from chainrule.tasks import recipe_for

VOCAB = 15
KINDS = {
    "gpt": {"layers": 2, "width": 16, "heads": 2, "context": 48, "zero_init": False},
    "lstm": {"hidden": 8, "layers": 1, "dropout": 0.0},
    "feedforward": {"order": 3, "embedding": 8, "hidden": 8, "dropout": 0.0},
}
PROMPTS = [np.array([1, 2, 3])] * 3 + [np.array([4])] * 3 + [np.array([5, 6, 7])] * 2
LIMIT = 14


def policy_of(kind: str) -> Any:
    torch.manual_seed(2)
    recipe = recipe_for(kind, {f"model.{name}": value for name, value in KINDS[kind].items()})
    return moved(build(kind, recipe.model, VOCAB), 0.5).eval()


def change(policy: Any) -> None:
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_update_a_sampler_draws_what_a_new_one_would(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play_graphs(monkeypatch)
    policy = policy_of(kind)
    sampler = Sampler(policy, LIMIT, longest=4)
    before = sampler.draw(PROMPTS, 1)
    captured = sampler.loop.graph
    assert captured is not None
    change(policy)
    longer = [np.append(prompt, 8) for prompt in PROMPTS]
    for prompts in (PROMPTS, longer, PROMPTS):
        again, new = sampler.draw(prompts, 1), Sampler(policy, LIMIT).draw(prompts, 1)
        np.testing.assert_array_equal(again.tokens, new.tokens)
        assert sampler.loop.graph is captured              # memory for the longest prompt was reserved at first
    assert (again.tokens != before.tokens).any()
    assert PlayedGraph.replays > 3 * (LIMIT - 3)


def test_a_prompt_that_does_not_fit_the_captured_memory_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play_graphs(monkeypatch)
    policy = policy_of("gpt")
    sampler = Sampler(policy, LIMIT)
    sampler.draw(PROMPTS, 1)
    long = [np.append(prompt, [8] * 20) for prompt in PROMPTS]
    captured = sampler.loop.graph
    np.testing.assert_array_equal(sampler.draw(long, 2).tokens, Sampler(policy, LIMIT).draw(long, 2).tokens)
    assert sampler.loop.graph is not captured
    few = PROMPTS[:2]
    np.testing.assert_array_equal(sampler.draw(few, 2).tokens, Sampler(policy, LIMIT).draw(few, 2).tokens)


def test_a_rollout_is_a_sample_by_its_seed() -> None:
    policy = policy_of("lstm")
    seed = rollout_seed(1, 7)
    drawn = Sampler(policy, LIMIT).draw(PROMPTS, seed)
    columns = torch.stack(list(sample(policy, PROMPTS, LIMIT, Sampling(seed=seed))), 1).numpy()
    np.testing.assert_array_equal(drawn.tokens, find_ends(columns).tokens)
    assert len({rollout_seed(seed, number) for seed in range(20) for number in range(20)}) == 400


def test_adapters_are_merged_into_the_copy_that_draws() -> None:
    policy = policy_of("gpt")
    names = [name for name, one in policy.named_parameters() if one.dim() == 2 and "blocks" in name]
    for name in names:
        add_parametrization(policy, name, LoRA(policy.get_parameter(name), 2, 2.0))
    sampler = Sampler(policy, LIMIT)
    assert {*sampler.model.state_dict()} == {*policy_of("gpt").state_dict()}
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.endswith(".up"):
                parameter.normal_()
    drawn = sampler.draw(PROMPTS, 3)
    np.testing.assert_array_equal(drawn.tokens, Sampler(plain_copy(policy), LIMIT).draw(PROMPTS, 3).tokens)


def test_an_answer_ends_with_the_boundary_or_the_end_of_a_turn_or_is_cut() -> None:
    answers = find_ends(np.array([[3, 0, 0], [3, 9, 0], [3, 4, 5]]), 9)
    assert answers.lengths.tolist() == [2, 2, 3]
    assert answers.ended.tolist() == [True, True, False]
    assert [answers.ids(row) for row in range(3)] == [[3], [3], [3, 4, 5]]


def test_rows_are_teacher_forced_and_prompts_are_no_targets() -> None:
    answers = Answers(np.array([[7, 0, 0], [8, 9, 5]]), np.array([2, 3]), np.array([True, False]))
    batch = answer_rows([np.array([1, 2]), np.array([3])], answers, multiple=4, most=6)
    assert batch.tokens.tolist() == [[0, 1, 2, 7], [0, 3, 8, 9]]
    assert batch.targets.tolist() == [[IGNORE, IGNORE, 7, 0], [IGNORE, 8, 9, 5]]
    assert batch.lengths.tolist() == [4, 4]
    wide = answer_rows([np.array([1, 2]), np.array([3])], answers, multiple=5, most=6)
    assert wide.tokens.shape == (2, 5)
    assert (wide.loss_mask == (wide.targets != IGNORE)).all()


def test_the_best_of_n_answers_has_the_highest_reward() -> None:
    policy = policy_of("gpt")

    class Letters:
        def decode(self, ids: list[int]) -> str:
            return "".join(chr(96 + id) for id in ids)

    sampler = Sampler(policy, 6)
    prompts, contents = [np.array([1]), np.array([2])], ["a", "b"]
    chosen, rewards = best_of_n(sampler, prompts, contents, Letters(), lambda _, answers: [*map(len, answers)], 5, 3)
    every = sampler.draw([prompt for prompt in prompts for _ in range(5)], 3)
    sizes = np.array([len(every.ids(row)) for row in range(10)]).reshape(2, 5)
    assert rewards == sizes.max(1).tolist()
    assert [len(text) for text in chosen] == rewards
