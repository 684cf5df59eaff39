"""Every epoch has every example once, batches hold what they may, and a step depends on the seed alone."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.tasks.batching import Buckets, bucket_widths


@dataclass(frozen=True)
class Numbered:
    """Examples of which only the sizes matter: a batch is the numbers of its rows."""

    sizes: tuple[np.ndarray, ...]
    notes: tuple[str, ...] = ()

    def __len__(self):
        return len(self.sizes[0])

    def batch(self, rows, widths):
        tokens, source = (torch.zeros(len(rows), width) for width in (widths[0], widths[-1]))
        return Batch(tokens, torch.from_numpy(rows), source=source)


def numbered(*sizes):
    return Numbered(tuple(np.array(side, np.int64) for side in sizes))


SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=80)


@given(sizes=SIZES, tokens=st.integers(1, 300), rows=st.none() | st.integers(1, 9), data=st.data())
def test_an_epoch_visits_every_example_once_and_no_batch_is_too_large(sizes, tokens, rows, data):
    seed = data.draw(st.integers(0, 3))
    others = data.draw(st.lists(st.integers(1, 60), min_size=len(sizes), max_size=len(sizes)))
    made = Buckets(numbered(sizes, others), seed=seed, tokens=tokens, rows=rows)
    assert made.epoch == made.steps
    for epoch in range(2):
        batches = [made.at(epoch * made.steps + step) for step in range(made.steps)]
        assert sorted(row for batch in batches for row in batch.targets.tolist()) == list(range(len(sizes)))
        for batch in batches:
            count, width = len(batch.targets), max(batch.tokens.shape[1], batch.source.shape[1])
            assert count <= (rows or count)
            assert count == 1 or count * width <= tokens
            assert batch.tokens.shape[1] >= max(sizes[row] for row in batch.targets.tolist())
            assert batch.source.shape[1] >= max(others[row] for row in batch.targets.tolist())
            assert batch.tokens.shape[1] <= max(sizes)


def test_a_step_depends_on_seed_and_step_alone():
    sizes = np.random.default_rng(1).integers(1, 50, 300)
    made = Buckets(numbered(sizes), seed=3, rows=7)
    every = [made.ids(step).tolist() for step in range(3 * made.steps)]
    for step in (100, 3, 0, 120, 50):
        assert made.ids(step).tolist() == every[step]
        assert Buckets(numbered(sizes), seed=3, rows=7).ids(step).tolist() == every[step]
    assert Buckets(numbered(sizes), seed=4, rows=7).ids(0).tolist() != every[0]
    first, second = every[: made.steps], every[made.steps : 2 * made.steps]
    assert first != second
    company = [{tuple(sorted(batch)) for batch in batches} for batches in (first, second)]
    assert company[0] != company[1]
    assert not made.goes_on(5)


def test_long_and_short_come_in_no_order():
    made = Buckets(numbered(np.arange(1, 401)), seed=1, rows=10)
    widths = [made.at(step).tokens.shape[1] for step in range(made.steps)]
    assert widths != sorted(widths)
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.5


def test_examples_of_like_length_share_a_batch():
    sizes = np.random.default_rng(1).integers(1, 500, 4000)
    made = Buckets(numbered(sizes), seed=1, tokens=4096)
    batches = [made.at(step) for step in range(made.steps)]
    padded = sum(batch.tokens.numel() for batch in batches)
    assert padded < 1.1 * sizes.sum()
    assert len({batch.tokens.shape[1] for batch in batches}) < 45                   # shapes repeat


def test_only_the_last_batch_is_partial():
    made = Buckets(numbered(np.random.default_rng(1).integers(1, 90, 103)), seed=1, rows=10)
    assert sorted(len(made.ids(step)) for step in range(made.steps)) == [3] + [10] * 10


def test_every_example_is_evaluated_once_and_known_by_its_number():
    sizes = np.random.default_rng(1).integers(1, 90, 103)
    made = Buckets(numbered(sizes), seed=1, tokens=500)
    seen = []
    for ids, batch in made.every():
        assert batch.targets.tolist() == ids.tolist()
        seen += ids.tolist()
    assert sorted(seen) == list(range(103))
    assert [ids.tolist() for ids, _ in made.every()] == [
        ids.tolist() for ids, _ in Buckets(numbered(sizes), seed=2, tokens=500).every()
    ]


@given(sizes=SIZES, multiple=st.integers(1, 16))
def test_widths_are_multiples_or_the_longest(sizes, multiple):
    found = bucket_widths(np.array(sizes), multiple)
    for size, width in zip(sizes, found.tolist()):
        assert size <= width <= max(sizes)
        assert width % multiple == 0 or width == max(sizes)
        assert width < size * 1.1 + multiple + 1


def test_a_batch_without_a_bound_or_without_examples_is_refused():
    with pytest.raises(UserError, match="no examples"):
        Buckets(numbered([]), seed=1, rows=3)
    with pytest.raises(ValueError, match="how large"):
        Buckets(numbered([3]), seed=1)
