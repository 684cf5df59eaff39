"""Baum–Welch: no round lowers the likelihood; how rows are split changes no count; smoothing and forbidden moves."""

from itertools import pairwise

import pytest
import torch
from models.hmm.small_hmms import LENGTHS, ROWS, assert_same_statistics, made, shakespeare
from torch.testing import assert_close

from chainrule.model import BOUNDARY, Batch, cross_entropy, watch
from chainrule.models.hmm.hmm import forward_backward


@pytest.mark.parametrize("smoothing", [0.0, 1e-6])
def test_no_round_lowers_the_likelihood(smoothing: float) -> None:
    model = made(6, 5, smoothing=smoothing)
    rows = torch.randint(5, (8, 40), generator=torch.Generator().manual_seed(3))
    rows[:, 0] = BOUNDARY
    seen = []
    for _ in range(200):
        statistics = model.collect(Batch(rows[:, :-1], rows[:, 1:]))
        seen.append(statistics.nats)
        model.update(statistics)
    assert all(after <= before + 1e-9 * abs(before) for before, after in pairwise(seen))
    assert seen[-1] < seen[0] - 10
    for table in model.initial, model.transition, model.emission:
        assert_close(table.sum(-1), torch.ones_like(table.sum(-1)))


@pytest.mark.data
def test_no_round_on_a_real_text_lowers_the_likelihood() -> None:
    rows, model = shakespeare(32), made(32, 28, smoothing=1e-6)
    seen = []
    for _ in range(20):
        statistics = model.collect(Batch(rows[:, :-1], rows[:, 1:]))
        seen.append(statistics.nats)
        model.update(statistics)
    assert all(after < before for before, after in pairwise(seen))


def test_the_nats_of_a_round_are_those_of_the_loss() -> None:
    model, rows = made(), ROWS.clone()
    rows[:, 0] = BOUNDARY
    batch = Batch(rows[:, :-1], rows[:, 1:], torch.tensor([5, 5, 2, 4]))
    assert model.collect(batch).nats == pytest.approx(float(cross_entropy(model(batch), batch)[0]), rel=1e-6)


def test_blocks_and_batches_change_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = made(), Batch(ROWS[:, :-1], ROWS[:, 1:], LENGTHS - 1)
    whole, paths, gamma = model.collect(batch), model.viterbi(ROWS, LENGTHS)[0], model.posteriors(ROWS, LENGTHS)
    halves = [Batch(ROWS[rows, :-1], ROWS[rows, 1:], LENGTHS[rows] - 1) for rows in (slice(0, 1), slice(1, 4))]
    assert_same_statistics(model.collect(halves[0]) + model.collect(halves[1]), whole)
    monkeypatch.setattr(forward_backward, "MESSAGES", 18)
    assert len(list(model._packed(ROWS, LENGTHS))) > 2
    assert_same_statistics(model.collect(batch), whole)
    assert torch.equal(model.viterbi(ROWS, LENGTHS)[0], paths)
    assert_close(model.posteriors(ROWS, LENGTHS), gamma)
    assert_close(*(made().score(ROWS[:, :-1], ROWS[:, 1:], made().start(4))[0] for _ in range(2)))


def test_long_texts_are_scored_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    whole, state = model.score(ROWS[:, :-1], ROWS[:, 1:], model.start(4))
    monkeypatch.setattr(forward_backward, "MESSAGES", 4 * 3 * 2)
    with watch(model, "belief") as seen:
        pieces, after = model.score(ROWS[:, :-1], ROWS[:, 1:], model.start(4))
    assert len(seen["belief"]) == 3
    assert_close(pieces, whole)
    assert_close(after, state)


def test_an_empty_row_adds_no_counts() -> None:
    model = made()
    batch = Batch(torch.tensor([[3, 1]]), torch.tensor([[1, 1]]), torch.tensor([0]))
    statistics = model.collect(batch)
    assert (float(statistics.emissions.sum()), statistics.nats) == (0, 0)
    before = model.emission.clone()
    model.update(statistics)
    assert torch.equal(model.emission, before)


def test_a_batch_with_context_that_does_not_count_is_refused() -> None:
    with pytest.raises(ValueError, match="whole rows"):
        made().collect(Batch(ROWS[:, :-1], ROWS[:, 1:], context_only=torch.tensor([1, 1, 1, 1])))


def test_a_state_without_counts_stays_unchanged() -> None:
    model = made(2, smoothing=0.5)
    before = model.transition[1].clone(), model.emission[1].clone()
    model.update(model.count_paths(torch.tensor([[0, 0]]), torch.tensor([[1, 2]])))
    assert_close((model.transition[1], model.emission[1]), before)
    assert_close(model.emission[0], torch.tensor([0.5, 1.5, 1.5, 0.5], dtype=torch.float64) / 4)


def test_smoothing_leaves_no_token_impossible_and_forbidden_moves_forbidden() -> None:
    model = made(6, 5, smoothing=1e-6, successors=2)
    model.update(model.collect(Batch(torch.tensor([[0, 1, 1, 2]]), torch.tensor([[1, 1, 2, 0]]))))
    assert (model.emission[model.emission.sum(1) > 0] > 0).all()
    assert (model.transition > 0).sum(1).tolist() == [2] * 6


def test_sparse_transitions_let_every_state_be_reached() -> None:
    model = made(32, successors=3)
    allowed = (model.transition > 0).double()
    assert (allowed.sum(1) == 3).all()
    reached = torch.linalg.matrix_power(allowed + torch.eye(32), 31) > 0
    assert reached.all()


def test_a_seed_repeats_a_start_and_another_does_not() -> None:
    assert torch.equal(made(seed=3).transition, made(seed=3).transition)
    assert not torch.equal(made(seed=3).transition, made(seed=4).transition)


def test_a_thousand_states_learn_and_find_paths() -> None:
    model = made(1024, 10, successors=32, smoothing=1e-6)
    rows = torch.randint(1, 10, (16, 20), generator=torch.Generator().manual_seed(1))
    rows[:, 0] = BOUNDARY
    batch = Batch(rows[:, :-1], rows[:, 1:])
    before = model.collect(batch)
    model.update(before)
    assert model.collect(batch).nats < before.nats
    paths, log_p = model.viterbi(rows)
    assert (model.transition[paths[:, 1:-1], paths[:, 2:]] > 0).all()
    assert (log_p <= model.log_likelihood(rows)).all()
