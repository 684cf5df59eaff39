import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.inference.sampling import Sampling, distribution, draw, sample_token, uniforms

PROBS = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]])
LOGITS = PROBS.log() + 7                         # logits are log-probabilities up to a constant
EVENLY = (torch.arange(1000) + 0.5) / 1000       # numbers that lie evenly in [0, 1)


def probabilities(**settings) -> list[float]:
    return distribution(LOGITS, Sampling(**settings))[0].tolist()


def test_without_settings_the_distribution_is_the_models() -> None:
    assert probabilities() == pytest.approx(PROBS[0].tolist())


def test_temperature_0_takes_the_most_likely() -> None:
    assert probabilities(temperature=0) == [0, 1, 0, 0, 0]
    assert probabilities(temperature=0, top_k=3, top_p=0.9, min_p=0.1) == [0, 1, 0, 0, 0]


def test_an_infinite_temperature_makes_all_alike_even_the_impossible() -> None:
    assert probabilities(temperature=math.inf) == pytest.approx([0.2] * 5)
    impossible = torch.tensor([[0.0, -math.inf]])
    assert distribution(impossible, Sampling(temperature=math.inf)).tolist() == [[0.5, 0.5]]
    assert probabilities(temperature=math.inf, top_k=2) == pytest.approx([0, 0.5, 0, 0.5, 0])


@pytest.mark.parametrize("temperature", [0.5, 2.0, 1e-3, 1e3])
def test_temperature_is_the_power_1_over_t(temperature: float) -> None:
    powers = [p ** (1 / temperature) if temperature > 0.01 else float(p > 0.39) for p in PROBS[0].double().tolist()]
    assert probabilities(temperature=temperature) == pytest.approx([power / sum(powers) for power in powers], rel=1e-4)


def test_the_smallest_temperature_is_still_a_number() -> None:
    assert probabilities(temperature=5e-324) == [0, 1, 0, 0, 0]


def test_top_k_leaves_k_also_among_equals() -> None:
    assert probabilities(top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7, 0])
    assert probabilities(top_k=99) == pytest.approx(PROBS[0].tolist())
    equals = distribution(torch.zeros(2, 6), Sampling(top_k=3))
    assert (equals > 0).sum(-1).tolist() == [3, 3]


@pytest.mark.parametrize(("top_p", "left"), [(0.01, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.96, 5), (1, 5)])
def test_top_p_leaves_the_fewest_that_have_p(top_p: float, left: int) -> None:
    kept = sorted(PROBS[0].tolist(), reverse=True)[:left]
    assert sorted(probabilities(top_p=top_p), reverse=True)[:left] == pytest.approx([p / sum(kept) for p in kept])
    assert sum(p > 0 for p in probabilities(top_p=top_p)) == left


def test_top_p_stops_at_the_token_that_reaches_p() -> None:
    halves = torch.tensor([[0.25, 0.5, 0.25]]).log()
    assert distribution(halves, Sampling(top_p=0.5)).tolist() == [[0, 1, 0]]


@settings(deadline=None)
@given(st.integers(1, 60), st.floats(0.01, 0.999), st.integers(0, 9))
def test_top_p_is_found_also_past_the_tokens_sorted_first(first: int, top_p: float, seed: int) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chainrule.inference.sampling.TOP_P_FIRST", first)
        kept = distribution(logits, Sampling(top_p=top_p)) > 0
    probs = logits.softmax(-1)
    for row in range(3):
        mass = probs[row][kept[row]].sum()
        assert mass >= top_p - 1e-6
        assert mass - probs[row][kept[row]].min() < top_p + 1e-6


def test_min_p_is_relative_to_the_most_likely() -> None:
    assert probabilities(min_p=0.3) == pytest.approx([0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85])
    assert probabilities(min_p=1) == [0, 1, 0, 0, 0]


SIXTEENTHS = st.lists(st.integers(-99, 99), min_size=2, max_size=12, unique=True)    # no two tokens alike


@settings(deadline=None)
@given(SIXTEENTHS, st.integers(1, 12), st.floats(0.01, 1), st.floats(0, 1))
def test_a_token_must_pass_every_cut(logits: list[int], top_k: int, top_p: float, min_p: float) -> None:
    row = torch.tensor([logits]) / 16
    each = [Sampling(top_k=top_k), Sampling(top_p=top_p), Sampling(min_p=min_p)]
    alone = torch.stack([distribution(row, sampling) > 0 for sampling in each]).all(0)
    together = distribution(row, Sampling(top_k=top_k, top_p=top_p, min_p=min_p)) > 0
    assert together.tolist() == alone.tolist()
    assert together.any()


def test_the_temperature_changes_nobodys_place_in_the_cuts() -> None:
    for temperature in (0.2, 5.0, math.inf):
        assert [p > 0 for p in probabilities(temperature=temperature, top_p=0.6)] == [False, True, False, True, False]


def test_a_repeated_token_is_that_many_times_less_likely() -> None:
    seen = torch.tensor([[False, True, False, False, False]])
    given = distribution(LOGITS, Sampling(repetition_penalty=2.0), seen)[0]
    assert_close(given, torch.tensor([0.1, 0.2, 0.05, 0.3, 0.15]) / 0.8)


def test_rows_are_independent() -> None:
    rows = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.8, min_p=0.05)
    assert_close(distribution(rows, sampling)[2:3], distribution(rows[2:3], sampling))


def test_tokens_are_drawn_as_often_as_they_should() -> None:
    drawn, _ = draw(PROBS.expand(1000, -1), EVENLY)
    assert torch.bincount(drawn, minlength=5).tolist() == [100, 400, 50, 300, 150]


def test_a_token_of_probability_0_is_never_drawn() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(4, -1)
    uniform = torch.tensor([0.0, 0.5, 1 - 2**-53, 1.0], dtype=torch.float64)
    assert draw(probs, uniform)[0].tolist() == [1, 3, 3, 3]


def test_a_large_vocabulary_is_drawn_from_as_one_cumulative_distribution() -> None:
    generator = torch.Generator().manual_seed(1)
    probs = torch.rand(400, 1000, generator=generator) ** 20              # most of the mass on a few
    probs[:, 300:700] = 0
    probs[:200, 256:] = 0
    uniform = torch.rand(400, generator=generator, dtype=torch.float64)
    shares = probs.cumsum(-1, dtype=torch.float64)
    wanted = torch.searchsorted(shares, uniform[:, None] * shares[:, -1:], right=True)[:, 0]
    token, possible = draw(probs, uniform)
    assert token.tolist() == wanted.tolist()
    assert possible.all()
    ends = draw(probs, torch.ones(400, dtype=torch.float64))[0]
    assert (probs.gather(1, ends[:, None]) > 0).all()


def test_sampling_a_token_is_drawing_from_the_distribution() -> None:
    chosen, _ = sample_token(LOGITS.expand(1000, -1), Sampling(top_k=2), EVENLY)
    assert torch.bincount(chosen, minlength=5).tolist() == [0, 571, 0, 429, 0]
    assert sample_token(LOGITS, Sampling(temperature=0), torch.tensor([0.99]))[0].tolist() == [1]


@pytest.mark.parametrize("temperature", [0, 1])
def test_what_is_no_number_or_impossible_is_no_choice(temperature: float) -> None:
    logits = torch.tensor([[0.0, -math.inf], [0.0, math.nan], [-math.inf, -math.inf]])
    assert sample_token(logits, Sampling(temperature), torch.full((3,), 0.5))[1].tolist() == [True, False, False]


def test_no_possible_token_is_reported() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [-math.inf] * 3])
    token, possible = sample_token(logits, Sampling(), torch.tensor([0.5, 0.5]))
    assert possible.tolist() == [True, False]
    assert token.max() < 3


def test_the_numbers_of_the_first_rows_do_not_depend_on_how_many_follow() -> None:
    assert uniforms(7, 3, 256)[:5].tolist() == uniforms(7, 3, 5).tolist()
    drawn = torch.stack([uniforms(seed, step, 50) for seed in (1, 2) for step in range(20)])
    assert ((drawn >= 0) & (drawn < 1)).all()
    assert len(drawn.unique()) == drawn.numel()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-0.1, math.nan)),
        *(("top_k", value) for value in (0, -1)),
        *(("top_p", value) for value in (0.0, 1.1, -1.0, math.nan)),
        *(("min_p", value) for value in (-0.1, 1.1)),
        *(("repetition_penalty", value) for value in (0.0, -1.0, math.inf)),
        ("stop", ("",)),
        ("seed", -1),
    ],
)
def test_an_invalid_setting_is_named(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^{name}=.*must be"):
        Sampling(**{name: value})
