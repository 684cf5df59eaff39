"""Descent on a small network: exact sums, carried states, evaluations, budgets, and what may go wrong."""

import itertools
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from training.small import Net, assert_same_bits, corpus, net, walk, weights

from chainrule.device import choose_precision
from chainrule.errors import UserError
from chainrule.inference.analysis.gradients import gradients_by_time
from chainrule.inference.evaluate import evaluate
from chainrule.model import Batch
from chainrule.recipe import Gradient
from chainrule.run import Done
from chainrule.tasks import lm
from chainrule.text.batches import Streams
from chainrule.training import log, trainer
from chainrule.training.log import RECORDS, Log
from chainrule.training.trainer import Diverged, Trainer, train_by_gradient


def train(model, text=None, log=None, **given):
    settings = Gradient(**({"tokens": 64, "length": 16, "lr": 0.01} | given))
    return train_by_gradient(model, text or corpus(), settings, Log() if log is None else log, Done())


def records(log, event):
    return [record for record in log.records if record["event"] == event]


@pytest.mark.parametrize(
    "given",
    [{}, {"optimizer": "muon"}, {"optimizer": "sgd", "lr": 1.0, "momentum": 0.9}, {"batching": "streams"},
     {"micro_batch": 1}],
    ids=str,
)
def test_a_small_text_is_learned_by_heart(given):
    text = np.array([0, 1, 3, 2, 6, 4, 5, 2, 2, 1, 6] * 30, np.uint16)
    log = Log()
    done = train(net(), corpus(text), log, **({"steps": 100, "lr": 0.03} | given))
    assert done.finished
    assert done.rounds == 100
    first, last = records(log, "step")[0], records(log, "step")[-1]
    assert first["nats_per_token"] > 1.5
    assert last["nats_per_token"] < 0.15


@pytest.mark.parametrize("order", ["windows", "streams"])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_cutting_a_step_into_micro_batches_changes_no_weight(order, rows):
    whole, parts = net(), net()
    train(whole, steps=5, batching=order, tokens=128, clip=0.1)
    train(parts, steps=5, batching=order, tokens=128, clip=0.1, micro_batch=rows)
    for one, other in zip(whole.parameters(), parts.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_logged_loss_is_the_mean_over_every_target():
    model, log, text = net(), Log(), corpus(walk(593))
    train(model, text, log, steps=1, lr=1e-9, tokens=592, evaluate=0)
    (record,) = records(log, "step")
    wanted = evaluate_windows(net(), text)
    assert record["nats_per_token"] == pytest.approx(wanted, rel=1e-5)
    assert record["bits_per_byte"] == pytest.approx(wanted / math.log(2) / 2, rel=1e-5)
    assert record["tokens"] == 592


def evaluate_windows(model, text):
    rows = torch.from_numpy(text.splits["train"].tokens.astype(np.int64))
    windows = torch.stack([rows[start : start + 17] for start in range(0, 592, 16)])
    with torch.no_grad():
        logits, _ = model.step(windows[:, :-1], model.start(len(windows)))
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))


class Listening(Net):
    """Notes the states that it is given, and gives."""

    def __init__(self):
        super().__init__()
        self.given, self.left = [], []

    def loss(self, batch, state=None):
        self.given.append(None if state is None else self.begin(batch, state))
        nats, count, state = super().loss(batch, state)
        self.left.append(state)
        return nats, count, state


def test_streams_carry_their_state_on_and_cut_the_gradient():
    model = Listening()
    train(model, steps=20, batching="streams", lr=1e-9)       # 9 steps an epoch
    reset = [step for step, state in enumerate(model.given) if state is None]
    assert reset == [0, 9, 18]
    for before, state in zip(model.left, model.given[1:]):
        if state is not None:
            assert torch.equal(before, state)
            assert before.requires_grad
            assert not state.requires_grad


def test_rows_that_are_reset_have_forgotten_and_the_others_have_not(monkeypatch):
    monkeypatch.setattr(lm, "RESET_SHARE", 0.3)
    model, text = Listening(), corpus()
    train(model, text, steps=20, batching="streams", lr=1e-9)
    order = Streams(text.splits["train"].tokens, 4, 16, 0.3)
    begun = [order.reset(step) for step in range(20)]
    assert any(some.any() and not some.all() for some in begun)
    for step, (before, state) in enumerate(zip(model.left, model.given[1:]), 1):
        if state is not None:
            assert torch.equal(state[~begun[step]], before[~begun[step]])
            assert (state[begun[step]] == 0).all()


class Beginning(Net):
    """Its first state is learned; notes what it was before each step."""

    def __init__(self):
        super().__init__()
        self.first, self.been = torch.nn.Parameter(torch.zeros(16)), []

    def start(self, rows, source=None, lengths=None):
        return self.first.expand(rows, -1)

    def loss(self, batch, state=None):
        self.been.append((batch.reset.clone(), self.first.detach().clone()))
        return super().loss(batch, state)


@pytest.mark.parametrize("rows", [None, 1])
def test_a_first_state_learns_from_every_row_that_is_reset(monkeypatch, rows):
    monkeypatch.setattr(lm, "RESET_SHARE", 0.15)
    model = Beginning()
    train(model, steps=9, batching="streams", optimizer="sgd", lr=0.1, micro_batch=rows)     # an epoch
    steps = [model.been[at : at + (4 if rows else 1)] for at in range(0, len(model.been), 4 if rows else 1)]
    assert len(steps) == 9
    begun = [any(bool(reset.any()) for reset, _ in step) for step in steps]
    assert begun.count(True) > 2
    assert False in begun[1:]
    for step, then, some in zip(steps[1:], steps[2:], begun[1:]):
        assert torch.equal(step[0][1], then[0][1]) != some      # it moves where a row begins, and only there


def test_windows_carry_no_state():
    model = Listening()
    train(model, steps=20)
    assert model.given == [None] * 20


def test_clipping_shortens_the_whole_gradient():
    model, log = net(), Log()
    before = weights(model)
    train(model, None, log, optimizer="sgd", lr=1.0, steps=1, clip=0.01, warmup=0, schedule="constant")
    moved = math.sqrt(sum(float((tensor - before[name]).square().sum()) for name, tensor in weights(model).items()))
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert records(log, "step")[0]["gradient_norm"] > 0.1


def test_clipping_leaves_a_shorter_gradient_as_it_is():
    """A clip far above the gradient's norm changes no bit; to scale every gradient to the clip would lengthen it."""
    given = {"optimizer": "sgd", "lr": 0.1, "steps": 3, "warmup": 0, "schedule": "constant"}
    plain, clipped, log = net(), net(), Log()
    train(plain, clip=0, **given)
    train(clipped, None, log, clip=1000.0, **given)
    assert max(record["gradient_norm"] for record in records(log, "step")) < 100
    assert_same_bits(weights(plain), weights(clipped))


# Evaluations


def valid_text():
    return walk(150, seed=9)


def test_an_evaluation_covers_the_whole_validation_text():
    model, log, text = net(), Log(), corpus(valid=valid_text())
    train(model, text, log, steps=10, evaluate=5)
    evaluations = records(log, "evaluation")
    assert [evaluation["step"] for evaluation in evaluations] == [5, 10]
    result = evaluate(model, text.tokenizer, text.splits["valid"])
    assert result.nats == pytest.approx(min(evaluation["nats"] for evaluation in evaluations), rel=1e-6)


def overfitting():
    """Nothing to learn but by heart, so the validation text only suffers."""
    return corpus(walk(81, certain=0), walk(200, seed=5, certain=0))


def test_the_final_model_is_the_best_that_was_evaluated():
    model, log, text = net(), Log(), overfitting()
    train(model, text, log, steps=80, evaluate=10, lr=0.03)
    evaluations = {evaluation["step"]: evaluation["nats"] for evaluation in records(log, "evaluation")}
    best = min(evaluations.values())
    assert best < evaluations[80] - 0.1
    assert evaluate(model, text.tokenizer, text.splits["valid"]).nats == pytest.approx(best, rel=1e-6)
    last = net()
    train(last, text, steps=80, evaluate=10, lr=0.03, keep_best=False)
    assert evaluate(last, text.tokenizer, text.splits["valid"]).nats == pytest.approx(evaluations[80], rel=1e-6)


def test_patience_ends_training_after_evaluations_without_a_better_one():
    log = Log()
    done = train(net(), overfitting(), log, steps=500, evaluate=10, lr=0.03, patience=3)
    evaluations = records(log, "evaluation")
    best = min(evaluations, key=lambda evaluation: evaluation["nats"])
    assert done.finished
    assert done.rounds == evaluations[-1]["step"] == best["step"] + 30 < 500


def test_evaluating_changes_no_weight():
    text = corpus(valid=valid_text())
    often, never = net(dropout=0.3), net(dropout=0.3)
    train(often, text, steps=12, evaluate=1, keep_best=False)
    train(never, text, steps=12, evaluate=0)
    assert_same_bits(weights(often), weights(never))


def test_without_a_validation_text_there_are_no_evaluations():
    log = Log()
    assert train(net(), corpus(), log, steps=10, evaluate=2).finished
    assert records(log, "evaluation") == []


# Budgets


@pytest.mark.parametrize(("given", "steps"), [({"epochs": 2}, 18), ({"total_tokens": 640}, 10), ({"steps": 3}, 3)])
def test_training_ends_with_its_budget(given, steps):
    assert train(net(), **given).rounds == steps           # 37 windows, 4 in a step


def test_a_budget_in_minutes_ends_on_time_and_its_rate_follows_the_clock(monkeypatch):
    """By a clock that goes on by 0.02 s whenever it is read, once between two steps."""
    now = itertools.count(7, 0.02)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(now)))
    log = Log()
    done = train(net(), None, log, minutes=1 / 60, final_lr=0.1, warmup=0.0, lr=0.01)
    assert done.finished
    assert 45 <= done.rounds <= 51
    assert 7.9 < next(now) < 8.2
    rates = [record["lr"] for record in records(log, "step")]
    assert rates[0] > 0.0095
    assert rates[-1] < 0.0015


def test_a_seed_repeats_and_another_does_not():
    one, two, other = net(dropout=0.2), net(dropout=0.2), net(dropout=0.2)
    train(one, steps=8)
    train(two, steps=8)
    train(other, steps=8, seed=2)
    assert_same_bits(weights(one), weights(two))
    assert not torch.equal(one.output.weight, other.output.weight)


# What may go wrong


class Breaking(Net):
    """From its `at`-th call on, the gradient that comes to the layer is not finite."""

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def loss(self, batch, state=None):
        self.calls += 1
        nats, count, state = super().loss(batch, state)
        if self.calls >= self.at:
            nats = nats + (self.layer.weight_hh_l0.sum() * 0).sqrt() * 0 + self.embed.weight.sum() * float("nan") * 0
        return nats, count, state


def test_a_gradient_that_is_not_finite_stops_with_its_step_and_name():
    with pytest.raises(Diverged) as caught:
        train(Breaking(at=6), steps=100)
    assert str(caught.value).startswith("step 6: the gradient of ")
    assert "train.lr (it is 0.01)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.done == Done(0)


class Bursting(Net):
    """Its layer, and what lies before it on the way back, gets a gradient that is not finite; nothing after it does."""

    def step(self, tokens, state):
        hidden, last = self.layer(self.embed(tokens), state[None].contiguous())
        burst = (hidden.detach() * 0 + (hidden - hidden.detach())).sqrt()    # 0, with an infinite slope
        return self.output(self.norm(hidden.detach() + burst)), last[0]


def test_the_layer_that_is_named_is_the_first_to_break_on_the_way_back():
    with pytest.raises(Diverged, match=r"step 1: the gradient of layer\.bias_hh_l0 is not finite; there is no check"):
        train(Bursting(), steps=3)


class Hungry(Net):
    """Has memory for `limit` rows."""

    def __init__(self, limit, error=None):
        super().__init__()
        self.limit, self.error = limit, error or torch.OutOfMemoryError("CUDA out of memory.")

    def loss(self, batch, state=None):
        result = super().loss(batch, state)
        if len(batch.tokens) > self.limit:
            raise self.error
        return result


@pytest.mark.parametrize("order", ["windows", "streams"])
def test_out_of_memory_halves_the_micro_batch_and_changes_no_sum(order, capsys):
    torch.manual_seed(1)
    hungry = Hungry(2)
    train(hungry, steps=6, tokens=128, batching=order)
    err = capsys.readouterr().err
    assert "out of memory: from here on a micro-batch has 4 rows" in err
    assert err.count("out of memory") == 2
    fed = net()
    train(fed, steps=6, tokens=128, batching=order)
    for one, other in zip(hungry.parameters(), fed.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_memory_of_a_cpu_runs_out_in_its_own_words(capsys):
    error = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
    assert train(Hungry(2, error), steps=1).finished
    assert "out of memory" in capsys.readouterr().err


def test_a_row_that_does_not_fit_is_one_line():
    with pytest.raises(UserError, match=r"out of memory with a single row of 16 tokens\. A smaller model"):
        train(Hungry(0), steps=1)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="something new"):
        train(Hungry(2, RuntimeError("something new")), steps=1)


# What is logged


def test_the_log_counts_every_target_once():
    log = Log()
    train(net(), None, log, steps=230, tokens=16)
    logged = records(log, "step")
    assert len(logged) == RECORDS
    assert logged[-1]["step"] == 230
    assert logged[-1]["tokens"] == 230 * 16
    assert logged[0]["nats_per_token"] > logged[-1]["nats_per_token"]
    assert logged[0]["mfu"] is None


def test_a_tokenizer_that_loses_bytes_has_no_bits_per_byte():
    log = Log()
    train(net(), corpus(lossless=False), log, steps=2)
    assert records(log, "step")[-1]["bits_per_byte"] is None


def test_gradients_are_recorded_by_layer_and_by_time_on_request():
    log, quiet = Log(), Log()
    model, other = net(dropout=0.2), net(dropout=0.2)
    train(model, None, log, steps=40, gradients=True)
    train(other, None, quiet, steps=40)
    assert_same_bits(weights(model), weights(other))       # being watched changes nothing
    assert records(quiet, "gradients") == []
    logged = records(log, "gradients")
    assert len(logged) == 20
    assert logged[0]["by_layer"].keys() == {name for name, _ in model.named_parameters()}
    assert len(logged[0]["by_time"]) == 16
    assert all(length > 0 for length in logged[0]["by_time"])


def test_gradients_vanish_or_explode_along_a_recurrent_network():
    torch.manual_seed(1)
    rows = torch.randint(7, (8, 41))
    batch = Batch(rows[:, :-1], rows[:, 1:])
    for scale, vanishes in ((0.02, True), (1.0, False)):
        model = net()
        model.layer = torch.nn.RNN(16, 16, batch_first=True, nonlinearity="relu")
        with torch.no_grad():
            model.layer.weight_hh_l0.copy_(torch.eye(16) * 1.2 if not vanishes else torch.eye(16) * scale)
        by_time = gradients_by_time(model, batch, Trainer(model, corpus(), Gradient(), Log()).precision)
        assert len(by_time) == 40
        assert (by_time[10] < 1e-9) == vanishes
        assert (by_time[30] > by_time[5]) == (not vanishes)


def test_the_share_of_the_gpus_peak_is_shown(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    made = log.Meter(net(), corpus(), Log(), torch.device("cuda"), torch.bfloat16, 64)
    made.update(SimpleNamespace(nats=1.0, targets=10**6, norm=1.0), 1, 0.0, 0.1)
    assert "% of the GPU's peak" in made.note


# How it is run


def test_bfloat16_is_said_and_learns(capsys):
    log = Log()
    train(net(), None, log, steps=60, precision="bfloat16")
    assert "bfloat16 (as asked)" in capsys.readouterr().err
    assert records(log, "step")[-1]["nats_per_token"] < 1.2


def test_compiling_runs_what_was_compiled(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda nats: lambda *words: calls.append(1) or nats(*words))
    plain, compiled = net(), net()
    train(plain, steps=3)
    train(compiled, steps=3, compile="true")
    assert len(calls) == 4                                 # a trial, and three steps
    assert_same_bits(weights(plain), weights(compiled))


def test_a_graph_that_cannot_be_is_said(capsys):
    train(net(), steps=1, graph="true")
    assert "CUDA graphs are for GPUs" in capsys.readouterr().err


def test_tensorboard_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        train(net(), steps=1, tensorboard=True)


def test_tensorboard_gets_what_the_log_gets(monkeypatch):
    logged = []
    writer = SimpleNamespace(add_scalar=lambda *words: logged.append(words), flush=lambda: None)
    fake = SimpleNamespace(SummaryWriter=lambda folder: writer)
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", fake)
    train(net(), steps=3, tensorboard=True)
    assert [step for name, _, step in logged if name == "nats_per_token"] == [1, 2, 3]
    assert not any(name == "mfu" for name, _, _ in logged)


def test_a_gradient_norm_is_that_of_all_weights_and_leaves_no_gradient():
    training = Trainer(net(), corpus(), Gradient(precision="float32"), Log())
    batch = training.loader.batch(0)
    nats, _, _ = training.model.loss(batch)
    gradients = torch.autograd.grad(nats, list(training.model.parameters()))
    length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert training.step.gradient_norm(batch, None) == pytest.approx(length, rel=1e-4)
    assert all(parameter.grad is None for parameter in training.model.parameters())


def test_outside_the_main_thread_nobody_listens_for_signals():
    done = []
    thread = threading.Thread(target=lambda: done.append(train(net(), steps=2)))
    thread.start()
    thread.join()
    assert done[0].finished


@pytest.mark.parametrize(
    ("name", "bfloat16", "wanted", "why"),
    [
        ("auto", True, torch.bfloat16, "weights and sums stay in float32"),
        ("auto", False, torch.float32, "this GPU gains little from bfloat16"),
        ("float32", True, torch.float32, "as asked"),
        ("bfloat16-stream", False, torch.bfloat16, "as asked, and so is the residual stream"),
    ],
)
def test_the_precision_of_a_gpu_is_chosen_and_said(monkeypatch, name, bfloat16, wanted, why):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bfloat16)
    chosen = choose_precision(name, torch.device("cuda"))
    assert chosen.dtype == wanted
    assert str(chosen).endswith(f"({why})")


@pytest.mark.parametrize(
    ("amx", "avx512_bf16", "limited", "wanted"),
    [
        (True, False, False, torch.bfloat16),
        (False, True, False, torch.bfloat16),
        (False, False, False, torch.float32),
        (True, True, True, torch.float32),
    ],
)
def test_a_cpu_multiplies_bfloat16_only_where_that_is_fast(monkeypatch, amx, avx512_bf16, limited, wanted):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if limited:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert choose_precision("auto", torch.device("cpu")).dtype == wanted
