"""Impossible texts have probability 0 and no path; tokens that are only unlikely do not underflow."""

import math

import pytest
import torch
from models.hmm.small_hmms import from_tables
from torch.testing import assert_close

from chainrule.model import Batch, cross_entropy
from chainrule.models.hmm.hmm import HMM


def impossible() -> HMM:
    """State 0 says only 1 and goes to 1, state 1 says only 2 and goes to 0; 3 is never said."""
    return from_tables([1, 0], [[0, 1], [1, 0]], [[0, 1, 0, 0], [0, 0, 1, 0]])


def test_an_impossible_text_has_probability_0_and_no_nan() -> None:
    model = impossible()
    rows = torch.tensor([[0, 1, 2, 1], [0, 1, 1, 2], [0, 3, 1, 2], [0, 1, 0, 1]])
    assert model.log_likelihood(rows).tolist() == [0, -math.inf, -math.inf, -math.inf]
    paths, log_p = model.viterbi(rows)
    assert log_p.tolist() == [0, -math.inf, -math.inf, -math.inf]
    assert paths.tolist() == [[-1, 0, 1, 0]] + [[-1] * 4] * 3
    assert model.posteriors(rows)[1:3].sum() == 0
    statistics = model.collect(Batch(rows[:, :-1], rows[:, 1:]))
    assert statistics.nats == math.inf
    assert statistics.emissions.tolist() == [[0, 3, 0, 0], [0, 0, 1, 0]]     # of the first row and of the last text
    model.update(statistics)
    shown = model.trellis(torch.tensor([1, 3, 2]))
    for tensor in (model.transition, model.emission, shown.forward, shown.backward, shown.posterior, shown.delta):
        assert not tensor.isnan().any()


def test_after_an_impossible_token_the_model_goes_on() -> None:
    model = impossible()
    rows = torch.tensor([[0, 3, 2, 1]])
    scores, _ = model.score(rows[:, :-1], rows[:, 1:], model.start(1))
    assert scores.tolist() == [[-math.inf, 0, 0]]
    logits, _ = model.step(rows, model.start(1))
    assert_close(logits.exp().sum(-1), torch.ones(1, 4))
    batch = Batch(rows[:, :-1], rows[:, 1:])
    assert float(cross_entropy(model(batch), batch)[0]) == math.inf


def test_an_impossible_text_has_no_path() -> None:
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0, 1, 0, 0], [0, 0, 1, 0]])
    paths, log_p = model.viterbi(torch.tensor([[1, 2, 2], [1, 3, 2]]))
    assert paths.tolist() == [[0, 1, 1], [-1, -1, -1]]
    assert log_p.tolist() == pytest.approx([3 * math.log(0.5), -math.inf])


def test_unlikely_tokens_do_not_underflow() -> None:
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[1e-200, 1.0], [1e-200, 1.0]])
    rows = torch.tensor([[1, 0] * 50])
    assert float(model.log_likelihood(rows)) == pytest.approx(50 * math.log(1e-200))
    assert float(model.viterbi(rows)[1]) == pytest.approx(50 * math.log(1e-200) + 100 * math.log(0.5))


def test_a_probability_too_small_to_divide_by_is_impossible() -> None:
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[1e-310, 1.0], [1e-310, 1.0]])
    rows = torch.tensor([[1, 0, 1], [1, 1, 1]])
    assert model.log_likelihood(rows)[0] == -math.inf
    assert model.posteriors(rows).isfinite().all()
    assert_close(model.step(rows, model.start(2))[0][..., 1].exp(), torch.ones(2, 3))
