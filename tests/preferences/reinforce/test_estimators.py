"""Estimators by enumeration: what each KL estimator and each advantage gives on average, gradient included.

A policy of two tokens, each of three symbols, has nine answers: every mean is a sum over all of them, in float64. The
exact gradient is that of the exact quantity, by autograd.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from chainrule.model import IGNORE, Batch, LanguageModel
from chainrule.preferences.reinforce.advantages import group_normalised, leave_one_out
from chainrule.preferences.reinforce.environment import policy_log_probs
from chainrule.preferences.reinforce.grpo import grpo_token_loss
from chainrule.preferences.reinforce.kl import estimate_kl
from chainrule.preferences.reinforce.policy_gradient import reinforce_loss, rloo_loss

SYMBOLS = 3
ANSWERS = torch.tensor(list(itertools.product(range(SYMBOLS), repeat=2)))         # (9, 2)


def weights(seed: int) -> Tensor:
    """(4, 3) logits: of the first token, and of the second after each first one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1 + SYMBOLS, SYMBOLS, dtype=torch.float64, generator=generator)


def token_log_probs(logits: Tensor) -> Tensor:
    """(9, 2): log p of both tokens of every answer."""
    every = logits.log_softmax(-1)
    first, second = ANSWERS.T
    return torch.stack([every[0, first], every[1 + first, second]], 1)


@pytest.fixture
def policy() -> Tensor:
    return weights(1).requires_grad_()


REFERENCE = token_log_probs(weights(2))
REWARDS = torch.tensor([0.0, 1.0, 0.5, 2.0, -1.0, 0.0, 0.3, 0.7, 1.5], dtype=torch.float64)


def gradient(value: Tensor, policy: Tensor) -> Tensor:
    return torch.autograd.grad(value, policy, retain_graph=True)[0]


def mean_gradient(policy: Tensor, loss: Tensor) -> Tensor:
    """E[∇ loss of an answer] over the answers that the policy draws: the draw itself has no gradient."""
    drawn = token_log_probs(policy).sum(1).exp().detach()
    return gradient((drawn * loss).sum(), policy)


def exact_kl(first: Tensor, second: Tensor) -> Tensor:
    """KL divergence of whole answers, from their log-probabilities."""
    return (first.exp() * (first - second)).sum()


def test_the_sum_of_k1_or_k3_over_an_answer_has_the_kl_divergence_of_whole_answers_as_its_mean(policy: Tensor) -> None:
    log_probs = token_log_probs(policy)
    kl = exact_kl(log_probs.sum(1), REFERENCE.sum(1))
    for estimator in ("k1", "k3"):
        estimate = estimate_kl(log_probs, REFERENCE, estimator).sum(1)
        assert_close((log_probs.sum(1).exp() * estimate).sum(), kl)


def test_k1_in_the_loss_has_no_gradient_on_average(policy: Tensor) -> None:
    loss = estimate_kl(token_log_probs(policy), REFERENCE, "k1").sum(1)
    assert_close(mean_gradient(policy, loss), torch.zeros_like(policy))


def by_token(policy: Tensor, forward: bool) -> Tensor:
    """Σ over tokens of the KL divergence of the next symbol, the texts before it as drawn and without gradient."""
    ours, theirs = policy.log_softmax(-1), weights(2).log_softmax(-1)
    reached = torch.cat([torch.ones(1, dtype=torch.float64), ours[0].detach().exp()])
    pair = (theirs, ours) if forward else (ours, theirs)
    return (reached * (pair[0].exp() * (pair[0] - pair[1])).sum(1)).sum()


@pytest.mark.parametrize(("estimator", "forward"), [("k2", False), ("k3", True)])
def test_in_the_loss_k2_has_the_gradient_of_the_kl_of_each_token_and_k3_that_of_the_reverse(
    policy: Tensor, estimator: str, forward: bool
) -> None:
    loss = estimate_kl(token_log_probs(policy), REFERENCE, estimator).sum(1)
    assert_close(mean_gradient(policy, loss), gradient(by_token(policy, forward), policy))


@pytest.mark.parametrize(("corrected", "forward"), [(True, False), (False, True)])
def test_the_ratio_corrects_the_gradient_of_k3(policy: Tensor, corrected: bool, forward: bool) -> None:
    log_probs = token_log_probs(policy)
    loss, _ = grpo_token_loss(log_probs, log_probs.detach(), torch.zeros(len(ANSWERS)), REFERENCE, beta=1.0,
                              corrected=corrected)
    assert_close(mean_gradient(policy, loss.sum(1)), gradient(by_token(policy, forward), policy))


def test_k1_in_the_reward_has_the_gradient_of_the_kl_divergence_of_whole_answers(policy: Tensor) -> None:
    log_probs, beta = token_log_probs(policy), 0.3
    penalty = estimate_kl(log_probs.detach(), REFERENCE, "k1").sum(1)
    found = mean_gradient(policy, reinforce_loss(log_probs, REWARDS - beta * penalty))
    whole = log_probs.sum(1)
    objective = (whole.exp() * REWARDS).sum() - beta * exact_kl(whole, REFERENCE.sum(1))
    assert_close(found, -gradient(objective, policy))


def test_at_the_optimum_the_reward_with_its_penalty_is_the_same_for_all_answers_so_no_advantage_is_left() -> None:
    beta = 0.4
    best = (REFERENCE.sum(1) + REWARDS / beta).log_softmax(0)
    penalised = REWARDS - beta * estimate_kl(best, REFERENCE.sum(1), "k1")
    assert float(penalised.max() - penalised.min()) < 1e-12
    for advantages in (leave_one_out(penalised, 3), group_normalised(penalised, 3)):
        assert float(advantages.abs().max()) < 1e-6


def groups(policy: Tensor) -> tuple[Tensor, Tensor]:
    """(81, 2) every group of two answers, and (81,) how probable it is."""
    pairs = torch.tensor(list(itertools.product(range(len(ANSWERS)), repeat=2)))
    return pairs, token_log_probs(policy).sum(1).detach()[pairs].sum(1).exp()


def test_leaving_one_out_is_an_unbiased_baseline(policy: Tensor) -> None:
    """The mean over all groups is the gradient of the expected reward, at the first step after a rollout."""
    pairs, probable = groups(policy)
    log_probs = token_log_probs(policy)[pairs.flatten()]
    advantages = leave_one_out(REWARDS[pairs].flatten(), 2)
    loss, _ = rloo_loss(log_probs, log_probs.detach(), advantages)
    found = gradient((probable * loss.view(-1, 2).mean(1)).sum(), policy)
    expected = (token_log_probs(policy).sum(1).exp() * REWARDS).sum()
    assert_close(found, -gradient(expected, policy))


def test_the_mean_of_a_group_is_a_baseline_that_shortens_the_gradient_by_a_share(policy: Tensor) -> None:
    """GRPO's mean contains the answer itself: (n - 1) / n of the gradient is left, in the same direction."""
    pairs, probable = groups(policy)
    log_probs = token_log_probs(policy)[pairs.flatten()]
    advantages = group_normalised(REWARDS[pairs].flatten(), 2, "none")
    found = gradient((probable * reinforce_loss(log_probs, advantages).view(-1, 2).mean(1)).sum(), policy)
    expected = (token_log_probs(policy).sum(1).exp() * REWARDS).sum()
    assert_close(found, -0.5 * gradient(expected, policy))


def test_entropy_is_the_sum_over_the_vocabulary_at_each_token_of_an_answer() -> None:
    class Table(LanguageModel):
        """Logits by the token that was read last."""

        def forward(self, batch: Batch) -> Tensor:
            return weights(1).float()[batch.tokens]

    tokens, targets = torch.tensor([[0, 1, 2], [3, 0, 0]]), torch.tensor([[IGNORE, 2, 0], [1, IGNORE, IGNORE]])
    log_probs, entropy = policy_log_probs(Table(), Batch(tokens, targets), temperature=0.7)
    rows = (weights(1) / 0.7).softmax(-1).tolist()
    for row in range(2):
        total = 0.0
        for place in range(3):
            target, probabilities = int(targets[row, place]), rows[int(tokens[row, place])]
            if target != IGNORE:
                total -= sum(p * math.log(p) for p in probabilities)
            expected = 0.0 if target == IGNORE else math.log(probabilities[target])
            assert float(log_probs[row, place]) == pytest.approx(expected, abs=1e-5)
        assert float(entropy[row]) == pytest.approx(total, abs=1e-5)
