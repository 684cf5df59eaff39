"""What is hidden can be restored, as much is hidden as was asked, and a step depends on the seed alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainrule.model import IGNORE
from chainrule.tasks.corruption import Masked, Spans, choose, sentinel_names, span_count, spans
from chainrule.text.batches import Windows

VOCAB, MASK = 1000, 1000
SENTINELS = np.arange(2000, 2040)


def windows(rows=16, length=128, boundaries=0.0, seed=1):
    chance = np.random.default_rng(seed)
    tokens = chance.integers(1, VOCAB, 40_000)
    tokens[chance.random(40_000) < boundaries] = 0
    return Windows(tokens.astype(np.uint16), rows, length, seed)


def masked(order, **settings):
    return Masked(order, MASK, np.arange(1, VOCAB), seed=5, **settings)


def test_what_is_hidden_is_what_should_be_said():
    order = windows(boundaries=0.05)
    made = masked(order)
    assert made.epoch == order.epoch
    for step in range(4):
        plain, batch = order.at(step).tokens, made.at(step)
        chosen = batch.targets != IGNORE
        assert torch.equal(batch.targets[chosen], plain[chosen])
        assert torch.equal(batch.tokens[~chosen], plain[~chosen])
        assert not (plain[chosen] == 0).any()
        assert torch.equal(batch.loss_mask, chosen)
        eligible = (plain != 0).sum(1)
        assert torch.equal(chosen.sum(1), (0.15 * eligible).round().long())


def test_of_the_chosen_eight_in_ten_are_hidden_and_one_is_any_token():
    order = windows(rows=64, length=512)
    made = masked(order)
    hidden = changed = kept = 0
    for step in range(8):
        plain, batch = order.at(step).tokens, made.at(step)
        chosen = batch.targets != IGNORE
        read, was = batch.tokens[chosen], plain[chosen]
        hidden += int((read == MASK).sum())
        kept += int((read == was).sum())
        changed += int(((read != MASK) & (read != was)).sum())
        assert ((read >= 1) & (read <= MASK)).all()
    total = hidden + changed + kept
    assert hidden / total == pytest.approx(0.8, abs=0.01)
    assert changed / total == pytest.approx(0.1, abs=0.01)
    assert kept / total == pytest.approx(0.1, abs=0.01)


def test_corruption_depends_on_seed_and_step_alone():
    for make in (masked, lambda order: Spans(order, SENTINELS, seed=5)):
        made = make(windows())
        every = [made.at(step) for step in range(5)]
        again = make(windows())
        for step in (4, 1, 0):
            assert torch.equal(again.at(step).tokens, every[step].tokens)
            assert torch.equal(again.at(step).targets, every[step].targets)
        assert not torch.equal(every[0].targets, every[1].targets)
    assert not torch.equal(
        masked(windows()).at(0).targets, Masked(windows(), MASK, np.arange(1, VOCAB), seed=6).at(0).targets
    )


@given(rows=st.integers(1, 6), length=st.integers(1, 40), share=st.floats(0.01, 0.9), seed=st.integers(0, 9))
def test_each_row_has_its_share_and_one_at_least(rows, length, share, seed):
    chance = np.random.default_rng(seed)
    eligible = chance.random((rows, length)) < 0.7
    chosen = choose(eligible, share, chance)
    assert not (chosen & ~eligible).any()
    for row in range(rows):
        size = eligible[row].sum()
        assert chosen[row].sum() == min(max(round(share * size), 1), size)


@given(rows=st.integers(1, 5), length=st.integers(2, 90), share=st.floats(0.02, 0.8), mean=st.floats(1, 6))
def test_spans_are_as_many_and_as_long_as_asked(rows, length, share, mean):
    cut, count = span_count(length, share, mean)
    made = spans(rows, length, share, mean, np.random.default_rng(1))
    assert made.shape == (rows, length)
    assert (made.sum(1) == cut).all()
    begins = made & ~np.concatenate([np.zeros((rows, 1), bool), made[:, :-1]], 1)
    assert (begins.sum(1) == count).all()
    assert not made[:, 0].any()


def test_spans_are_every_which_way():
    made = spans(20_000, 12, 0.25, 1.5, np.random.default_rng(1))          # 3 tokens in 2 spans, 9 others in 2 parts
    ways = {row.tobytes() for row in made}
    assert len(ways) == 2 * 8
    counts = np.unique([row.tobytes() for row in made], return_counts=True)[1]
    assert counts.min() / counts.max() > 0.85


def restored(batch, row):
    """The text again: each sentinel of the source gives way to what the target has behind it."""
    source = batch.source[row, : batch.source_lengths[row]].tolist()
    target = batch.targets[row, : batch.lengths[row]].tolist()
    assert (source.pop(), target.pop()) == (0, 0)
    assert 0 not in target                       # a boundary is never hidden
    hidden, number = {}, None
    for token in target:
        if token in SENTINELS:
            hidden[token], number = [], token
        else:
            hidden[number].append(token)
    assert all(hidden.values())
    assert list(hidden) == SENTINELS[: len(hidden)].tolist() == [token for token in source if token in SENTINELS]
    return [part for token in source for part in (hidden[token] if token in SENTINELS else [token])]


@pytest.mark.parametrize("boundaries", [0, 0.1])
def test_the_target_has_all_that_the_source_lacks(boundaries):
    order = windows(boundaries=boundaries)
    made = Spans(order, SENTINELS, seed=5)
    assert made.epoch == order.epoch
    for step in range(3):
        plain, batch = order.at(step).tokens, made.at(step)
        for row in range(len(plain)):
            assert restored(batch, row) == plain[row].tolist()
        assert torch.equal(batch.tokens[:, 0], torch.zeros(len(plain), dtype=torch.long))
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert batch.source.shape[1] % 8 == batch.targets.shape[1] % 8 == 0
        if not boundaries:
            cut, count = span_count(128)
            assert (cut, count) == (19, 6)
            assert set(batch.lengths.tolist()) == {cut + count + 1}
            assert set(batch.source_lengths.tolist()) == {128 - cut + count + 1}


def test_more_spans_than_sentinels_are_not_cut_out():
    order = windows()
    batch = Spans(order, SENTINELS[:2], seed=5).at(0)
    assert set(((batch.targets == 2000) | (batch.targets == 2001)).sum(1).tolist()) == {2}
    for row, plain in enumerate(order.at(0).tokens.tolist()):
        assert restored(batch, row) == plain


def test_sentinels_have_names_of_their_own():
    assert sentinel_names(2) == ("<|span0|>", "<|span1|>")
