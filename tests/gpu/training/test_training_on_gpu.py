"""Training on a GPU: graphs take the same steps, tokens lie on the card, what fails there is said."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from training.small import Net, corpus, net, walk

from chainrule.model import Batch
from chainrule.recipe import Gradient
from chainrule.training import loader as loading
from chainrule.training.compile import runner as running
from chainrule.training.compile.trial import pass_seconds
from chainrule.training.interrupt import Stop
from chainrule.training.log import Log
from chainrule.training.optim import Muon, newton_schulz
from chainrule.training.trainer import Diverged, Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

GPU = torch.device("cuda")


def train(model, text=None, **given):
    settings = {"tokens": 256, "length": 16, "lr": 0.01, "steps": 60, "precision": "float32", "compile": "false"}
    training = Trainer(model.to(GPU), text or corpus(walk(4001)), Gradient(**settings | given), Log())
    training.begin()
    assert training.run(Stop())
    return training


def losses(training):
    return [record["nats_per_token"] for record in training.log.records if record["event"] == "step"]


OPTIMIZERS = [{}, {"optimizer": "muon"}, {"optimizer": "sgd", "momentum": 0.9, "lr": 0.3}]


@pytest.mark.parametrize("batching", ["windows", "streams"])
@pytest.mark.parametrize("given", OPTIMIZERS, ids=["adamw", "muon", "sgd"])
def test_a_graph_takes_the_steps_that_it_captured(batching, given):
    given = given | {"batching": batching, "micro_batch": 5}    # micro-batches too; streams reset at steps 15, 30, …
    eager, graphed = train(net(), graph="false", **given), train(net(), graph="true", **given)
    assert not eager.runner.graphs
    assert len(graphed.runner.graphs) == 1
    assert_close(torch.tensor(losses(graphed)), torch.tensor(losses(eager)), rtol=0.02, atol=0.02)
    for one, other in zip(eager.model.parameters(), graphed.model.parameters()):
        assert_close(one, other, rtol=0.05, atol=0.02)


def test_each_shape_of_batch_has_its_own_graph_and_all_take_the_same_steps():
    def walked(graph):
        training = train(net(), graph=graph, steps=20, micro_batch=16)
        text = torch.from_numpy(walk(4001).astype("int64")).to(GPU)
        for step in range(40):
            rows = text[: 16 * (10 + 4 * (step % 3))].view(16, -1)
            training.runner.take(Batch(rows[:, :-1], rows[:, 1:]), None)
        return training

    eager, graphed = walked("false"), walked("true")
    assert len(graphed.runner.graphs) == 4
    assert graphed.step.report().targets == eager.step.report().targets
    assert graphed.step.report().nats == pytest.approx(eager.step.report().nats, rel=0.01)


def test_dropout_is_drawn_anew_at_every_replay_of_a_graph():
    training = train(net(dropout=0.5), graph="true", lr=1e-9, steps=40)
    logged = losses(training)[20:]
    assert len(set(logged)) == len(logged)


def test_short_steps_become_a_graph_by_themselves(monkeypatch):
    monkeypatch.setattr(running, "SHORT", 60.0)            # where others use the card no step is short by itself,
    monkeypatch.setattr(running, "FASTER", 1000.0)         # and no graph is faster
    training = train(net(), graph="auto")
    assert len(training.runner.graphs) == 1


class Waiting(Net):
    """Waits for the GPU in every step, which no graph can."""

    def loss(self, batch, state=None):
        nats, count, state = super().loss(batch, state)
        return nats * (1.0 if float(count) else 0.0), count, state


def test_a_model_that_cannot_be_captured_is_trained_eagerly(capsys, monkeypatch):
    monkeypatch.setattr(running, "SHORT", 60.0)
    torch.manual_seed(1)
    model = Waiting()
    model.dropout.p = 0.2                                  # and its random generator goes on
    training = train(model, graph="auto")
    assert not training.runner.graphs
    assert "no step can be a CUDA graph" in capsys.readouterr().err
    assert losses(training)[-1] < 1.3


def test_a_trial_draws_the_random_numbers_again_and_changes_no_weight():
    def walked(tried):
        training = train(net(dropout=0.5), graph="false", steps=3)
        if tried:
            for as_graph in (False, True):
                assert pass_seconds(training.step, training.loader.batch(3), None, as_graph) > 0
        for number in range(3, 6):
            training.runner.take(training.loader.batch(number), None)
        return training.step.report().nats, [parameter.detach().clone() for parameter in training.model.parameters()]

    (nats, plain), (same, tried) = walked(False), walked(True)
    assert nats == pytest.approx(same, rel=1e-5)
    for one, other in zip(plain, tried):
        assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_batches_come_by_one_copy_without_waiting():
    rows = torch.randint(9, (6, 12))
    batches = [Batch(rows[:, :-1], rows[:, 1:] + number, torch.tensor([11, 3, 4, 5, 6, 7])) for number in range(40)]
    copier = loading.PinnedCopier(GPU)
    copied = [copier.copy(batch) for batch in batches]
    for batch, there in zip(batches, copied):
        assert there.tokens.is_cuda
        for name, tensor in batch.tensors().items():
            assert torch.equal(getattr(there, name).cpu(), tensor)


def test_tokens_lie_on_the_card_and_rows_are_the_same_there(monkeypatch):
    text = corpus(walk(4001))
    order = train(net(), text, steps=1).loader.order
    resident = loading.TokenLoader(order, GPU)
    assert resident.tokens is not None
    assert resident.tokens.is_cuda
    monkeypatch.setattr(loading, "MEMORY_SHARE", 0.0)
    other = loading.TokenLoader(order, GPU)
    assert other.tokens is None
    for step in (0, 14, 15, 40):
        here, there = resident.batch(step), other.batch(step)
        assert torch.equal(here.tokens, there.tokens)
        assert torch.equal(here.targets, there.targets)
        assert torch.equal(here.targets.cpu(), order.at(step).targets)


def test_bfloat16_is_chosen_by_itself_and_learns():
    training = train(net(width=32), precision="auto", steps=150)
    assert training.precision.dtype == torch.bfloat16
    assert all(parameter.dtype == torch.float32 for parameter in training.model.parameters())
    assert losses(training)[-1] < 1.0


def test_a_gpu_learns_what_a_cpu_learns():
    there = train(net(), steps=20, graph="false")
    here = Trainer(net(), corpus(walk(4001)), there.settings, Log())
    here.begin()
    here.run(Stop())
    assert_close(torch.tensor(losses(there)), torch.tensor(losses(here)), rtol=1e-3, atol=1e-3)


def test_muon_in_bfloat16_is_torchs():
    torch.manual_seed(1)
    ours = [torch.nn.Parameter(torch.randn(64, 32, device=GPU)) for _ in range(3)]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    assert newton_schulz(torch.stack(ours).detach()).dtype == torch.bfloat16
    mine = Muon(ours, 0.02)
    judge = torch.optim.Muon(theirs, 0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for one, other in zip(ours, theirs):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    mine.step()
    judge.step()
    for one, other in zip(ours, theirs):
        assert_close(one, other, rtol=0, atol=2e-3)


class Large(Net):
    """Needs a gigabyte for each row."""

    def loss(self, batch, state=None):
        held = [torch.empty(1 << 30, dtype=torch.uint8, device=GPU) for _ in batch.tokens]
        result = super().loss(batch, state)
        del held
        return result


def test_memory_that_runs_out_halves_the_micro_batch(capsys):
    total = torch.cuda.get_device_properties(GPU).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 5.5 * 2**30) / total)
    try:
        training = train(Large(), steps=3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert training.step.micro_batch == 4
    assert "out of memory: from here on a micro-batch has 4 rows" in capsys.readouterr().err


class Breaking(Net):
    def loss(self, batch, state=None):
        nats, count, state = super().loss(batch, state)
        return nats + 0 * (self.output.weight.sum() * 0).sqrt(), count, state


@pytest.mark.parametrize("graph", ["true", "false"])
def test_a_gradient_that_is_not_finite_is_named_though_nobody_waited_for_it(graph):
    with pytest.raises(Diverged, match=r"step 1: the gradient of output\.weight is not finite"):
        train(Breaking(), graph=graph)


def test_training_goes_on_from_a_checkpoint_on_a_gpu(tmp_path):
    from chainrule.training.checkpoint import Checkpoint
    from chainrule.training.trainer import load_state, state_of

    def make():
        settings = Gradient(tokens=256, length=16, steps=40, lr=0.01, precision="float32", optimizer="muon",
                            batching="streams", graph="true", compile="false")
        training = Trainer(net(dropout=0.2).to(GPU), corpus(walk(4001)), settings, Log())
        training.begin()
        return training

    whole = make()
    for _ in range(25):
        whole.one_step()
    facts, parts = state_of(whole)
    tensors = {f"{part}/{name}": tensor.cpu().clone() for part, some in parts.items() for name, tensor in some.items()}
    again = make()
    load_state(again, Checkpoint(tmp_path, facts, tensors))
    for training in (whole, again):
        for _ in range(12):
            training.one_step()
    assert again.number == whole.number == 37
    nats = [training.step.report().nats for training in (whole, again)]
    assert nats[0] == pytest.approx(nats[1], rel=0.02)


@pytest.mark.filterwarnings("ignore")    # torch.compile has its own
def test_compiling_is_the_same_descent():
    plain, compiled = train(net(), steps=10), train(net(), steps=10, compile="true")
    assert compiled.step.loss is not compiled.model.loss
    assert_close(torch.tensor(losses(compiled)), torch.tensor(losses(plain)), rtol=1e-3, atol=1e-3)


def test_mfu_is_logged():
    training = train(net(), precision="bfloat16")
    record = next(record for record in reversed(training.log.records) if record["event"] == "step")
    known = training.meter.peak is not None
    assert (record["mfu"] is not None) == known
    assert isinstance(SimpleNamespace(**record).tokens_per_second, int)
