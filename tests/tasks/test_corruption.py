"""BART's noise is what its definition says: what is masked, deleted, infilled, permuted and rotated, and how often."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainrule.tasks.corruption import NOISES, Noised, infilled_lengths
from chainrule.text.batches import Windows

VOCAB, MASK, END, STOP = 1000, 1000, 1001, 7
STOPS = np.isin(np.arange(1002), [STOP, END])


def windows(rows=8, length=60, boundaries=0.02, seed=1):
    random = np.random.default_rng(seed)
    tokens = random.integers(1, VOCAB, 20_000)
    tokens[random.random(20_000) < 0.1] = STOP
    tokens[random.random(20_000) < boundaries] = 0
    return Windows(tokens.astype(np.uint16), rows, length, seed)


def noised(*noise, order=None, **settings):
    return Noised(order or windows(), noise, MASK, END, STOPS, seed=5, **settings)


def texts(batch):
    """The source and the target of each row, as lists without their ends."""
    for row in range(len(batch.tokens)):
        source = batch.source[row, : batch.source_lengths[row]].tolist()
        target = batch.targets[row, : batch.lengths[row]].tolist()
        assert (source.pop(), target.pop()) == (0, 0)
        yield source, target


@pytest.mark.parametrize("noise", NOISES)
def test_the_target_is_the_whole_text(noise):
    order = windows()
    made = noised(noise, order=order)
    for step in range(3):
        plain, batch = order.at(step).tokens, made.at(step)
        assert [target for _, target in texts(batch)] == plain.where(plain != 0, END).tolist()
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        assert (batch.tokens[:, 0] == 0).all()
        assert batch.source.shape[1] % 8 == batch.targets.shape[1] % 8 == 0


@pytest.mark.parametrize("noise", NOISES)
def test_noise_depends_on_seed_and_step_alone(noise):
    one, again = noised(noise), noised(noise)
    for step in (3, 0):
        assert torch.equal(one.at(step).source, again.at(step).source)
    assert not torch.equal(one.at(0).source, Noised(windows(), (noise,), MASK, END, STOPS, seed=6).at(0).source)


def test_masked_tokens_stay_in_their_places():
    for source, target in texts(noised("mask", share=0.25).at(0)):
        assert len(source) == len(target)
        assert source.count(MASK) == 15
        assert all(read in (MASK, was) for read, was in zip(source, target))


def test_deleted_tokens_leave_no_sign():
    for source, target in texts(noised("delete", share=0.25).at(0)):
        assert len(source) == 45
        assert MASK not in source
        left = iter(target)
        assert all(token in left for token in source)                  # in the same order


def test_sentences_are_permuted_and_stay_whole():
    def sentences(row):
        parts, last = [], []
        for token in row:
            last.append(token)
            if token in (STOP, END):
                parts, last = [*parts, tuple(last)], []
        return [*parts, tuple(last)] if last else parts

    moved = 0
    for source, target in texts(noised("permute").at(0)):
        whole = sentences(target)
        assert sorted(source) == sorted(target)
        positions = {sentence: "".join(map(chr, source)).find("".join(map(chr, sentence))) for sentence in whole}
        assert min(positions.values()) >= 0
        moved += source != target
    assert moved >= 7


def test_every_order_of_sentences_is_as_likely():
    row = np.array([1, STOP, 2, 3, STOP, 4, STOP])
    made, random = noised("permute"), np.random.default_rng(1)
    counts = {}
    for _ in range(3000):
        key = tuple(made.permute(row, random).tolist())
        counts[key] = counts.get(key, 0) + 1
    parts = ([1, STOP], [2, 3, STOP], [4, STOP])
    assert set(counts) == {tuple(token for part in some for token in part) for some in permutations(parts)}
    assert max(counts.values()) - min(counts.values()) < 130           # 500 each, give or take 3 deviations


def test_a_document_is_rotated_to_begin_anywhere():
    row, made, random = np.arange(1, 9), noised("rotate"), np.random.default_rng(2)
    drawn = [made.rotate(row, random) for _ in range(1600)]
    for rotated in drawn:
        assert (np.roll(rotated, -rotated.tolist().index(1)) == row).all()
    assert np.bincount([rotated[0] for rotated in drawn])[1:].min() > 150


@given(total=st.integers(0, 300), mean=st.floats(0.1, 9), seed=st.integers(0, 5))
def test_infilled_spans_have_as_many_tokens_as_asked_and_are_not_too_many(total, mean, seed):
    lengths = infilled_lengths(total, mean, np.random.default_rng(seed))
    assert len(lengths) <= total
    assert lengths.sum() <= total
    assert (lengths >= 0).all()
    if mean >= 3 and total:
        assert lengths.sum() == total
        assert lengths[-1] > 0


def test_lengths_of_infilled_spans_are_poisson():
    lengths = infilled_lengths(60_000, 3.0, np.random.default_rng(3))
    assert lengths.mean() == pytest.approx(3, abs=0.05)
    assert lengths.var() == pytest.approx(3, abs=0.1)
    shares = np.bincount(lengths, minlength=8)[:8] / len(lengths)
    assert shares == pytest.approx([math.exp(-3) * 3**k / math.factorial(k) for k in range(8)], abs=0.006)


def aligned(source, target):
    """Whether the source is the target with each mask in the place of some tokens, or none, in a row."""
    reached = {0}
    for token in source:
        if token == MASK:
            reached = set(range(min(reached), len(target) + 1)) if reached else set()
        else:
            reached = {place + 1 for place in reached if place < len(target) and target[place] == token}
    return len(target) in reached


def test_each_infilled_span_is_one_mask():
    inserted = 0
    for step in range(4):
        for source, target in texts(noised("infill").at(step)):
            assert aligned(source, target)
            assert len(target) - sum(token != MASK for token in source) == round(0.3 * len(target))
            assert 0 < source.count(MASK) <= len(target)
            inserted += source.count(MASK)
    assert inserted / 32 == pytest.approx(6.5, abs=0.7)                # 18 tokens in spans of 3, the last cut short


def test_a_mask_may_stand_for_no_token_even_at_the_end():
    made, row = noised("infill", share=0.5, mean=0.5), np.arange(1, 9)
    random, last = np.random.default_rng(4), 0
    for _ in range(300):
        source = made.infill(row, random)
        assert aligned(source.tolist(), row.tolist())
        last += list(source[-2:]) == [8, MASK]
    assert last > 5


def test_noises_add_up():
    made = noised("rotate", "delete", "permute", "infill", "mask")
    for source, target in texts(made.at(0)):
        assert set(source) <= {*target, MASK}
        assert MASK in source
        assert len(source) < len(target)
