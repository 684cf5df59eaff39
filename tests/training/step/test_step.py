"""One training step: a batch without targets, a gradient norm without side effects, and the logged learning rate."""

import pytest
import torch
from training.small import assert_same_bits, corpus, net, weights

from chainrule.device import choose_precision
from chainrule.model import IGNORE, Batch
from chainrule.recipe import Gradient
from chainrule.run import Done
from chainrule.training.log import Log
from chainrule.training.param_groups import Optimizers
from chainrule.training.schedule import lr_factor
from chainrule.training.step import Step
from chainrule.training.trainer import train_by_gradient


def made(model, **given):
    settings = Gradient(**{"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, **given})
    return Step(model, Optimizers(model, settings), choose_precision("float32", torch.device("cpu")), 1.0, 4, False)


def some_batch():
    tokens = torch.randint(7, (4, 9), generator=torch.Generator().manual_seed(1))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def test_a_step_without_targets_changes_no_weight():
    model = net()
    step, before, batch = made(model), weights(model), some_batch()
    step.take(Batch(batch.tokens, torch.full_like(batch.targets, IGNORE)), None)
    assert step.report().not_finite is None
    assert_same_bits(before, weights(model))
    step.take(batch, None)
    assert step.report().targets == 32
    assert step.report().not_finite is None


def test_a_gradient_norm_is_measured_without_drawing_random_numbers():
    model = net(dropout=0.5).train()
    step, before = made(model), torch.get_rng_state()
    first, again = (step.gradient_norm(some_batch(), None) for _ in range(2))
    assert first == again > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_learning_rate_in_the_log_is_that_of_the_step():
    settings = Gradient(tokens=64, length=16, lr=0.5, optimizer="sgd", steps=8, warmup=0.5, schedule="linear")
    train_by_gradient(net(), corpus(), settings, log := Log(), Done())
    logged = {record["step"]: record["lr"] for record in log.records if record["event"] == "step"}
    assert logged == {step: pytest.approx(0.5 * lr_factor(settings, (step - 0.5) / 8)) for step in range(1, 9)}
