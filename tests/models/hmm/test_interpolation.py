"""Interpolation (successive abstraction) against its definition, with every observation left out in turn."""

import math
from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from chainrule.models.hmm.interpolation import NO_CONTEXT, WEIGHTS, Interpolation, observe

ANSWERS, LEVELS, KINDS_UP_TO = 3, 4, 2


def some(seed: int, number: int = 80) -> list[tuple[tuple[int, ...], int]]:
    """Observations of nested contexts, frequent ones and rare ones; some have no third context."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for uniform, answer in zip(torch.rand(number, generator=generator), torch.rand(number, generator=generator)):
        place = int(40 * uniform**3)
        contexts = (1 + place % 2, 10 + place % 6, NO_CONTEXT if place % 5 == 0 else 100 + place % 12, 1000 + place)
        made.append((contexts, int(answer * 1.4 + place % 2)))
    return made


def by_hand(observations: list, contexts: tuple[int, ...], weights: list[float]) -> list[float]:
    """p of each answer by as many levels as there are weights."""
    answer = [1 / ANSWERS] * ANSWERS
    for level, weight in enumerate(weights):
        counted = observations if level >= KINDS_UP_TO else sorted(set(observations))
        here = Counter(y for c, y in counted if c[level] == contexts[level] != NO_CONTEXT)
        if here:
            answer = [(here[y] + weight * answer[y]) / (here.total() + weight) for y in range(ANSWERS)]
    return answer


def nats_left_out(observations: list, weights: list[float]) -> float:
    """-log p of every observation, or of every kind of them where those are counted, by all others."""
    level = len(weights) - 1
    every = observations if level >= KINDS_UP_TO else sorted(set(observations))
    total = 0.0
    for place, (contexts, answer) in enumerate(every):
        if contexts[level] != NO_CONTEXT:
            total -= math.log(by_hand(every[:place] + every[place + 1 :], contexts, weights)[answer])
    return total


def learned(observations: list) -> Interpolation:
    model = Interpolation(LEVELS, ANSWERS, tokens_from=KINDS_UP_TO)
    contexts, answers = zip(*observations)
    model.learn(observe(torch.tensor(contexts), torch.tensor(answers)))
    return model


@pytest.mark.parametrize("seed", range(4))
def test_weights_maximise_the_leave_one_out_likelihood(seed: int) -> None:
    observations, weights = some(seed), []
    for _ in range(LEVELS):
        nats = [nats_left_out(observations, [*weights, weight]) for weight in WEIGHTS.tolist()]
        weights.append(WEIGHTS.tolist()[nats.index(min(nats))])
    assert learned(observations).weights.tolist() == weights


@pytest.mark.parametrize("seed", range(4))
def test_probabilities_are_those_of_the_definition(seed: int) -> None:
    observations = some(seed)
    model = learned(observations[:60])
    contexts = [contexts for contexts, _ in observations]
    wanted = [by_hand(observations[:60], asked, model.weights.tolist()) for asked in contexts]
    found = model.probabilities(torch.tensor(contexts))
    assert_close(found, torch.tensor(wanted, dtype=torch.float64))
    below = model.probabilities(torch.tensor(contexts)[:, :2])
    assert_close(model.probabilities(torch.tensor(contexts)[:, 2:], below), found)


def test_an_untrained_model_is_uniform() -> None:
    asked = torch.tensor([[1, 10, 100, 1000]])
    model = learned(some(1))
    model.forget()
    assert model.probabilities(asked).tolist() == [[1 / 3] * 3]
    assert not model.knows(0, asked[:, 0]).any()


@pytest.mark.parametrize(("table", "value"), [
    ("seen_3", ANSWERS), ("seen_0", -1), ("starts_2", 1 << 40), ("starts_1", -1), ("keys_3", 1 << 62), ("counts_0", -5),
])
def test_counts_that_do_not_fit_each_other_are_refused(table: str, value: int) -> None:
    state = learned(some(1)).state_dict()
    Interpolation(LEVELS, ANSWERS, tokens_from=KINDS_UP_TO).load_state_dict(state)
    state[table][0] = value
    with pytest.raises(ValueError, match=f"the counts of level {table[-1]} are damaged"):
        Interpolation(LEVELS, ANSWERS, tokens_from=KINDS_UP_TO).load_state_dict(state)
