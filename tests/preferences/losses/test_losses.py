"""The losses of preferences: DPO by hand on a model of two tokens, each loss against its formula written out."""

import math

import pytest
import torch

from chainrule.model import IGNORE, Batch, LanguageModel
from chainrule.preferences.encoding import PairBatch
from chainrule.preferences.losses.bradley_terry import bradley_terry
from chainrule.preferences.losses.dpo import dpo
from chainrule.preferences.losses.ipo import ipo
from chainrule.preferences.losses.kto import kto
from chainrule.preferences.losses.orpo import log_odds, orpo
from chainrule.preferences.losses.simpo import simpo
from chainrule.preferences.preference import PairObjective, PreferenceTraining


class TwoTokens(LanguageModel):
    """p(1) = σ(θ) whatever was read: a policy with one number."""

    def __init__(self, theta):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor(theta))

    def start(self, rows, source=None, lengths=None):
        return torch.zeros(rows)

    def step(self, tokens, state):
        logits = torch.stack([torch.zeros_like(self.theta), self.theta])
        return logits.expand(*tokens.shape, 2), state


def sigma(x):
    return 1 / (1 + math.exp(-x))


def test_dpo_by_hand_on_a_model_of_two_tokens():
    """Chosen 1 1, rejected 0: log π = 2 log σ(θ), and log(1 - σ(θ)); the reference has θ = 0: log ½ for each token."""
    theta, beta = 0.3, 0.5
    objective = PairObjective(TwoTokens(theta), PreferenceTraining(beta=beta))
    batch = PairBatch(
        torch.tensor([[0, 1, 1]]), torch.tensor([[IGNORE, 1, 1]]), torch.tensor([3]),
        source=torch.tensor([[0, 1, 0]]), source_lengths=torch.tensor([2]),
        rejected_targets=torch.tensor([[IGNORE, 0, IGNORE]]),
        reference_chosen=torch.tensor([2 * math.log(0.5)]), reference_rejected=torch.tensor([math.log(0.5)]),
    )
    loss, count, _ = objective.loss(batch)
    loss.backward()
    p = sigma(theta)
    margin = beta * ((2 * math.log(p) - 2 * math.log(0.5)) - (math.log(1 - p) - math.log(0.5)))
    assert int(count) == 1
    assert loss.item() == pytest.approx(-math.log(sigma(margin)), abs=1e-6)
    slope = beta * (2 * (1 - p) + p)          # d log σ(θ) = 1 - p, d log(1 - σ(θ)) = -p
    assert objective.body.theta.grad.item() == pytest.approx(-(1 - sigma(margin)) * slope, abs=1e-6)
    numbers = dict(zip(objective.metrics, objective.sums.tolist()))
    assert numbers["rewards/margins"] == pytest.approx([margin, 1], abs=1e-6)
    assert numbers["rewards/accuracies"] == [1, 1]
    assert numbers["completions/mean_length"] == [1.5, 1]


C, R, RC, RR = [-3.0, -7.5, -2.0], [-4.0, -6.0, -9.0], [-3.5, -7.0, -2.5], [-3.0, -6.5, -8.0]
NC, NR = [3, 5, 2], [4, 2, 6]


def t(values):
    return torch.tensor(values, dtype=torch.float64)


def test_dpo_is_the_log_sigmoid_of_the_difference_of_log_ratios():
    got = dpo(t(C), t(R), t(RC), t(RR), 0.2)
    assert got.tolist() == pytest.approx([
        -math.log(sigma(0.2 * ((c - rc) - (r - rr)))) for c, r, rc, rr in zip(C, R, RC, RR)])


def test_label_smoothing_takes_a_pair_to_be_the_wrong_way_round_sometimes():
    right, wrong = dpo(t(C), t(R), t(RC), t(RR), 0.2), dpo(t(R), t(C), t(RR), t(RC), 0.2)
    assert torch.allclose(dpo(t(C), t(R), t(RC), t(RR), 0.2, 0.1), 0.9 * right + 0.1 * wrong)


def test_ipo_is_the_squared_distance_of_mean_log_ratios_from_half_of_one_over_beta():
    got = ipo(t(C), t(R), t(RC), t(RR), 0.2, t(NC), t(NR))
    assert got.tolist() == pytest.approx([
        ((c - rc) / nc - (r - rr) / nr - 2.5) ** 2 for c, r, rc, rr, nc, nr in zip(C, R, RC, RR, NC, NR)])


def test_simpo_compares_mean_log_probabilities_with_a_margin():
    got = simpo(t(C), t(R), 2.0, 0.5, t(NC), t(NR))
    assert got.tolist() == pytest.approx([
        -math.log(sigma(2 * c / nc - 2 * r / nr - 0.5)) for c, r, nc, nr in zip(C, R, NC, NR)])


def test_orpo_adds_the_odds_ratio_to_fine_tuning():
    def odds(mean):
        return math.exp(mean) / (1 - math.exp(mean))

    got = orpo(t(C), t(R), 0.1, t(NC), t(NR))
    assert got.tolist() == pytest.approx([
        -c / nc - 0.1 * math.log(sigma(math.log(odds(c / nc) / odds(r / nr)))) for c, r, nc, nr in zip(C, R, NC, NR)])


def test_the_odds_of_a_sure_answer_are_finite():
    sure = torch.zeros(1, requires_grad=True)
    log_odds(sure).sum().backward()
    assert log_odds(sure).isfinite().all()
    assert sure.grad.isfinite().all()


def test_kto_weighs_liked_and_disliked_answers_against_the_kl():
    labels, kl = torch.tensor([True, False, True]), torch.tensor(0.7, dtype=torch.float64)
    got = kto(t(C), t(RC), labels, kl, 0.3, desirable=2.0, undesirable=0.5)
    ratios = [c - rc for c, rc in zip(C, RC)]
    assert got.tolist() == pytest.approx([
        2 * (1 - sigma(0.3 * (ratios[0] - 0.7))), 0.5 * (1 - sigma(0.3 * (0.7 - ratios[1]))),
        2 * (1 - sigma(0.3 * (ratios[2] - 0.7)))])


def test_bradley_terry_with_a_margin_and_centring():
    got = bradley_terry(t(C), t(R), t([0.0, 1.0, 2.0]), center=0.01)
    assert got.tolist() == pytest.approx([
        -math.log(sigma(c - r - m)) + 0.01 * (c + r) ** 2 for c, r, m in zip(C, R, [0, 1, 2])])


def test_a_row_that_is_only_padding_counts_nothing():
    objective = PairObjective(TwoTokens(0.3), PreferenceTraining())
    row = torch.tensor([[0, 1]])
    batch = PairBatch(row, torch.full((1, 2), IGNORE), torch.tensor([2]), source=row, source_lengths=torch.tensor([2]),
                      rejected_targets=row, reference_chosen=torch.zeros(1), reference_rejected=torch.zeros(1))
    loss, count, _ = objective.loss(batch)
    assert (loss.item(), int(count)) == (0, 0)
    assert not objective.sums.any()
    assert Batch in PairBatch.__mro__
