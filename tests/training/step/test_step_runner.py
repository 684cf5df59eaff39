"""How a step is run: eagerly, compiled or as a CUDA graph, chosen by a trial that leaves no trace in training."""

from types import SimpleNamespace

import pytest
import torch
from training.small import assert_same_bits, corpus, net, weights

from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.models import model_class
from chainrule.recipe import Gradient
from chainrule.training.compile import runner, trial
from chainrule.training.distributed import ALONE
from chainrule.training.log import Log
from chainrule.training.trainer import Trainer

ONE, TWO = (Batch(torch.zeros(rows, 1), torch.zeros(rows, 1)) for rows in (1, 2))


class Gpu:
    """A runner that takes this for a GPU, on which a pass lasts `eager`, `replayed` or `compiled` seconds."""

    def __init__(
        self, monkeypatch, eager, left, *, replayed=None, compiled=None, batches=(ONE,), padding=1.0, **given
    ):
        self.now, self.eager, self.captured, self.trials, self.graph_padding = 0.0, eager, 0, [], padding
        self.replayed, self.compiled = eager / 10 if replayed is None else replayed, compiled
        step = SimpleNamespace(totals=SimpleNamespace(is_cuda=True), carries=False, loss="as written", take=self.take)
        step.fused, self.trials_with_kernels = False, []
        step.model, step.eager_loss, step.ranks = SimpleNamespace(compiles=True), "as written", ALONE
        step.gradient_norm = lambda batch, state: 1.0
        self.step = step
        event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "Event", lambda: event)
        monkeypatch.setattr(runner, "compiled", lambda nats: "compiled")
        monkeypatch.setattr(runner.kernels, "available", lambda: True)
        monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: self.now))    # not for other threads
        monkeypatch.setattr(runner, "StepGraph", self.capture)
        monkeypatch.setattr(runner, "pass_seconds", self.pass_seconds)
        self.unpadded = 0
        seconds_left = left if callable(left) else lambda seconds: left
        self.runner = runner.StepRunner(step, Gradient(**given), seconds_left, self)
        for number in range(40):
            self.runner.take(batches[number % len(batches)], None)

    def unpad(self):
        self.unpadded += 1

    def take(self, batch, state):
        self.now += self.eager

    def pass_seconds(self, step, batch, state, as_graph):
        self.trials.append((step.loss, as_graph))
        self.trials_with_kernels.append((step.loss, as_graph, step.fused))
        plain = self.replayed if as_graph else self.eager
        return plain if step.loss == "as written" else self.compiled or plain / 2

    def capture(self, step, batch, state, other):
        self.captured += 1
        return SimpleNamespace(take=lambda batch, state: state)


def test_what_is_fastest_is_chosen(monkeypatch, capsys):
    gpu = Gpu(monkeypatch, 0.01, 60)                       # too short a run for torch.compile
    assert (gpu.step.loss, gpu.captured) == ("as written", 1)
    said = capsys.readouterr().err
    assert "10.0 ms eagerly, 1.0 ms as a CUDA graph; steps run as CUDA graphs from here on" in said
    assert gpu.trials == [("as written", False), ("as written", True)]


def test_a_graph_that_is_no_faster_is_not_used(monkeypatch, capsys):
    gpu = Gpu(monkeypatch, 0.1, 60, replayed=0.099)
    assert (gpu.runner.captures, gpu.captured) == (False, 0)
    assert "steps run eagerly from here on" in capsys.readouterr().err


def test_what_is_padded_for_graphs_must_be_worth_it(monkeypatch, capsys):
    """An eager step would have fewer tokens: 40 ms of 52 where batches have 1.3 times as many."""
    gpu = Gpu(monkeypatch, 0.052, 60, replayed=0.045, padding=1.3)
    assert (gpu.runner.captures, gpu.captured, gpu.unpadded) == (False, 0, 1)
    assert "40.0 ms eagerly, 45.0 ms as a CUDA graph; steps run eagerly from here on" in capsys.readouterr().err
    faster = Gpu(monkeypatch, 0.052, 60, replayed=0.035, padding=1.3)
    assert (faster.runner.captures, faster.captured, faster.unpadded) == (True, 1, 0)
    asked = Gpu(monkeypatch, 0.052, 60, padding=1.3, graph="true")
    assert (asked.captured, asked.unpadded) == (1, 0)


def test_steps_without_a_trial_are_not_padded_either(monkeypatch):
    gpu = Gpu(monkeypatch, 1.0, 60, padding=1.3)           # too long for a graph to pay
    assert (gpu.trials, gpu.unpadded) == ([], 1)


def test_a_long_run_is_compiled_if_that_is_faster(monkeypatch):
    faster = Gpu(monkeypatch, 0.01, 3600)
    assert (faster.step.loss, faster.captured) == ("compiled", 1)
    assert faster.trials[-1] == ("compiled", True)         # what is compiled is compared as a graph, too
    slower = Gpu(monkeypatch, 0.01, 3600, compiled=0.002)
    assert (slower.step.loss, slower.captured) == ("as written", 1)


def test_a_run_that_graphs_make_short_is_not_compiled(monkeypatch):
    steps = 40_000                                         # 400 s eagerly, 40 s as graphs
    gpu = Gpu(monkeypatch, 0.01, lambda seconds: steps * seconds)
    assert (gpu.step.loss, gpu.captured) == ("as written", 1)


@pytest.mark.parametrize(("steps", "given", "fused"), [
    (1000, {}, False),                   # 10 s eagerly, but 1 s as graphs: our kernels take longer to compile
    (9000, {}, True),
    (1000, {"graph": "false"}, True),
    (400, {"graph": "false"}, False),
])
def test_kernels_are_compiled_where_what_is_left_repays_them(monkeypatch, steps, given, fused):
    gpu = Gpu(monkeypatch, 0.01, lambda seconds: steps * seconds, **given)
    assert gpu.step.fused == fused


def test_what_is_compiled_is_compared_with_steps_that_use_the_kernels(monkeypatch):
    gpu = Gpu(monkeypatch, 0.01, 3600)
    assert [way for *way, fused in gpu.trials_with_kernels if fused] == [["as written", True], ["compiled", True]]


def test_steps_that_are_long_by_themselves_are_no_graphs(monkeypatch):
    gpu = Gpu(monkeypatch, 0.5, 60)
    assert (gpu.captured, gpu.trials) == (0, [])


def test_each_shape_is_captured_when_it_comes_again(monkeypatch):
    assert Gpu(monkeypatch, 0.01, 60, batches=(ONE, TWO)).captured == 2
    monkeypatch.setattr(runner, "MAX_GRAPHS", 1)
    assert Gpu(monkeypatch, 0.01, 60, batches=(ONE, TWO)).captured == 1


def test_batches_of_many_shapes_are_not_compiled(monkeypatch):
    three = Batch(torch.zeros(3, 1), torch.zeros(3, 1))
    assert Gpu(monkeypatch, 0.01, 3600, batches=(ONE, TWO)).step.loss == "compiled"
    assert Gpu(monkeypatch, 0.01, 3600, batches=(ONE, TWO, three)).step.loss == "as written"


def test_compiling_and_graphs_can_be_forbidden(monkeypatch):
    gpu = Gpu(monkeypatch, 0.01, 3600, compile="false", graph="false")
    assert (gpu.step.loss, gpu.captured, gpu.trials) == ("as written", 0, [])


def test_a_graph_that_was_asked_for_needs_no_trial(monkeypatch, capsys):
    gpu = Gpu(monkeypatch, 0.5, 60, replayed=1.0, graph="true", batches=(ONE, TWO))
    assert (gpu.captured, gpu.trials) == (2, [])
    assert capsys.readouterr().err.count("steps run as CUDA graphs from here on (train.graph=true)") == 1


def fail(*words, **named):
    raise RuntimeError("operation not permitted when stream is capturing\nand so on")


def test_a_model_that_cannot_be_captured_or_compiled_runs_eagerly(monkeypatch, capsys):
    plain = Gpu.pass_seconds
    monkeypatch.setattr(Gpu, "pass_seconds", lambda self, *words, **named: fail() if named else plain(self, *words))
    gpu = Gpu(monkeypatch, 0.01, 60)
    assert not gpu.runner.graphs
    said = capsys.readouterr().err
    assert "waits for the GPU within a step, so no step can be a CUDA graph" in said
    assert "not permitted" not in said                     # torch's own words say nothing to a user
    gpu.step.gradient_norm = lambda batch, state: 1.0 if gpu.step.loss == "as written" else fail()
    assert not gpu.runner._compile(None, None)
    assert gpu.step.loss == "as written"
    assert "torch.compile fails on this model" in capsys.readouterr().err
    monkeypatch.setattr(runner, "StepGraph", fail)
    for name in ("graph", "compile"):
        gpu.runner.settings = Gradient(**{name: "true"})
        with pytest.raises(UserError, match=rf"train\.{name}=true: .*: operation not permitted when stream is cap\w+$"):
            gpu.runner._capture(ONE, None) if name == "graph" else gpu.runner._compile(None, None)


def test_memory_that_a_graph_would_need_is_named(monkeypatch, capsys):
    def no_memory(self, step, batch, state, as_graph):
        if as_graph:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.eager

    monkeypatch.setattr(Gpu, "pass_seconds", no_memory)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert Gpu(monkeypatch, 0.01, 60).captured == 0
    assert "does not fit into the GPU's memory beside the model; steps run eagerly" in capsys.readouterr().err


def test_graphs_that_there_are_go_on_where_another_shape_fails(monkeypatch, capsys):
    plain = Gpu.capture
    monkeypatch.setattr(Gpu, "capture", lambda self, step, batch, *rest:
                        plain(self, step, batch, *rest) if len(batch.tokens) == 1 else fail())
    gpu = Gpu(monkeypatch, 0.01, 60, batches=(ONE, TWO))
    assert len(gpu.runner.graphs) == 1
    assert capsys.readouterr().err.count("a step of 2 rows cannot be captured as a CUDA graph") == 1


def test_a_compiled_model_through_which_no_gradient_comes_back_is_not_used(monkeypatch, capsys):
    gpu = Gpu(monkeypatch, 0.01, 60)
    gpu.step.gradient_norm = lambda batch, state: 2.0 if gpu.step.loss == "as written" else 0.0
    gpu.runner._compile(None, None)
    assert gpu.step.loss == "as written"
    assert "its gradient norm is 0, and should be about 2" in capsys.readouterr().err


def test_a_kind_without_gain_is_not_compiled(monkeypatch):
    assert not model_class("gru").compiles
    assert model_class("gpt").compiles
    gpu = Gpu(monkeypatch, 0.5, 60)
    gpu.step.model.compiles, gpu.runner.decided, gpu.runner.seconds_left = False, False, lambda seconds: 3600
    for _ in range(30):
        gpu.runner.take(ONE, None)
    assert gpu.step.loss == "as written"


class Replayed:
    """In the place of a CUDA graph: it runs the function at once, and again at every replay."""

    def __init__(self, function, inputs):
        self.function = function
        function()

    def replay(self, inputs):
        self.function()


@pytest.mark.parametrize("as_graph", [False, True])
def test_a_trial_leaves_no_trace(monkeypatch, as_graph):
    monkeypatch.setattr(trial, "CudaGraph", Replayed)

    def trained(tried):
        model = net(dropout=0.5)
        training = Trainer(model, corpus(), Gradient(tokens=64, length=16, precision="float32"), Log())
        training.begin()
        for number in range(6):
            if tried and number == 3:
                seconds = trial.pass_seconds(training.step, training.loader.batch(number), None, as_graph)
                assert seconds > 0
                assert all(parameter.grad is None for parameter in model.parameters())
            training.one_step()
        return weights(model), training.step.report()

    (plain, report), (tried, same) = trained(False), trained(True)
    assert_same_bits(plain, tried)
    assert report == same
