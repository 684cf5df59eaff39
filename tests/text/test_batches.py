"""Batches are pure functions of seed and step, and every target is counted once."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.text import batches
from chainrule.text.batches import Streams, Windows, stream, texts


def numbered(size):
    """Token i is i: where a target came from can be read off it."""
    return np.arange(size, dtype=np.uint32)


def counted(batch):
    return batch.targets[batch.loss_mask].tolist()


def test_a_target_is_the_token_that_follows():
    tokens = numbered(100)
    for batch in (Windows(tokens, 4, 7, seed=1).at(3), Streams(tokens, 4, 7).at(2), *stream(tokens, 9, 4)):
        assert torch.equal(batch.targets, batch.tokens + 1)
        assert batch.tokens.dtype == torch.int64
        assert batch.tokens.untyped_storage().data_ptr() == batch.targets.untyped_storage().data_ptr()


@given(size=st.integers(12, 90), rows=st.integers(1, 9), length=st.integers(1, 11), seed=st.integers(0, 5))
def test_an_epoch_visits_every_window_once(size, rows, length, seed):
    made = Windows(numbered(size), rows, length, seed)
    steps = -(-3 * made.windows // rows)
    starts = torch.cat([made.at(step).tokens[:, 0] for step in range(steps)]).tolist()
    for epoch in range(3):
        visited = sorted(starts[epoch * made.windows : (epoch + 1) * made.windows])
        assert visited == [visited[0] + window * length for window in range((size - 1) // length)]
        assert visited[-1] + length < size


def test_windows_depend_on_seed_and_step_alone():
    made = Windows(numbered(1000), 5, 8, seed=3)
    whole = [made.at(step).tokens for step in range(60)]
    for step in (59, 3, 31, 0):
        assert torch.equal(made.at(step).tokens, whole[step])
        assert torch.equal(Windows(numbered(1000), 5, 8, seed=3).at(step).tokens, whole[step])
    assert not torch.equal(Windows(numbered(1000), 5, 8, seed=4).at(0).tokens, whole[0])
    assert not torch.equal(torch.cat(whole[:25]), torch.cat(whole[25:50]))     # each epoch has its own order


def test_windows_reach_the_whole_text_in_time():
    made = Windows(numbered(50), 6, 8, seed=1)          # 6 windows, and 1 token to spare
    seen = {target for step in range(40) for target in counted(made.at(step))}
    assert seen == set(range(1, 50))


@given(size=st.integers(21, 120), rows=st.integers(1, 4), length=st.integers(1, 5))
def test_a_row_goes_on_where_it_ended(size, rows, length):
    made = Streams(numbered(size), rows, length)
    for epoch in range(2):
        steps = [made.at(epoch * made.steps + step) for step in range(made.steps)]
        for now, then in pairwise(steps):
            assert torch.equal(now.targets[:, -1], then.tokens[:, 0])
        every = sorted(target for step in steps for target in counted(step))
        assert every == list(range(every[0], every[0] + rows * length * made.steps))
    assert every[-1] == size - 1                        # odd epochs reach the end


def test_some_rows_begin_as_a_text_does_and_no_target_is_lost():
    plain, made = Streams(numbered(5001), 8, 5), Streams(numbered(5001), 8, 5, reset=0.25)
    begun = np.stack([made.reset(step) for step in range(125)])
    assert 0.2 < begun.mean() < 0.3
    assert begun.any(0).all()
    for step in range(125):
        batch, wanted, rows = made.at(step), plain.at(step), torch.from_numpy(begun[step])
        assert torch.equal(batch.reset, rows)
        assert torch.equal(batch.targets, wanted.targets)
        assert torch.equal(batch.tokens[:, 1:], wanted.tokens[:, 1:])
        assert torch.equal(batch.tokens[:, 0], wanted.tokens[:, 0].masked_fill(rows, 0))


@given(size=st.integers(0, 60), piece=st.integers(1, 20), data=st.data())
def test_a_stream_counts_every_target_once(size, piece, data):
    overlap = data.draw(st.integers(0, piece - 1))
    pieces = list(stream(numbered(size), piece, overlap))
    assert [target for batch in pieces for target in counted(batch)] == list(range(1, size))
    for before, after in pairwise(pieces):
        assert after.tokens[0, 0] == before.targets[0, -1] - overlap
        assert before.tokens.shape == (1, piece)
    assert all(batch.tokens.shape[1] <= piece for batch in pieces)


def test_an_overlap_as_long_as_the_piece_is_refused():
    with pytest.raises(ValueError, match="overlap"):
        list(stream(numbered(9), 4, 4))


def rows_of(batch):
    return [tuple(row[: int(size)]) for row, size in zip(batch.targets.tolist(), batch.lengths)]


@given(
    lines=st.lists(st.lists(st.integers(1, 9), max_size=12), min_size=1, max_size=30),
    length=st.none() | st.integers(1, 6),
    limit=st.integers(1, 40),
    block=st.integers(1, 50),
    closed=st.booleans(),
)
def test_texts_count_every_target_once(lines, length, limit, block, closed):
    flat = [0, *(token for line in lines for token in [*line, 0])]
    flat = flat if closed else [*flat, 5, 5, 5]
    wanted = [[*line, 0] for line in lines] + ([] if closed else [[5, 5, 5]])
    pieces = [tuple(text[at : at + (length or 99)]) for text in wanted for at in range(0, len(text), length or 99)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BLOCK", block)
        made = list(texts(np.array(flat, np.uint16), length, limit))
    assert Counter(row for batch in made for row in rows_of(batch)) == Counter(pieces)
    for batch in made:
        assert (batch.tokens[:, 0] == 0).all()
        for tokens, row in zip(batch.tokens.tolist(), rows_of(batch)):
            assert tuple(tokens[1 : len(row)]) == row[:-1]
        assert batch.targets.shape[1] == batch.lengths.max()
        assert batch.targets.numel() <= limit or len(batch.targets) == 1
        assert int(batch.loss_mask.sum()) == int(batch.lengths.sum())


def test_rows_of_like_length_share_a_batch():
    flat = np.array([0] + ([1] * 3 + [0] + [1] * 99 + [0]) * 50, np.uint16)
    made = list(texts(flat, None, 1000))
    padding = sum(batch.targets.numel() - int(batch.lengths.sum()) for batch in made)
    assert padding <= 1000
    assert len(made) < 10


@pytest.mark.parametrize("made", [lambda: Windows(numbered(8), 2, 8, 1), lambda: Streams(numbered(8), 2, 4)])
def test_a_text_shorter_than_the_context_is_refused(made):
    with pytest.raises(UserError, match="shorter than the context: 7 tokens"):
        made()
