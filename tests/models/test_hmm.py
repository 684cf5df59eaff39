"""The HMM against the sum over all paths, against hmmlearn, and against numbers worked by hand."""

import math
import os
import re
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, Batch, cross_entropy, watch
from chainrule.models.hmm.hmm import HMM, HMMSettings, HMMStatistics, forward_backward, viterbi

VOCAB = 4


def made(states: int = 3, vocab: int = VOCAB, seed: int = 1, smoothing: float = 0.0, **more) -> HMM:
    model = HMM(HMMSettings(states=states, smoothing=smoothing, **more), vocab)
    model.forget(torch.Generator().manual_seed(seed))
    return model


def from_tables(initial: list, transition: list, emission: list, smoothing: float = 0.0) -> HMM:
    model = HMM(HMMSettings(len(initial), smoothing=smoothing), len(emission[0]))
    for table, values in (model.initial, initial), (model.transition, transition), (model.emission, emission):
        table.copy_(torch.tensor(values, dtype=torch.float64))
    return model


def texts_of(row: list[int]) -> list[list[int]]:
    """The texts in a row, written out the slow way."""
    texts: list[list[int]] = [[]]
    for token in row[1:] if row[0] == BOUNDARY else row:
        texts[-1].append(token)
        if token == BOUNDARY:
            texts.append([])
    return [text for text in texts if text]


def every_path(model: HMM, text: list[int]) -> dict[tuple[int, ...], float]:
    """p(text, path) of each path, by the definition."""
    initial, transition, emission = (table.tolist() for table in (model.initial, model.transition, model.emission))
    joint = {}
    for path in product(range(len(initial)), repeat=len(text)):
        p = initial[path[0]] * math.prod(transition[a][b] for a, b in pairwise(path))
        joint[path] = p * math.prod(emission[state][token] for state, token in zip(path, text))
    return joint


def expected_by_paths(model: HMM, texts: list[list[int]]) -> HMMStatistics:
    statistics = model._zero_counts(nats=0.0)
    for text in texts:
        joint = every_path(model, text)
        total = sum(joint.values())
        for path, p in joint.items():
            statistics.initial[path[0]] += p / total
            for state, token in zip(path, text):
                statistics.emissions[state, token] += p / total
            for before, after in pairwise(path):
                statistics.transitions[before, after] += p / total
        statistics = replace(statistics, nats=statistics.nats - math.log(total))
    return statistics


def assert_same_statistics(found: HMMStatistics, wanted: HMMStatistics) -> None:
    for name in "initial", "transitions", "emissions":
        assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-10, atol=1e-12)
    assert found.nats == pytest.approx(wanted.nats, rel=1e-12)


ROWS = torch.tensor([
    [0, 1, 2, 3, 1, 0],      # one text with both its boundaries
    [2, 2, 1, 0, 3, 1],      # two texts, the second cut short; no boundary before the first
    [0, 0, 3, 0, 0, 1],      # empty texts
    [0, 3, 3, 1, 2, 2],
])
LENGTHS = torch.tensor([6, 6, 6, 3])


def rows_as_lists() -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(ROWS, LENGTHS)]


# By the sum over all paths


@pytest.mark.parametrize("states", [1, 2, 3])
def test_the_likelihood_is_the_sum_over_all_paths(states: int) -> None:
    model = made(states)
    wanted = [sum(math.log(sum(every_path(model, text).values())) for text in texts_of(row)) for row in rows_as_lists()]
    assert_close(model.log_likelihood(ROWS, LENGTHS), torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_viterbi_finds_the_best_of_all_paths(seed: int) -> None:
    model = made(3, seed=seed)
    paths, log_p = model.viterbi(ROWS, LENGTHS)
    for row, path, total in zip(rows_as_lists(), paths.tolist(), log_p.tolist()):
        bests = [max(every_path(model, text).items(), key=lambda item: item[1]) for text in texts_of(row)]
        emitted = [state for state in path if state >= 0]
        assert emitted == [state for best, _ in bests for state in best]
        assert total == pytest.approx(sum(math.log(p) for _, p in bests), rel=1e-12)
    assert (paths[:, 0] == -1).tolist() == [True, False, True, True]
    assert (paths[3, 3:] == -1).all()


@pytest.mark.parametrize("states", [1, 2, 3])
def test_expected_counts_are_those_of_all_paths(states: int) -> None:
    model = made(states)
    wanted = expected_by_paths(model, [text for row in rows_as_lists() for text in texts_of(row)])
    assert_same_statistics(model.collect(Batch(ROWS[:, :-1], ROWS[:, 1:], LENGTHS - 1)), wanted)


def test_posteriors_are_those_of_all_paths() -> None:
    model = made()
    gamma = model.posteriors(ROWS, LENGTHS)
    text = [1, 2, 3, 1, 0]
    joint = every_path(model, text)
    for time_, state in product(range(5), range(3)):
        wanted = sum(p for path, p in joint.items() if path[time_] == state) / sum(joint.values())
        assert float(gamma[0, time_ + 1, state]) == pytest.approx(wanted)
    assert float(gamma[0, 0].sum()) == 0
    assert float(gamma[3, 3:].sum()) == 0


def test_one_update_is_the_one_of_all_paths() -> None:
    model = made()
    wanted = expected_by_paths(model, [text for row in rows_as_lists() for text in texts_of(row)])
    model.update(model.collect(Batch(ROWS[:, :-1], ROWS[:, 1:], LENGTHS - 1)))
    assert_close(model.initial, wanted.initial / wanted.initial.sum())
    assert_close(model.transition, wanted.transitions / wanted.transitions.sum(1, keepdim=True))
    assert_close(model.emission, wanted.emissions / wanted.emissions.sum(1, keepdim=True))


def test_a_trellis_shows_every_message() -> None:
    model, text = made(), [1, 2, 3, 1, 0]
    shown, joint = model.trellis(torch.tensor(text)), every_path(model, text)
    total = sum(joint.values())
    assert_close((shown.forward + shown.backward).exp().sum(1), torch.full((5,), total, dtype=torch.float64))
    assert_close((shown.forward + shown.backward).exp() / total, shown.posterior)
    assert_close(shown.forward[-1].exp().sum().item(), total)
    best, p = max(joint.items(), key=lambda item: item[1])
    assert tuple(shown.path.tolist()) == best
    assert float(shown.delta[-1].max()) == pytest.approx(math.log(p))
    walked = [int(shown.delta[-1].argmax())]
    for before in reversed(shown.backpointers):
        walked.insert(0, int(before[walked[0]]))
    assert tuple(walked) == best
    assert model.trellis(torch.tensor([2])).backpointers.shape == (0, 3)
    for wrong in ([1, 0, 2], [0, 1, 2], [0]):
        with pytest.raises(ValueError, match="one text"):
            model.trellis(torch.tensor(wrong))


# By hand


def test_the_lecture_in_numbers() -> None:
    """Two states, rain and sun; umbrella is 1, none is 2. π = (.6 .4), a = (.7 .3; .4 .6), b = (.9 .1; .2 .8)."""
    model = from_tables([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0, 0.9, 0.1], [0, 0.2, 0.8]])
    text = torch.tensor([1, 1, 2])
    shown = model.trellis(text)
    delta = [[0.54, 0.08], [0.9 * 0.7 * 0.54, 0.2 * 0.3 * 0.54]]
    delta.append([0.1 * 0.7 * delta[1][0], 0.8 * 0.3 * delta[1][0]])
    assert_close(shown.delta.exp(), torch.tensor(delta, dtype=torch.float64))
    assert shown.backpointers.tolist() == [[0, 0], [0, 0]]
    assert shown.path.tolist() == [0, 0, 1]
    alpha = [[0.54, 0.08], [0.9 * 0.41, 0.2 * 0.21]]
    alpha.append([0.1 * (0.7 * 0.369 + 0.4 * 0.042), 0.8 * (0.3 * 0.369 + 0.6 * 0.042)])
    assert_close(shown.forward.exp(), torch.tensor(alpha, dtype=torch.float64))
    assert float(model.log_likelihood(text[None]).exp()) == pytest.approx(0.02751 + 0.10872)
    logits, state = model.step(torch.tensor([[0, 1]]), model.start(1))
    assert_close(logits[0, 0].exp(), torch.tensor([0, 0.62, 0.38]))
    belief = [(0.54 * 0.7 + 0.08 * 0.4) / 0.62, (0.54 * 0.3 + 0.08 * 0.6) / 0.62]
    assert_close(state["belief"], torch.tensor([belief], dtype=torch.float64))


def test_known_paths_are_counted_as_one_counts_by_hand() -> None:
    model = made(2)
    tokens = torch.tensor([[0, 1, 2, 0, 3, 0], [1, 1, 3, 3, 3, 3]])
    states = torch.tensor([[-1, 0, 1, -1, 1, -1], [0, 0, 1, 1, 1, 1]])
    counted = model.count_paths(states, tokens, torch.tensor([6, 4]))
    assert counted.initial.tolist() == [2, 1]                    # 1, 3 and 1 begin texts
    assert counted.transitions.tolist() == [[1, 2], [0, 1]]          # 0-1; 0-0, 0-1, 1-1
    assert counted.emissions.tolist() == [[0, 3, 0, 0], [0, 0, 1, 3]]
    assert math.isnan(counted.nats)
    model.update(counted + counted)
    assert_close(model.transition, torch.tensor([[1 / 3, 2 / 3], [0, 1]], dtype=torch.float64))


def test_counted_paths_say_where_a_boundary_belongs() -> None:
    counted = made(2).count_paths(torch.tensor([[1, 0, 1, 0, 1]]), torch.tensor([[0, 2, 0, 3, 0]]))
    assert counted.initial.tolist() == [2, 0]
    assert counted.transitions.tolist() == [[0, 2], [0, 0]]
    assert counted.emissions.tolist() == [[0, 0, 1, 1], [2, 0, 0, 0]]


# By hmmlearn


def judge(model: HMM) -> CategoricalHMM:
    """The same model over there; our tokens from 1 on are its symbols from 0 on."""
    it = CategoricalHMM(
        model.settings.states, n_features=model.emission.shape[1] - 1, init_params="", implementation="scaling", tol=-1
    )
    it.startprob_, it.transmat_ = model.initial.numpy().copy(), model.transition.numpy().copy()
    it.emissionprob_ = model.emission[:, 1:].numpy().copy()
    return it


def without_boundaries(states: int, vocab: int, seed: int = 1) -> HMM:
    model = made(states, vocab, seed)
    model.emission[:, 0] = 0
    model.emission /= model.emission.sum(1, keepdim=True)
    return model


def log_p_of(model: HMM, paths: Tensor, rows: Tensor) -> Tensor:
    """(B,): log p of each row with its path; -1 in a path is padding."""
    real, states = paths >= 0, paths.clamp(min=0)
    before = torch.nn.functional.pad(states[:, :-1], (1, 0))
    begins = forward_backward.text_starts(rows, real)
    moves = torch.where(begins, model.initial[states], model.transition[before, states])
    return torch.where(real, moves.log() + model.emission[states, rows].log(), 0).sum(1)


@pytest.mark.parametrize("states", [2, 5, 17])
def test_hmmlearn_agrees_on_likelihood_path_and_rounds(states: int) -> None:
    model = without_boundaries(states, 8)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(1, 8, (12, 40), generator=generator)
    lengths = torch.randint(1, 41, (12,), generator=generator)
    flat = np.concatenate([row[:length].numpy() for row, length in zip(rows, lengths)])[:, None] - 1
    theirs = judge(model)
    batch = Batch(torch.cat([torch.zeros(12, 1, dtype=torch.long), rows[:, :-1]], 1), rows, lengths)
    for rounds in (0, 1, 4):
        for _ in range(rounds):
            model.update(model.collect(batch))
        if rounds:
            theirs.n_iter = rounds
            theirs.fit(flat, lengths.numpy())
        wanted, path = theirs.decode(flat, lengths.numpy())
        paths, log_p = model.viterbi(rows, lengths)
        emitted = paths >= 0
        other = paths.masked_scatter(emitted, torch.tensor(path))
        torch.testing.assert_close(log_p_of(model, other, rows), log_p, rtol=1e-12, atol=0)     # paths can tie
        assert float(log_p.sum()) == pytest.approx(wanted, rel=1e-12)
        total = theirs.score(flat, lengths.numpy())
        assert float(model.log_likelihood(rows, lengths).sum()) == pytest.approx(total, rel=1e-12)
        for ours, other in (model.initial, theirs.startprob_), (model.transition, theirs.transmat_):
            np.testing.assert_allclose(ours.numpy(), other, atol=1e-9)
        np.testing.assert_allclose(model.emission[:, 1:].numpy(), theirs.emissionprob_, atol=1e-9)


def shakespeare(rows: int) -> Tensor:
    """(rows, 513): lower-cased letters and space of tinyshakespeare after a boundary."""
    path = Path(os.environ.get("CHAINRULE_DATA", "")) / "tinyshakespeare" / "input.txt"
    if not os.environ.get("CHAINRULE_DATA") or not path.exists():
        pytest.skip("needs tinyshakespeare in $CHAINRULE_DATA")
    text = re.sub("[^a-z]+", " ", path.read_text()[: rows * 1024].lower())[: rows * 512]
    tokens = torch.tensor(["\n abcdefghijklmnopqrstuvwxyz".index(letter) for letter in text]).view(rows, 512)
    return torch.cat([torch.zeros(rows, 1, dtype=torch.long), tokens], 1)


@pytest.mark.data
def test_hmmlearn_agrees_on_a_real_text() -> None:
    rows = shakespeare(16)
    model = without_boundaries(24, 28)
    theirs = judge(model)
    flat, lengths = rows[:, 1:].reshape(-1, 1).numpy() - 1, [512] * 16
    theirs.n_iter = 4
    theirs.fit(flat, lengths)
    for _ in range(4):
        model.update(model.collect(Batch(rows[:, :-1], rows[:, 1:])))
    np.testing.assert_allclose(model.transition.numpy(), theirs.transmat_, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(model.emission[:, 1:].numpy(), theirs.emissionprob_, rtol=1e-6, atol=1e-12)
    wanted, path = theirs.decode(flat, lengths)
    paths, log_p = model.viterbi(rows)
    other = torch.cat([paths[:, :1], torch.tensor(path).view(16, 512)], 1)
    torch.testing.assert_close(log_p_of(model, other, rows), log_p, rtol=1e-9, atol=0)
    assert float(log_p.sum()) == pytest.approx(wanted, rel=1e-9)


# Learning


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


# Impossible texts


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


# Viterbi


@pytest.mark.parametrize("third", [0.2, 0.0])
def test_of_equal_paths_the_first_states_are_taken(third: float) -> None:
    p = (1 - third) / 2
    model = from_tables([p, p, third], [[p, p, third]] * 3, [[0.5, 0.5]] * 3)
    paths, log_p = model.viterbi(torch.tensor([[1, 1, 1]]))
    assert (paths == 0).all()
    assert float(log_p) == pytest.approx(3 * math.log(p * 0.5))


def test_tiles_change_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(5, 6)
    rows = torch.randint(6, (9, 30), generator=torch.Generator().manual_seed(1))
    paths, log_p = model.viterbi(rows)
    monkeypatch.setattr(viterbi, "TILE", 50)
    again, log_p_again = model.viterbi(rows)
    assert torch.equal(paths, again)
    assert torch.equal(log_p, log_p_again)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), states=st.integers(1, 40), length=st.integers(1, 60), sharp=st.floats(0.1, 6))
def test_no_single_change_of_a_best_path_makes_it_better(seed: int, states: int, length: int, sharp: float) -> None:
    model = made(states, 6, seed)
    for table in model.initial, model.transition, model.emission:
        table.pow_(sharp)
        table /= table.sum(-1, keepdim=True)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, 6, (5, length), generator=generator)
    paths, log_p = model.viterbi(rows)
    place, state = (torch.randint(size, (5, 1), generator=generator) for size in (length, states))
    other = log_p_of(model, paths.scatter(1, place, state), rows)
    assert (other <= log_p + 1e-9 * log_p.abs()).all()


# Size


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


class Operations(TorchDispatchMode):
    """Counts what torch is asked to compute."""

    count = 0

    def __torch_dispatch__(self, function, types, given=(), named=None):
        self.count += 1
        return function(*given, **(named or {}))


def test_a_stream_of_texts_is_not_walked_a_token_at_a_time() -> None:
    model = made(16, 30)
    stream = torch.randint(1, 30, (1, 100_001), generator=torch.Generator().manual_seed(1))
    stream[:, ::20] = BOUNDARY
    with Operations() as operations:
        scores, _ = model.score(stream[:, :-1], stream[:, 1:], model.start(1))
    assert operations.count < 2000    # 5,000 texts of 20 tokens: side by side, not 100,000 tokens in a row
    rows = stream[:, 1:].view(-1, 20)
    heads = torch.zeros(len(rows), 1, dtype=torch.long)
    apart, _ = model.score(torch.cat([heads, rows[:, :-1]], 1), rows, model.start(len(rows)))
    assert_close(scores.view_as(apart), apart)
    assert float(scores.double().sum()) == pytest.approx(float(model.log_likelihood(stream)), rel=1e-6)


def test_a_large_vocabulary_is_looked_up_and_not_copied() -> None:
    model = made(4, 1000)
    tokens = torch.randint(1000, (2, 7), generator=torch.Generator().manual_seed(1))
    few, table = forward_backward.emission_rows(tokens, model.emission), model.emission.T[tokens]
    assert few[0].shape == (14, 4)
    assert_close(few[0][few[1]], table)
    many = forward_backward.emission_rows(tokens.repeat(100, 1), model.emission)
    assert many[0].shape == (1000, 4)
    assert_close(many[0][many[1]][:2], table)


# As a language model


def test_the_tap_shows_the_belief_after_each_token() -> None:
    model = made()
    with watch(model) as seen:
        logits, state = model.step(ROWS, model.start(4))
    (belief,) = seen["belief"]
    assert belief.shape == (4, 6, 3)
    assert_close((belief @ model.emission).log().float(), logits)
    assert_close(belief[:, -1], state["belief"])
    assert_close(belief[ROWS == BOUNDARY], model.initial.expand(int((ROWS == BOUNDARY).sum()), -1))


def test_a_belief_is_carried_on_to_the_first_boundary_and_no_further() -> None:
    model = made()
    _, state = model.step(ROWS[:, :3], model.start(4))
    rest = torch.tensor([[1, 2, 0, 1]]).expand(4, -1)
    carried, _ = model.step(rest, state)
    fresh, _ = model.step(rest, model.start(4))
    assert (carried[[0, 1, 3], :2] - fresh[[0, 1, 3], :2]).abs().amin() > 1e-6
    assert_close(carried[:, 2:], fresh[:, 2:])
    whole, _ = model.step(torch.cat([ROWS[:, :3], rest], 1), model.start(4))
    assert_close(carried, whole[:, 3:])


def test_reading_no_tokens_changes_no_state() -> None:
    model = made()
    _, state = model.step(ROWS, model.start(4))
    logits, after = model.step(ROWS[:, :0], state)
    assert logits.shape == (4, 0, VOCAB)
    assert_close(after, state)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"states": 0}, "model.states=0"),
        ({"states": 4, "successors": 5}, "model.successors=5"),
        ({"states": 4, "successors": 0}, "model.successors=0"),
        ({"smoothing": -1.0}, "model.smoothing=-1"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=named):
        HMMSettings(**wrong)
