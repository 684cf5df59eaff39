"""The losses of REINFORCE, RLOO, PPO and GRPO, and KL estimators, against sums written out."""

import math

import pytest
import torch
from torch.testing import assert_close

from chainrule.preferences.reinforce.grpo import grpo_sum, grpo_token_loss
from chainrule.preferences.reinforce.kl import best_of_n_kl, estimate_kl
from chainrule.preferences.reinforce.policy_gradient import reinforce_loss, rloo_loss
from chainrule.preferences.reinforce.ppo import explained_variance, ppo_loss, token_rewards, value_loss

MASK = torch.tensor([[True, True, True], [False, True, False]])
OLD = torch.tensor([[-1.0, -2.0, -0.5], [0.0, -1.5, 0.0]])
NEW = torch.tensor([[-0.5, -2.1, -1.2], [0.0, -1.4, 0.0]])


def clipped(ratio: float, advantage: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ppo_clips_the_ratio_of_each_token(sign: float) -> None:
    advantages = sign * torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.5, 0.0]])
    loss, outside = ppo_loss(NEW, OLD, advantages)
    for row, place in MASK.nonzero().tolist():
        ratio = math.exp(float(NEW[row, place] - OLD[row, place]))
        assert float(loss[row, place]) == pytest.approx(clipped(ratio, float(advantages[row, place])), abs=1e-5)
    gone = [ratio > 1.2 if sign > 0 else ratio < 0.8 for ratio in (NEW - OLD).exp()[0].tolist()]
    assert outside[0].tolist() == gone


def test_a_clipped_ratio_has_no_gradient_and_one_inside_has_that_of_the_policy_gradient() -> None:
    new = NEW.clone().requires_grad_()
    loss, outside = ppo_loss(new, OLD, torch.ones(2, 3))
    loss.sum().backward()
    assert not new.grad[outside].any()
    assert_close(new.grad[~outside], -(NEW - OLD).exp()[~outside])


def test_at_the_first_step_all_methods_have_the_policy_gradient() -> None:
    advantages = torch.tensor([1.5, -2.0])
    gradients = []
    for loss in (
        lambda new: reinforce_loss(new, advantages).sum(),
        lambda new: rloo_loss(new, OLD, advantages)[0].sum(),
        lambda new: ppo_loss(new, OLD, advantages[:, None].expand(2, 3))[0].sum(),
        lambda new: grpo_token_loss(new, OLD, advantages)[0].sum(),
    ):
        new = OLD.clone().requires_grad_()
        loss(new).backward()
        gradients.append(new.grad)
    for gradient in gradients:
        assert_close(gradient, -advantages[:, None].expand(2, 3))


def test_rloo_clips_the_ratio_of_whole_answers() -> None:
    advantages = torch.tensor([1.0, -1.0])
    loss, outside = rloo_loss(NEW, OLD, advantages)
    ratios = [math.exp(float(NEW[row].sum() - OLD[row].sum())) for row in range(2)]
    assert_close(loss, torch.tensor([clipped(ratio, float(one)) for ratio, one in zip(ratios, advantages)]))
    assert outside.tolist() == [ratios[0] > 1.2, ratios[1] < 0.8]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators_are_their_formulas(estimator: str) -> None:
    for new, old in zip(NEW.flatten().tolist(), OLD.flatten().tolist()):
        difference = new - old
        expected = {"k1": difference, "k2": difference**2 / 2, "k3": math.exp(-difference) - 1 + difference}[estimator]
        assert float(estimate_kl(torch.tensor(new), torch.tensor(old), estimator)) == pytest.approx(expected, abs=1e-6)


def test_k1_and_k3_are_unbiased_under_the_policy() -> None:
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.2, 0.6]).double()
    kl = float((policy * (policy / reference).log()).sum())
    for estimator in ("k1", "k3"):
        assert float((policy * estimate_kl(policy.log(), reference.log(), estimator)).sum()) == pytest.approx(kl)


def test_grpo_sums_are_means_of_three_kinds() -> None:
    advantages = torch.tensor([1.0, -0.5])
    reference = OLD - 0.3
    loss, _ = grpo_token_loss(NEW, OLD, advantages, reference, beta=0.1)
    terms = {}
    for row, place in MASK.nonzero().tolist():
        difference = float(NEW[row, place] - reference[row, place])
        ratio = math.exp(float(NEW[row, place] - OLD[row, place]))
        kl = ratio * (math.exp(-difference) - 1 + difference)
        terms[row, place] = clipped(ratio, float(advantages[row])) + 0.1 * kl
    first, second = (sum(value for (row, _), value in terms.items() if row == wanted) for wanted in (0, 1))
    expected = {"grpo": (first / 3 + second) / 2, "dr_grpo": (first + second) / (2 * 5), "dapo": (first + second) / 4}
    for loss_type, value in expected.items():
        total, count = grpo_sum(loss, MASK, loss_type, 5)
        assert float(total / count) == pytest.approx(value, abs=1e-6), loss_type


def test_values_that_move_too_far_have_the_larger_error() -> None:
    values, old, returns = torch.tensor([1.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    assert_close(value_loss(values, old, returns, 0.2), torch.tensor([0.8**2 / 2, 0.9**2 / 2]))


def test_the_reward_of_an_answer_is_at_its_last_token_and_the_kl_penalty_at_all() -> None:
    kl = torch.tensor([[0.5, 0.1, 0.2], [9.0, 0.3, 9.0]])
    rewards = token_rewards(torch.tensor([2.0, -1.0]), kl, MASK, 0.1)
    assert_close(rewards, torch.tensor([[-0.05, -0.01, 2 - 0.02], [0.0, -1 - 0.03, 0.0]]))


def test_explained_variance_is_1_for_right_values_and_0_for_their_mean() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0], [7.0, 5.0, 7.0]])
    assert float(explained_variance(returns, returns, MASK)) == pytest.approx(1)
    assert float(explained_variance(torch.full((2, 3), 2.75), returns, MASK)) == pytest.approx(0)


def test_best_of_n_has_a_known_bound() -> None:
    assert best_of_n_kl(1) == 0
    assert best_of_n_kl(4) == pytest.approx(math.log(4) - 3 / 4)
