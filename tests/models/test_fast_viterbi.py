"""The fast Viterbi search finds the paths of the plain one, or says that it is in doubt."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.test_hmm import from_tables, made

from chainrule.models.hmm import fast_viterbi, forward_backward, viterbi


@pytest.fixture
def _any_size(monkeypatch):
    monkeypatch.setattr(fast_viterbi, "MIN_STATES", 1)


def tables_of(model):
    return model.initial, model.transition, model.emission


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), states=st.integers(1, 40), length=st.integers(1, 60), sharp=st.floats(0.1, 6))
def test_where_it_is_certain_it_finds_the_path_of_the_plain_search(seed, states, length, sharp):
    model = made(states, 6, seed)
    for table in tables_of(model):
        table.pow_(sharp)
        table /= table.sum(-1, keepdim=True)
    rows = torch.randint(6, (5, length), generator=torch.Generator().manual_seed(seed))
    for packed in forward_backward.pack_texts(rows, torch.ones_like(rows, dtype=torch.bool), states):
        plain = viterbi._backtrack(packed, *tables_of(model))
        smallest, largest = model.transition.aminmax()
        for dtype in (torch.float32, torch.float64) if largest / smallest < 1e15 else ():
            fast, doubtful = fast_viterbi.search(packed, *tables_of(model), dtype)
            certain = ~doubtful[packed.texts]
            assert torch.equal(fast[certain], plain[certain])


@pytest.mark.usefixtures("_any_size")
def test_a_tie_is_in_doubt_and_left_to_the_plain_search():
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]])
    rows = torch.tensor([[1, 1, 1]])
    assert fast_viterbi.can_search(model.transition)
    _, doubtful = fast_viterbi.certain_paths(rows, torch.ones_like(rows, dtype=torch.bool), *tables_of(model))
    assert doubtful.all()
    assert ((model.viterbi(rows)[0] == 0) | (model.viterbi(rows)[0] == 1)).all()


@pytest.mark.usefixtures("_any_size")
@pytest.mark.parametrize("seed", range(5))
def test_what_rounding_could_change_is_searched_again(seed):
    model, generator = made(4), torch.Generator().manual_seed(seed)
    for table in tables_of(model):
        table.copy_(1 + 1e-6 * torch.rand(table.shape, generator=generator, dtype=torch.float64))
        table /= table.sum(-1, keepdim=True)
    rows = torch.randint(1, 4, (64, 30), generator=generator)
    paths, log_p = model.viterbi(rows)
    packed = next(forward_backward.pack_texts(rows, torch.ones_like(rows, dtype=torch.bool), 4))
    assert torch.equal(paths.flatten()[packed.positions], viterbi._backtrack(packed, *tables_of(model)))
    assert log_p.isfinite().all()


@pytest.mark.usefixtures("_any_size")
def test_it_is_used_only_where_every_transition_is_possible():
    assert fast_viterbi.can_search(torch.full((2, 2), 0.5, dtype=torch.float64))
    assert not fast_viterbi.can_search(torch.eye(2, dtype=torch.float64))
    assert not fast_viterbi.can_search(torch.tensor([[1 - 1e-20, 1e-20], [0.5, 0.5]], dtype=torch.float64))


def test_few_states_are_left_to_the_plain_search():
    assert not fast_viterbi.can_search(torch.full((15, 15), 1 / 15, dtype=torch.float64))
    assert fast_viterbi.can_search(torch.full((16, 16), 1 / 16, dtype=torch.float64))


@pytest.mark.usefixtures("_any_size")
def test_an_impossible_text_has_no_path():
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0, 1, 0, 0], [0, 0, 1, 0]])
    paths, _ = model.viterbi(torch.tensor([[1, 2, 2], [1, 3, 2]]))
    assert paths.tolist() == [[0, 1, 1], [-1, -1, -1]]


def test_many_states_take_the_fast_search_and_find_the_same_paths(monkeypatch):
    model = made(40, 6)
    rows = torch.randint(1, 6, (9, 30), generator=torch.Generator().manual_seed(1))
    calls, search = [], fast_viterbi.search
    monkeypatch.setattr(fast_viterbi, "search", lambda *given: calls.append(1) or search(*given))
    paths, log_p = model.viterbi(rows)
    assert calls
    monkeypatch.setattr(fast_viterbi, "MIN_STATES", 41)
    again, log_p_again = model.viterbi(rows)
    assert torch.equal(paths, again)
    assert torch.equal(log_p, log_p_again)
