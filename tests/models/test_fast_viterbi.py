"""The fast Viterbi search finds the paths of the plain one, or says that it is in doubt."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.test_hmm import every_path, from_tables, made, texts_of
from torch.testing import assert_close

from chainrule.models.hmm import fast_viterbi, forward_backward, viterbi


def tables_of(model):
    return model.initial, model.transition, model.emission


def random_rows(model, rows, length, seed=1):
    return torch.randint(1, model.emission.shape[1], (rows, length), generator=torch.Generator().manual_seed(seed))


def packed_rows(rows, states):
    return next(forward_backward.pack_texts(rows, torch.ones_like(rows, dtype=torch.bool), states))


def sharpened(model, power):
    """The same model with all its probabilities to a power: the larger it is, the smaller the small ones become."""
    for table in tables_of(model):
        table.pow_(power)
        table /= table.sum(-1, keepdim=True)
    return model


def assert_best_paths(model, rows, lengths=None):
    """Each row's path is as probable as that of the plain search, to all but the last digits."""
    real = model._real(rows, lengths)
    plain = torch.zeros_like(rows)
    for packed in forward_backward.pack_texts(rows, real, len(model.initial)):
        packed.unpack(viterbi._backtrack(packed, *tables_of(model)), plain)
    best = viterbi.path_log_prob(plain, rows, real, *tables_of(model))
    paths, log_p = model.viterbi(rows, lengths)
    again = viterbi.path_log_prob(paths.clamp(min=0), rows, real, *tables_of(model))
    possible = best > -torch.inf
    assert_close(log_p, best, rtol=1e-11, atol=1e-11)
    assert torch.equal(log_p[possible], again[possible])
    assert torch.equal(paths >= 0, real & possible[:, None])


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), states=st.integers(1, 40), length=st.integers(1, 60), sharp=st.floats(0.1, 6))
def test_where_float32_is_certain_its_path_is_as_probable_as_that_of_the_plain_search(seed, states, length, sharp):
    model = sharpened(made(states, 6, seed), sharp)
    rows = random_rows(model, 5, length, seed)
    packed, real = packed_rows(rows, states), torch.ones_like(rows, dtype=torch.bool)
    smallest, largest = model.transition.aminmax()
    if largest / smallest < 1e15:
        fast, plain = torch.zeros_like(rows), torch.zeros_like(rows)
        packed.unpack(fast_viterbi.Search(*tables_of(model), torch.float32)(packed), fast)
        packed.unpack(viterbi._backtrack(packed, *tables_of(model)), plain)
        certain = (fast < states).all(1)
        found = viterbi.path_log_prob(fast.clamp(max=states - 1), rows, real, *tables_of(model))
        best = viterbi.path_log_prob(plain, rows, real, *tables_of(model))
        assert_close(found[certain], best[certain], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("states", [1, 2, 3, 17])
@pytest.mark.parametrize("power", [0.01, 1, 8])
def test_paths_are_as_probable_as_those_of_the_plain_search(states, power):
    model = sharpened(made(states, 6, seed=states), power)
    rows = torch.randint(6, (40, 31), generator=torch.Generator().manual_seed(states))        # with boundaries
    assert_best_paths(model, rows, torch.arange(40) % 31 + 1)
    assert_best_paths(model, random_rows(model, 300, 12), None)


def test_paths_are_the_best_of_all_paths():
    model = made(3, 4, seed=7)
    rows = torch.cat([random_rows(model, 400, 6), torch.tensor([[0, 1, 2, 0, 3, 3]])])
    paths, log_p = model.viterbi(rows)
    for row, path, total in zip(rows.tolist(), paths.tolist(), log_p.tolist()):
        bests = [max(every_path(model, text).items(), key=lambda item: item[1]) for text in texts_of(row)]
        assert total == pytest.approx(sum(math.log(p) for _, p in bests), rel=1e-12)
        joint = [every_path(model, text)[tuple(path[-len(text):])] for text in texts_of(row)[-1:]]
        assert joint[0] == pytest.approx(bests[-1][1], rel=1e-12)


def test_forbidden_transitions_are_on_no_path():
    model = made(6, 5, successors=2)
    assert (model.transition == 0).any()
    rows = random_rows(model, 300, 20)
    paths, log_p = model.viterbi(rows)
    assert (model.transition[paths[:, :-1], paths[:, 1:]] > 0).all()
    assert log_p.isfinite().all()
    assert_best_paths(model, rows)


def test_forbidden_first_states_and_emissions_are_on_no_path():
    model = made(6, 5)
    model.initial[:4] = 0
    model.emission[1::2, :3] = 0
    rows = random_rows(model, 300, 20)
    paths, log_p = model.viterbi(rows)
    assert log_p.isfinite().all()
    assert (paths[:, 0] >= 4).all()
    assert (model.emission[paths, rows] > 0).all()
    assert_best_paths(model, rows)


@pytest.mark.parametrize("states", [2, 8, 20])
@pytest.mark.parametrize("power", [1, 3])
def test_numbers_stay_in_range_in_long_rows(states, power):
    model = sharpened(made(states, 6, seed=3), power)
    assert fast_viterbi.can_search(model.transition)
    assert_best_paths(model, random_rows(model, 3, 10_000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_delta_stays_far_from_the_ends_of_float32(dtype):
    model = sharpened(made(5, 6), 2.5)
    search = fast_viterbi.Search(*tables_of(model), dtype)
    deltas = search._deltas(packed_rows(random_rows(model, 4, 2000), 5))
    best = torch.stack([delta.amax(0).double() for delta in deltas])
    assert best.isfinite().all()
    assert best.min() > 1e-37
    assert best.max() < 1e38


def test_first_states_too_improbable_for_floats_are_left_to_the_plain_search():
    model = from_tables([1, 1e-300], [[0.6, 0.4], [0.3, 0.7]], [[0, 0, 0.5, 0.5], [0, 1e-20, 0.5, 0.5]])
    rows = torch.tensor([[1, 2, 3]])
    assert_best_paths(model, rows)
    assert model.viterbi(rows)[0][0, 0] == 1


def test_a_tie_is_in_doubt_in_float32_and_broken_in_float64():
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]])
    packed = packed_rows(torch.tensor([[1, 1, 1]]), 2)
    assert (fast_viterbi.Search(*tables_of(model), torch.float32)(packed) == 2).any()
    assert (fast_viterbi.Search(*tables_of(model), torch.float64)(packed) == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_what_rounding_could_change_is_searched_again(seed):
    model, generator = made(4), torch.Generator().manual_seed(seed)
    for table in tables_of(model):
        table.copy_(1 + 1e-6 * torch.rand(table.shape, generator=generator, dtype=torch.float64))
        table /= table.sum(-1, keepdim=True)
    assert_best_paths(model, torch.randint(1, 4, (500, 30), generator=generator))


def test_near_choices_are_compared_along_their_paths_back(monkeypatch):
    model = made(6, 5, seed=3)
    settled, best = [], fast_viterbi._Ties._best
    monkeypatch.setattr(fast_viterbi.Search, "certainty", lambda *given: 1 - 3e-3)
    monkeypatch.setattr(fast_viterbi._Ties, "_best", lambda *given: settled.append(best(*given)) or settled[-1])
    assert_best_paths(model, random_rows(model, 300, 40))
    assert sum(state < 6 for state in settled) > len(settled) / 2 > 5


def test_more_near_choices_than_there_is_patience_for_are_left_to_float64(monkeypatch):
    monkeypatch.setattr(fast_viterbi.Search, "certainty", lambda *given: 0.9)
    monkeypatch.setattr(fast_viterbi, "PATIENCE", 1)
    model = made(6, 5, seed=3)
    assert_best_paths(model, random_rows(model, 300, 40))


def test_it_is_used_only_where_every_transition_is_possible():
    assert fast_viterbi.can_search(torch.full((2, 2), 0.5, dtype=torch.float64))
    assert not fast_viterbi.can_search(torch.eye(2, dtype=torch.float64))
    assert not fast_viterbi.can_search(torch.tensor([[1 - 1e-20, 1e-20], [0.5, 0.5]], dtype=torch.float64))


def test_an_impossible_text_has_no_path():
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0, 1, 0, 0], [0, 0, 1, 0]])
    paths, _ = model.viterbi(torch.tensor([[1, 2, 2], [1, 3, 2]]))
    assert paths.tolist() == [[0, 1, 1], [-1, -1, -1]]


def test_texts_at_equal_distances_are_packed_and_unpacked_like_all_others():
    rows = torch.arange(1, 41).view(5, 8)
    for batch, real in (rows, rows > 0), (rows[:, 1:7], rows[:, 1:7] > 0), (rows, rows % 8 > 2), (rows.T, rows.T > 0):
        (packed,) = forward_backward.pack_texts(batch, real, 1)
        assert torch.equal(packed.tokens, batch.flatten()[packed.positions])
        again = torch.zeros(batch.shape, dtype=torch.long)
        packed.unpack(packed.tokens, again)
        assert torch.equal(again, batch * real)
        marked = torch.zeros_like(again, dtype=torch.bool)
        packed.mark(packed.texts_of(torch.tensor([0, 2])), marked)
        assert marked.any(1).nonzero()[:, 0].tolist() == [0, 2]
