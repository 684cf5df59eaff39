"""The Viterbi searches, in torch and in C++ with vectors of each width: the paths of the recursion, to the last bit."""

import math
import os
import platform
import shutil
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.hmm.test_hmm import every_path, from_tables, log_p_of, made, texts_of

from chainrule.kernels.cpu import compiled, viterbi
from chainrule.models.hmm import forward_backward

COMPILER = shutil.which((os.environ.get("CXX") or "c++").split()[0])
VECTORS = {"C++": [], "C++ without AVX-512": ["-mno-avx512f"], "C++ without AVX": ["-mno-avx"]}
SEARCHES = ["torch", *VECTORS] if platform.machine() == "x86_64" else ["torch", "C++"]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """The libraries by name, each compiled once."""
    folder = tmp_path_factory.mktemp("cache")

    @cache
    def library(name):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("CHAINRULE_CACHE", str(folder))
            made = compiled.Library(viterbi.LIBRARY.source, (*compiled.FLAGS, *VECTORS[name]))
            assert made.functions is not None
        return made

    return library


@pytest.fixture(scope="module", params=SEARCHES)
def library(request, libraries):
    """None: the search is made in torch."""
    if request.param == "torch":
        return None
    if COMPILER is None:
        pytest.skip("no C++ compiler here")
    return libraries(request.param)


@pytest.fixture
def calls(library, monkeypatch):
    """The searches that C++ made."""
    made = []
    monkeypatch.setattr(viterbi, "pays", lambda tokens, transition: library is not None)
    if library is not None:
        monkeypatch.setattr(viterbi, "LIBRARY", library)
        found = viterbi.best_paths
        monkeypatch.setattr(viterbi, "best_paths", lambda *given: made.append(given) or found(*given))
    yield made
    assert bool(made) == (library is not None)


def by_recursion(model, text):
    """The best path of one text and its log p, one token after another."""
    log_pi, log_a, log_b = (table.log() for table in (model.initial, model.transition, model.emission))
    deltas = [log_b[:, text[0]] + log_pi]
    for token in text[1:]:
        deltas.append(log_b[:, token] + (deltas[-1][:, None] + log_a).amax(0))
    path = [deltas[-1].tolist().index(deltas[-1].max())]
    for delta in reversed(deltas[:-1]):
        scores = (delta + log_a[:, path[0]]).tolist()
        path.insert(0, scores.index(max(scores)))
    return path, float(deltas[-1].max())


def assert_paths_of_the_recursion(model, rows, lengths=None):
    paths, log_p = model.viterbi(rows, lengths)
    for number, (row, path, total) in enumerate(zip(rows.tolist(), paths.tolist(), log_p.tolist())):
        row = row if lengths is None else row[: int(lengths[number])]
        wanted = [by_recursion(model, text) for text in texts_of(row)] if row else []
        assert total == sum(log_p for _, log_p in wanted)
        states = [state for best, _ in wanted for state in best] if total > -math.inf else []
        assert [state for state in path if state >= 0] == states
        begin = bool(row) and row[0] == 0
        assert path == ([-1] * begin + states + [-1] * len(path))[: len(path)]


def random_rows(model, rows, length, seed=1):
    return torch.randint(1, model.emission.shape[1], (rows, length), generator=torch.Generator().manual_seed(seed))


def sharpened(model, power):
    """The same model with all its probabilities to a power: the larger it is, the smaller the small ones become."""
    for table in (model.initial, model.transition, model.emission):
        table.pow_(power)
        table /= table.sum(-1, keepdim=True)
    return model


@pytest.mark.parametrize("states", [1, 2, 3, 8, 9, 16, 23, 40])
@pytest.mark.parametrize("power", [0.01, 1, 8])
def test_texts_of_any_length_with_boundaries_and_padding(states, power, calls):
    model = sharpened(made(states, 6, seed=states), power)
    rows = torch.randint(6, (40, 31), generator=torch.Generator().manual_seed(states))
    assert_paths_of_the_recursion(model, rows, torch.arange(40) % 32)
    assert_paths_of_the_recursion(model, random_rows(model, 21, 12))


def test_every_number_of_states_and_of_texts(calls):
    for number in range(1, 35):
        model = made(number, 6, seed=number)
        assert_paths_of_the_recursion(model, random_rows(model, number, 9), torch.randperm(number) % 10)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), states=st.integers(1, 40), length=st.integers(1, 60), levels=st.integers(1, 4))
def test_ties_and_forbidden_moves(library, seed, states, length, levels):
    """Numbers of a few levels, of which 0 is one: many paths are equal, and many impossible."""
    generator = torch.Generator().manual_seed(seed)
    model = made(states, 6, seed)
    for table in (model.initial, model.transition, model.emission):
        table.copy_(torch.randint(levels, table.shape, generator=generator).double() / 4 + (levels == 1))
    rows = random_rows(model, 11, length, seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(viterbi, "pays", lambda tokens, transition: library is not None)
        patched.setattr(viterbi, "LIBRARY", library)
        assert_paths_of_the_recursion(model, rows)


def test_paths_are_the_best_of_all_paths(calls):
    model = made(3, 4, seed=7)
    rows = torch.cat([random_rows(model, 40, 6), torch.tensor([[0, 1, 2, 0, 3, 3]])])
    paths, log_p = model.viterbi(rows)
    assert_paths_of_the_recursion(model, rows)
    torch.testing.assert_close(log_p, log_p_of(model, paths, rows), rtol=1e-12, atol=0)
    for row, path, total in zip(rows.tolist(), paths.tolist(), log_p.tolist()):
        bests = [max(every_path(model, text).items(), key=lambda item: item[1]) for text in texts_of(row)]
        assert total == pytest.approx(sum(math.log(p) for _, p in bests), rel=1e-12)
        joint = [every_path(model, text)[tuple(path[-len(text):])] for text in texts_of(row)[-1:]]
        assert joint[0] == pytest.approx(bests[-1][1], rel=1e-12)


def test_forbidden_transitions_are_on_no_path(calls):
    model = made(6, 5, successors=2)
    assert (model.transition == 0).any()
    rows = random_rows(model, 50, 20)
    paths, log_p = model.viterbi(rows)
    assert (model.transition[paths[:, :-1], paths[:, 1:]] > 0).all()
    assert log_p.isfinite().all()
    assert_paths_of_the_recursion(model, rows)


def test_forbidden_first_states_and_emissions_are_on_no_path(calls):
    model = made(6, 5)
    model.initial[:4] = 0
    model.emission[1::2, :3] = 0
    rows = random_rows(model, 50, 20)
    paths, log_p = model.viterbi(rows)
    assert log_p.isfinite().all()
    assert (paths[:, 0] >= 4).all()
    assert (model.emission[paths, rows] > 0).all()
    assert_paths_of_the_recursion(model, rows)


def test_numbers_stay_in_range_in_long_rows(calls):
    model = sharpened(made(20, 6, seed=3), 3)
    rows = random_rows(model, 9, 2_000)
    assert_paths_of_the_recursion(model, rows, torch.tensor([2_000, 1, 1_500, 2_000, 2, 7, 2_000, 1_999, 0]))


def test_first_states_that_are_hardly_possible(calls):
    model = from_tables([1, 1e-300], [[0.6, 0.4], [0.3, 0.7]], [[0, 0, 0.5, 0.5], [0, 1e-20, 0.5, 0.5]])
    rows = torch.tensor([[1, 2, 3]])
    assert_paths_of_the_recursion(model, rows)
    assert model.viterbi(rows)[0][0, 0] == 1


def test_of_equal_states_the_first_is_taken(calls):
    for states in (2, 11, 33):
        model = made(states, 4)
        for table in (model.initial, model.transition, model.emission):
            table.fill_(1 / table.shape[-1])
        paths, log_p = model.viterbi(torch.ones(9, 5, dtype=torch.long))
        assert (paths == 0).all()
        assert log_p.tolist() == pytest.approx([-5 * math.log(4 * states)] * 9)


@pytest.mark.parametrize("seed", range(5))
def test_what_rounding_could_change(seed, calls):
    model, generator = made(4), torch.Generator().manual_seed(seed)
    for table in (model.initial, model.transition, model.emission):
        table.copy_(1 + 1e-15 * torch.rand(table.shape, generator=generator, dtype=torch.float64))
    assert_paths_of_the_recursion(model, torch.randint(1, 4, (30, 30), generator=generator))


def test_an_impossible_text_has_no_path(calls):
    model = from_tables([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0, 1, 0, 0], [0, 0, 1, 0]])
    paths, log_p = model.viterbi(torch.tensor([[1, 2, 2], [1, 3, 2]]))
    assert paths.tolist() == [[0, 1, 1], [-1, -1, -1]]
    assert log_p.tolist() == pytest.approx([3 * math.log(0.5), -math.inf])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_tokens(shape, calls):
    paths, log_p = made().viterbi(torch.zeros(shape, dtype=torch.long))
    assert paths.shape == shape
    assert log_p.tolist() == [0] * shape[0]


def test_more_symbols_than_tokens_and_a_batch_that_is_not_contiguous(calls):
    model = made(5, 3_000)
    rows = random_rows(model, 30, 13).T
    assert_paths_of_the_recursion(model, rows)
    assert_paths_of_the_recursion(model, rows[:, ::2])


def test_padding_may_hold_any_number(calls):
    for vocab in (4, 1_000):
        model = made(3, vocab)
        rows, lengths = random_rows(model, 9, 8), torch.arange(9)
        wanted = model.viterbi(rows, lengths)
        rows[torch.arange(8) >= lengths[:, None]] = -100
        assert all(map(torch.equal, model.viterbi(rows, lengths), wanted))


def test_a_token_outside_the_vocabulary_is_refused(calls):
    for token in (-1, 4, 1 << 40):
        with pytest.raises((IndexError, RuntimeError)):
            made(3, 4).viterbi(torch.tensor([[1, 2, token]] * 9))


def test_blocks_and_threads_change_no_path(calls, monkeypatch):
    model = made(5, 6)
    rows = torch.randint(6, (60, 30), generator=torch.Generator().manual_seed(1))
    wanted, threads = model.viterbi(rows), torch.get_num_threads()
    monkeypatch.setattr(viterbi, "BLOCK", 500)
    monkeypatch.setattr(forward_backward, "MESSAGES", 500)
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            assert all(map(torch.equal, model.viterbi(rows), wanted))
    finally:
        torch.set_num_threads(threads)
    assert_paths_of_the_recursion(model, rows)


def test_cpp_is_used_where_the_work_repays_it_and_the_tables_are_float64_on_a_cpu(monkeypatch):
    monkeypatch.setattr(viterbi, "LIBRARY", compiled.Library(viterbi.LIBRARY.source))
    viterbi.LIBRARY.functions = object()
    few, many = torch.ones(2, 60, dtype=torch.long), torch.ones(1 << 12, 512, dtype=torch.long)
    table = torch.ones(8, 8, dtype=torch.float64)
    assert not viterbi.pays(few, table)
    assert viterbi.pays(many, table)
    assert viterbi.pays(few, table)
    assert not viterbi.pays(many, table.float())
    assert not viterbi.pays(many.int(), table)
    assert not viterbi.pays(many.to("meta"), table.to("meta"))


def test_texts_at_equal_distances_are_packed_and_unpacked_like_all_others():
    rows = torch.arange(1, 41).view(5, 8)
    for batch, real in (rows, rows > 0), (rows[:, 1:7], rows[:, 1:7] > 0), (rows, rows % 8 > 2), (rows.T, rows.T > 0):
        (packed,) = forward_backward.pack_texts(batch, real, 1)
        assert torch.equal(packed.tokens, batch.flatten()[packed.positions])
        again = torch.zeros(batch.shape, dtype=torch.long)
        packed.unpack(packed.tokens, again)
        assert torch.equal(again, batch * real)
