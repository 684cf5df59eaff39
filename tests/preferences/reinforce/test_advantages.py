"""Advantages against sums written out, one term at a time."""

import math
import statistics

import pytest
import torch
from torch.testing import assert_close

from chainrule.preferences.reinforce.advantages import (
    generalised_advantages,
    group_normalised,
    leave_one_out,
    next_baseline,
    whiten,
)

REWARDS = [0.5, 2.0, -1.0, 3.0, 0.0, 0.25]


def test_leaving_one_out_compares_each_answer_with_the_mean_of_the_others() -> None:
    expected = []
    for group in (REWARDS[:3], REWARDS[3:]):
        expected += [reward - sum(group[:place] + group[place + 1 :]) / 2 for place, reward in enumerate(group)]
    assert_close(leave_one_out(torch.tensor(REWARDS), 3), torch.tensor(expected))


def test_a_group_is_normalised_by_its_own_mean_and_unbiased_deviation() -> None:
    expected = []
    for group in (REWARDS[:3], REWARDS[3:]):
        mean, deviation = statistics.fmean(group), statistics.stdev(group)
        expected += [(reward - mean) / (deviation + 1e-4) for reward in group]
    assert_close(group_normalised(torch.tensor(REWARDS), 3), torch.tensor(expected))


def test_a_group_may_be_scaled_by_the_deviation_of_all_answers_or_not_at_all() -> None:
    means = [statistics.fmean(REWARDS[:3])] * 3 + [statistics.fmean(REWARDS[3:])] * 3
    centred = torch.tensor([reward - mean for reward, mean in zip(REWARDS, means)])
    assert_close(group_normalised(torch.tensor(REWARDS), 3, "none"), centred)
    assert_close(group_normalised(torch.tensor(REWARDS), 3, "batch"), centred / (statistics.stdev(REWARDS) + 1e-4))


def test_equal_rewards_have_no_advantage() -> None:
    same = torch.full((8,), 0.7)
    for advantages in (leave_one_out(same, 4), group_normalised(same, 4), group_normalised(same, 4, "batch")):
        assert_close(advantages, torch.zeros(8), atol=1e-3, rtol=0)


def test_the_baseline_is_a_moving_average_that_begins_with_the_first_mean() -> None:
    first = next_baseline(torch.tensor(math.nan), torch.tensor([1.0, 3.0]))
    assert float(first) == 2
    assert float(next_baseline(first, torch.tensor([12.0]))) == pytest.approx(0.9 * 2 + 0.1 * 12)


@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.9, 0.0)])
def test_generalised_advantages_are_discounted_sums_of_temporal_differences(discount: float, gae_lambda: float) -> None:
    torch.manual_seed(1)
    mask = torch.tensor([[False, True, True, True, False], [True, True, False, False, False]])
    rewards, values = torch.randn(2, 5), torch.randn(2, 5)
    advantages = generalised_advantages(rewards, values, mask, discount, gae_lambda)
    for row in range(2):
        places = [place for place in range(5) if mask[row, place]]
        for first, place in enumerate(places):
            total = 0.0
            for later, other in enumerate(places[first:]):
                after = 0.0 if other == places[-1] else float(values[row, other + 1])
                difference = float(rewards[row, other]) + discount * after - float(values[row, other])
                total += (discount * gae_lambda) ** later * difference
            assert float(advantages[row, place]) == pytest.approx(total, abs=1e-5)
    assert not advantages[~mask].any()


def test_with_lambda_1_advantages_and_values_sum_to_the_return() -> None:
    mask, values = torch.ones(1, 4, dtype=torch.bool), torch.randn(1, 4)
    rewards = torch.tensor([[0.0, 0.0, 0.0, 2.5]])
    assert_close(generalised_advantages(rewards, values, mask, 1.0, 1.0) + values, torch.full((1, 4), 2.5))


def test_whitening_leaves_mean_0_and_variance_1_where_the_mask_is() -> None:
    torch.manual_seed(1)
    mask, values = torch.rand(6, 9) > 0.4, 3 + 5 * torch.randn(6, 9)
    white = whiten(values, mask)
    assert float(white[mask].mean()) == pytest.approx(0, abs=1e-6)
    assert float(white[mask].var()) == pytest.approx(1, abs=1e-5)
    assert not white[~mask].any()
