"""The HMM against the sum over all paths, and against numbers worked by hand."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.hmm.small_hmms import (
    LENGTHS,
    ROWS,
    VOCAB,
    assert_same_statistics,
    every_path,
    expected_by_paths,
    from_tables,
    log_p_of,
    made,
    rows_as_lists,
    texts_of,
)
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, Batch, watch
from chainrule.models.hmm.hmm import HMMSettings, forward_backward, viterbi

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


# Steps of torch


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
