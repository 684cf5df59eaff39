"""Sizes: alike in what a token costs, larger with the budget, and no setting of the user is lost."""

import math
from dataclasses import replace

import pytest

from chainrule import models
from chainrule.defaults.budgets import (
    Budget,
    Compare,
    CorpusSize,
    ladder_kinds,
    recipe_for_budget,
    rounds_in,
    token_flops,
)
from chainrule.errors import UserError
from chainrule.tasks import recipe_for

LADDER = ladder_kinds()
NETWORKS = [kind for kind in LADDER if models.model_class(kind).learns_by == "gradient"]
BOOK = CorpusSize("characters", 322, 1_000_000)


def budget(minutes, device="cpu", **compare):
    return Budget.of(minutes, device, Compare(**compare))


@pytest.mark.parametrize(("minutes", "device"), [(0.4, "cpu"), (2, "cpu"), (30, "cpu"), (2, "cuda"), (60, "cuda")])
def test_a_token_costs_all_networks_about_the_same(minutes, device):
    costs = {kind: token_flops(recipe_for_budget(kind, BOOK, budget(minutes, device), {}), BOOK) for kind in NETWORKS}
    assert max(costs.values()) < 1.8 * min(costs.values()), costs


@pytest.mark.parametrize("kind", [*NETWORKS, "hmm"])
def test_more_time_makes_a_larger_model(kind):
    small, large = (token_flops(recipe_for_budget(kind, BOOK, budget(minutes), {}), BOOK) for minutes in (0.5, 30))
    assert large > 2 * small


@pytest.mark.parametrize("kind", NETWORKS)
def test_by_the_clock_all_have_the_same_minutes_and_by_flops_the_same_flops(kind):
    assert recipe_for_budget(kind, BOOK, budget(2), {}).train.minutes == 2
    recipe = recipe_for_budget(kind, BOOK, budget(2, by="flops", flops=1e12), {})
    assert recipe.train.minutes is None
    assert recipe.train.total_tokens * token_flops(recipe, BOOK) == pytest.approx(1e12, rel=1e-3)


def test_em_has_as_many_rounds_as_the_flops_hold():
    recipe = recipe_for_budget("hmm", BOOK, budget(2, by="flops"), {})
    cost = token_flops(recipe, BOOK) * BOOK.tokens * recipe.train.steps
    assert cost == pytest.approx(budget(2).flops, rel=0.1)
    assert 20 < recipe.train.steps < 200
    assert rounds_in(1, 100) == 1
    assert rounds_in(1e9, 1) == 500


def test_flops_by_the_clock_are_those_of_the_minutes():
    assert budget(2).flops == budget(2, by="flops").flops
    assert str(budget(2)) == "120 s"
    assert str(budget(2, by="flops", flops=1e12)) == "1e+12 FLOPs"


@pytest.mark.parametrize("kind", LADDER)
def test_what_is_asked_for_is_not_chosen_otherwise(kind):
    given = {"text.tokenizer": "bytes", "train.seed": "7"}
    given |= {"gpt": {"model.layers": "3"}, "ngram": {"model.order": "4"}, "hmm": {"model.states": "5"}}.get(kind, {})
    recipe = recipe_for_budget(kind, BOOK, budget(1), given)
    assert (recipe.kind, recipe.text.tokenizer, recipe.train.seed) == (kind, "bytes", 7)
    assert getattr(recipe.model, "layers", 3) in (1, 3)
    assert kind != "ngram" or recipe.model.order == 4
    assert kind != "hmm" or recipe.model.states == 5


def test_an_n_gram_is_longer_of_characters_than_of_pieces_of_words():
    sizes = [CorpusSize(unit, 300, 10**6) for unit in ("characters", "bpe")]
    assert [recipe_for_budget("ngram", size, budget(1), {}).model.order for size in sizes] == [7, 4]


def test_a_network_that_reads_its_text_often_is_kept_from_learning_it_by_heart():
    often = recipe_for_budget("gpt", BOOK, budget(2, "cuda"), {})
    assert (often.train.evaluate, often.model.dropout) == (0.05, 0.2)
    again = recipe_for_budget("gpt", replace(BOOK, tokens=150_000), budget(2), {})    # 19 epochs of a small network
    assert (again.train.evaluate, again.model.dropout) == (0.05, 0.1)
    large = recipe_for_budget("gpt", BOOK, budget(2), {})    # which has more tokens than the network parameters
    assert (large.train.evaluate, large.model.dropout) == (0, 0)
    once = recipe_for_budget("gpt", BOOK, budget(0.1), {})
    assert (once.train.evaluate, once.model.dropout) == (0, 0)


def test_counting_costs_no_flops():
    assert token_flops(recipe_for_budget("ngram", BOOK, budget(1), {}), BOOK) is None


@pytest.mark.parametrize("minutes", [0, -1, math.inf, math.nan])
def test_no_time_is_refused(minutes):
    with pytest.raises(UserError, match="--minutes"):
        budget(minutes)


@pytest.mark.parametrize(("compare", "says"), [
    ({"flops": 1e9}, "is for compare.by=flops"), ({"by": "flops", "flops": -1.0}, "more than 0"),
])
def test_flops_that_make_no_sense_are_refused(compare, says):
    with pytest.raises(UserError, match=says):
        Compare(**compare)


@pytest.mark.parametrize("kind", NETWORKS)
def test_what_is_chosen_fits_what_is_asked_for(kind):
    large = CorpusSize("characters", 322, 10**9)                     # read less than once
    for optimizer in ("adamw", "sgd"):
        train = recipe_for_budget(kind, large, budget(1), {"train.optimizer": optimizer}).train
        assert (train.optimizer, train.momentum) == (optimizer, None)
        assert (train.lr == recipe_for(kind, {"train.optimizer": optimizer}).train.lr) == (optimizer == "sgd")
    assert recipe_for_budget(kind, large, budget(1), {}).train.evaluate == 0
    assert recipe_for_budget(kind, large, budget(1), {"train.patience": "3"}).train.evaluate > 0
