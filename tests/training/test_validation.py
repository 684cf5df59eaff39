"""Looks: each token of a text to be restored is read once, and a signal leaves what was seen whole."""

import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training.small import corpus, net, walk

from chainrule.recipe import Gradient
from chainrule.tasks import find_task
from chainrule.text.batches import InOrder
from chainrule.text.corpus import prepare
from chainrule.training import validation
from chainrule.training.interrupt import catch_signals
from chainrule.training.log import Log
from chainrule.training.trainer import Trainer
from chainrule.training.validation import Evaluations

# A text to be restored


@given(size=st.integers(2, 300), rows=st.integers(1, 9), length=st.integers(1, 40))
def test_each_token_is_in_one_window(size, rows, length):
    order = InOrder(np.arange(size, dtype=np.uint16), rows, length)
    batches = [order.at(step) for step in range(round(order.epoch))]
    assert torch.cat([batch.tokens.flatten() for batch in batches]).tolist() == list(range(size - 1))
    assert all(torch.equal(batch.targets, batch.tokens + 1) for batch in batches)
    assert max(batch.tokens.shape[0] for batch in batches) <= rows
    lengths = {batch.tokens.shape[1] for batch in batches}
    assert max(lengths) <= length
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("task", ["mask", "span"])
def test_an_evaluation_corrupts_the_same_share_of_the_text_each_time(tmp_path, monkeypatch, task):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    for name, size in (("train", 3000), ("valid", 740)):
        (tmp_path / f"{name}.txt").write_text("".join(np.random.default_rng(1).choice(list("abcdef "), size)))
    task = find_task(task)
    files = {name: [str(tmp_path / f"{name}.txt")] for name in ("train", "valid")}
    settings = task.text(tokenizer="bytes")
    text = task.with_special(prepare(files["train"], settings, valid=files["valid"]), 64, settings)
    evaluation, again = task.validation(None, text), task.validation(None, text)
    asked = 0
    for step in range(round(evaluation.epoch)):
        batch = evaluation.at(step)
        assert torch.equal(batch.targets, again.at(step).targets)
        asked += int((batch.loss_mask & (batch.targets > 0) & (batch.targets < text.ordinary)).sum())
    assert asked / 740 == pytest.approx(0.15, abs=0.01)


# Signals


class Asking(dict):
    """Whoever goes through it is asked to stop by SIGTERM in the midst of it."""

    def items(self):
        for number, item in enumerate(super().items()):
            if number == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield item


@pytest.fixture
def training():
    settings = Gradient(tokens=64, length=16, steps=10, evaluate=5)
    made = Trainer(net(), corpus(valid=walk(150, seed=9)), settings, Log())
    made.begin()
    return made


def test_a_stop_while_the_best_weights_are_copied_leaves_the_whole_result(training):
    training.validation.weights = Asking(training.weights)
    with catch_signals() as stop:
        assert not training.run(stop)
    seen = training.validation.evaluations
    assert (training.number, seen.step, seen.best_step) == (5, 5, 5)
    assert training.validation.best.keys() == training.weights.keys()
    assert [record["step"] for record in training.log.records if record["event"] == "evaluation"] == [5]


def test_a_stop_while_the_text_is_read_leaves_no_result(training, monkeypatch):
    evaluate = validation.evaluate_together

    def asked(*words):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*words)

    monkeypatch.setattr(validation, "evaluate_together", asked)
    with catch_signals() as stop:
        assert not training.run(stop)
    assert training.number == 5
    assert training.validation.evaluations == Evaluations()
    assert not training.validation.best
    assert not [record for record in training.log.records if record["event"] == "evaluation"]
    assert training.model.training
