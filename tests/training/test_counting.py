"""Rounds of counting, on a model that notes what happens to it."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.recipe import Counting
from chainrule.run import Done
from chainrule.tasks.lm import counting_batches
from chainrule.training.counting import train_by_counting
from chainrule.training.log import Log

TEXTS = np.array([0, 1, 2, 3, 0, 1, 1, 2, 0], np.uint16)


@dataclass
class Evaluations:
    nats: float
    targets: list = field(default_factory=list)

    def __add__(self, other):
        return Evaluations(self.nats + other.nats, self.targets + other.targets)


class Falling(LanguageModel):
    """Each round halves its cost, from a start that the seed decides. Ctrl-C comes in the midst of update `stop_at`."""

    learns_by = "counting"
    receptive_field = 1

    def __init__(self, stop_at=None, closed_form=False):
        super().__init__()
        self.register_buffer("cost", torch.zeros(()))
        self.updates, self.seeds, self.seen, self.sizes = 0, [], [], []
        self.stop_at, self.closed_form = stop_at, closed_form

    def forget(self, generator):
        self.seeds.append(generator.initial_seed())
        self.cost.fill_(float(torch.rand((), generator=generator)) + 1)

    def collect(self, batch):
        targets = batch.targets[batch.loss_mask].tolist()
        self.sizes.append(len(targets))
        return Evaluations(math.nan if self.closed_form else float(self.cost) * len(targets), targets)

    def update(self, statistics):
        self.seen.append(statistics.targets)
        self.cost /= 2
        self.updates += 1
        if self.updates == self.stop_at:
            self.cost.fill_(99.0)
            raise KeyboardInterrupt


def corpus(tokens=TEXTS):
    split = SimpleNamespace(tokens=tokens, bytes=20)
    return SimpleNamespace(splits={"train": split}, tokenizer=SimpleNamespace(lossless=True))


def start_of(seed):
    return float(torch.rand((), generator=torch.Generator().manual_seed(seed))) + 1


def test_one_round_counts_every_target_once_however_it_is_cut():
    for size in (1, 2, 3, 100):
        model = Falling()
        done = train_by_counting(model, corpus(), Counting(tokens=size), Log(), Done())
        assert model.seen == [TEXTS[1:].tolist()]
        assert done.rounds == 1
        assert done.finished
    assert max(model.sizes) == len(TEXTS) - 1


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_every_target_is_read_after_the_whole_receptive_field(size):
    model, place = Falling(), 0
    model.receptive_field = 3
    for batch in counting_batches(model, TEXTS, Counting(tokens=size)):
        for column in batch.loss_mask[0].nonzero()[:, 0].tolist():
            seen = batch.tokens[0, : column + 1].tolist()[-3:]
            assert seen == TEXTS[max(0, place - 2) : place + 1].tolist()
            place += 1
    assert place == len(TEXTS) - 1


def test_memory_is_bounded_by_the_batch():
    model = Falling()
    train_by_counting(model, corpus(), Counting(tokens=3), Log(), Done())
    assert max(model.sizes) <= 3


def test_cut_texts_each_begin_with_a_boundary_and_lose_no_token():
    model = Falling()
    train_by_counting(model, corpus(np.array([0, 1, 2, 3, 1, 2, 0])), Counting(length=2, tokens=100), Log(), Done())
    (targets,) = model.seen
    assert [token for token in targets if token != BOUNDARY] == [1, 2, 3, 1, 2]


def test_rounds_end_at_steps():
    model, log = Falling(), Log()
    done = train_by_counting(model, corpus(), Counting(steps=4), log, Done())
    assert (done.rounds, model.updates) == (4, 4)
    nats = [record["nats_per_token"] for record in log.records]
    assert nats == pytest.approx([start_of(1) / 2**k for k in range(4)])
    bits = log.records[0]["bits_per_byte"]
    assert bits == pytest.approx(start_of(1) * (len(TEXTS) - 1) / math.log(2) / 20)


def test_rounds_end_when_one_gains_less_than_the_tolerance():
    start = start_of(1)
    model = Falling()
    done = train_by_counting(model, corpus(), Counting(steps=50, tolerance=start / 8 * 1.01), Log(), Done())
    assert done.rounds == 4  # rounds 2, 3 and 4 gain a half, a quarter and an eighth
    assert done.finished


def test_the_likeliest_start_goes_on_and_its_audition_counts():
    model = Falling()
    done = train_by_counting(model, corpus(), Counting(steps=8, restarts=3, seed=5), Log(), Done())
    assert model.seeds == [5, 6, 7]
    best = min(start_of(seed) for seed in model.seeds)
    assert len({round(start_of(seed), 4) for seed in model.seeds}) == 3
    assert float(model.cost) == pytest.approx(best / 2**8)
    assert done.rounds == 8
    assert model.updates == 3 * 5 + 3


def test_ctrl_c_keeps_what_the_last_whole_round_gave():
    model = Falling(stop_at=3)
    done = train_by_counting(model, corpus(), Counting(steps=9), Log(), Done())
    assert float(model.cost) == pytest.approx(start_of(1) / 4)
    assert (done.rounds, done.finished) == (2, False)


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened():
    start = start_of(1)
    settings = Counting(steps=50, tolerance=start / 8 * 1.01)
    whole = Falling()
    train_by_counting(whole, corpus(), settings, Log(), Done())
    model = Falling(stop_at=3)
    done = train_by_counting(model, corpus(), settings, Log(), Done())
    done = train_by_counting(model, corpus(), settings, Log(), done)
    assert done.finished
    assert done.rounds == 4
    assert torch.equal(model.cost, whole.cost)


def test_ctrl_c_among_the_starts_keeps_the_likeliest_so_far_and_begins_anew():
    model = Falling(stop_at=8)
    done = train_by_counting(model, corpus(), Counting(steps=9, restarts=4), Log(), Done())
    assert float(model.cost) < 1
    assert done == Done(0, False)


def test_ctrl_c_before_a_round_is_whole_leaves_no_run():
    with pytest.raises(KeyboardInterrupt):
        train_by_counting(Falling(stop_at=1), corpus(), Counting(), Log(), Done())


@pytest.mark.parametrize("settings", [Counting(steps=2), Counting(restarts=2)])
def test_a_setting_without_effect_is_refused(settings):
    with pytest.raises(UserError, match="one round"):
        train_by_counting(Falling(closed_form=True), corpus(), settings, Log(), Done())


def test_an_empty_text_is_refused():
    with pytest.raises(UserError, match="the training text is empty"):
        train_by_counting(Falling(), corpus(np.array([0], np.uint16)), Counting(), Log(), Done())
