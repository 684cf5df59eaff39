import math
from itertools import pairwise

import pytest

from chainrule.recipe import Gradient
from chainrule.training.schedule import TrainingBudget, lr_factor, make_budget, make_evaluation_schedule


def curve(points=1000, **given):
    settings = Gradient(**given)
    return [lr_factor(settings, (step + 0.5) / points) for step in range(points)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_every_schedule_warms_up_in_a_straight_line_and_ends_where_it_should(schedule):
    rates = curve(schedule=schedule, warmup=0.1, decay=0.2, final_lr=0.25)
    top = 1 if schedule in ("wsd", "constant") else rates[100]
    assert rates[49] == pytest.approx(0.495 * rates[100] / top, abs=0.01)
    assert max(rates) == pytest.approx(1, abs=1e-2)
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.25, abs=5e-3)
    falling = rates[100:]
    assert all(after <= before + 1e-12 for before, after in pairwise(falling))


def test_the_shapes_differ_where_they_should():
    middle = {name: curve(schedule=name, warmup=0, decay=0.2, final_lr=0)[499] for name in ("cosine", "linear", "wsd")}
    assert middle["cosine"] == pytest.approx(0.5, abs=2e-3)
    assert middle["linear"] == pytest.approx(0.5, abs=2e-3)
    assert middle["wsd"] == 1
    quarter = {name: curve(schedule=name, warmup=0, final_lr=0)[250] for name in ("cosine", "linear")}
    assert quarter["cosine"] == pytest.approx((1 + math.cos(math.pi / 4)) / 2, abs=2e-3)
    assert quarter["linear"] == pytest.approx(0.75, abs=2e-3)
    assert curve(schedule="wsd", warmup=0, decay=0.2, final_lr=0)[899] == pytest.approx(0.5, abs=5e-3)


def test_no_step_has_a_learning_rate_of_zero():
    assert min(curve(points=10, warmup=0.3, final_lr=0)) > 0


def test_without_warm_up_the_first_step_is_the_highest():
    assert curve(warmup=0)[0] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 2.5}, 50),
        ({"epochs": 0.001}, 1),
        ({"total_tokens": 6400}, 100),
        ({}, 200),
    ],
)
def test_a_budget_in_any_unit_is_steps(given, steps):
    budget = make_budget(Gradient(**given), epoch=20.0, tokens=64)
    assert budget.steps == steps
    assert budget.progress(steps, seconds=1e9) == 1


def test_a_budget_in_minutes_is_the_clock():
    budget = make_budget(Gradient(minutes=2), epoch=20.0, tokens=64)
    assert budget.steps is None
    assert budget.progress(10**9, seconds=30) == 0.25


def evaluations_at(budget, **given):
    """Steps at which a training by this budget evaluates."""
    schedule, last, seen = make_evaluation_schedule(Gradient(**given), budget), 0, []
    for step in range(1, budget.steps):
        if schedule.due(step - last, (step - last) / budget.steps):
            last = step
            seen.append(step)
    return seen


def test_evaluations_come_by_steps_by_share_by_epoch_or_never():
    budget = TrainingBudget(steps=100, seconds=None, epoch=12.5)
    assert evaluations_at(budget, evaluate=30) == [30, 60, 90]
    assert evaluations_at(budget, evaluate=0.25) == [25, 50, 75]
    assert evaluations_at(budget) == [13, 26, 39, 52, 65, 78, 91]
    assert evaluations_at(TrainingBudget(steps=100, seconds=None, epoch=1.0)) == list(range(5, 100, 5))
    assert evaluations_at(budget, evaluate=0) == []
