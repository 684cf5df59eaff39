"""What texts of growing length cost: memory by worked numbers, slopes by laws that are known."""

from types import SimpleNamespace

import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings
from torch import nn

from chainrule.errors import UserError
from chainrule.model import LanguageModel
from chainrule.viewer.views import cost
from chainrule.viewer.views.cost import Cost, TensorMemory, fitted_power, measure_costs

VOCAB = 7
CPU = torch.device("cpu")


def test_bytes_are_those_of_tensors_that_are_there_at_once():
    with cost.peak_memory(CPU) as peak:
        for _ in range(3):
            torch.zeros(1000).exp()                     # two at a time, and both are gone by the next
        assert peak() == 2 * 4000
        kept = torch.zeros(3000)
        kept.view(30, 100)[3:].add_(1)                  # no new tensor
        assert peak() == 3 * 4000


def test_what_was_there_before_is_not_counted():
    before = torch.zeros(1000)
    with cost.peak_memory(CPU) as peak:
        before.add_(1)
        before.view(10, 100)
    assert peak() == 0


def test_what_is_kept_for_the_way_back_is_counted_until_then():
    x = torch.ones(1000, requires_grad=True)
    with TensorMemory() as memory:
        y = x.exp().sin().sum()                         # exp's answer is what both need to go back
        kept = memory.now
        y.backward()
        x.grad = None
        del y
        assert memory.now == 0
    assert kept == 4000 + 4


class Quadratic(LanguageModel):
    """Holds T² numbers as it reads T tokens; its state is all that it has read."""

    def __init__(self):
        super().__init__()
        self.word = nn.Parameter(torch.ones(VOCAB))

    def start(self, rows, source=None, lengths=None):
        return torch.zeros(rows, 0)

    def step(self, tokens, state):
        pattern = torch.zeros(tokens.shape[1], tokens.shape[1]) * self.word[0]
        return pattern.sum(1)[:, None] + self.word.expand(*tokens.shape, -1), torch.cat([state, tokens.float()], 1)


def test_a_square_is_seen_as_a_square_and_a_state_as_what_it_holds():
    lengths = [128, 256, 512]
    assert fitted_power(measure_costs(Quadratic(), "learn", lengths, repeats=1), "bytes") == pytest.approx(2, abs=0.1)
    assert fitted_power(measure_costs(Quadratic(), "reread", lengths, repeats=1), "bytes") == pytest.approx(2, abs=0.1)
    written = measure_costs(Quadratic(), "write", lengths, repeats=1)
    assert [one.tokens for one in written] == lengths
    assert fitted_power(written, "bytes") == pytest.approx(1, abs=0.1)


def test_a_recurrent_state_does_not_grow_and_a_cache_does():
    torch.manual_seed(1)
    recurrent, attentive = Recurrent(ToySettings(), VOCAB), Attentive(ToySettings(context=64), VOCAB)

    def power(model, way):
        return fitted_power(measure_costs(model, way, [16, 32, 64], repeats=1), "bytes")

    assert power(recurrent, "write") == pytest.approx(0, abs=0.1)
    assert power(attentive, "write") > 0.5
    assert power(recurrent, "learn") == pytest.approx(1, abs=0.25)


def test_a_slope_is_the_power_of_the_longer_texts():
    def costs(*lengths):
        return [Cost(length, 3e-6 * length**2 if length >= 100 else 1.0, 5 * length) for length in lengths]

    assert fitted_power(costs(400, 1, 200, 10, 100), "seconds") == pytest.approx(2)
    assert fitted_power(costs(100, 200), "bytes") == pytest.approx(1)
    for too_few in (costs(100), costs(100, 100)):
        with pytest.raises(UserError, match="two lengths"):
            fitted_power(too_few, "seconds")


class Counted(Recurrent):
    read = 0

    def step(self, tokens, state):
        self.read += tokens.numel()
        return super().step(tokens, state)


@pytest.mark.parametrize("length", [5, 32, 33, 200])
def test_rereading_says_what_share_of_all_readings_it_did(length):
    model = Counted(ToySettings(), VOCAB)
    share = cost.WAYS["reread"](model, torch.zeros(1, length, dtype=torch.long))
    assert share == pytest.approx(model.read / (length * (length + 1) / 2))
    assert share == 1 if length <= cost.REREADS else share < 1


def test_the_clock_is_told_in_proportion(monkeypatch):
    """A way that does half of its work has taken twice as long."""
    times = iter([0.0, 0.3, 1.0, 1.2])
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(cost, "WAYS", {"half": lambda model, tokens: 0.5})
    assert measure_costs(Recurrent(ToySettings(), VOCAB), "half", [4], repeats=2)[0].seconds == pytest.approx(0.4)


def test_a_text_that_takes_long_is_not_repeated(monkeypatch):
    times = iter([0.0, 9.0])
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(cost, "WAYS", {"slow": lambda model, tokens: 1.0})
    assert measure_costs(Recurrent(ToySettings(), VOCAB), "slow", [4], repeats=3)[0].seconds == 9.0


def test_measuring_leaves_a_model_as_it_was():
    model = Recurrent(ToySettings(), VOCAB).train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for way in cost.WAYS:
        measure_costs(model, way, [4], repeats=1)
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_text_beyond_the_context_is_refused():
    with pytest.raises(UserError, match="100 tokens is longer than the model's context of 16"):
        measure_costs(Attentive(ToySettings(context=16), VOCAB), "learn", [8, 100])


def test_a_gpu_is_asked_for_its_own_count_and_waited_for(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 350)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: asked.append("wait"))
    with cost.peak_memory(torch.device("cuda")) as peak:
        assert asked == ["reset"]
    assert peak() == 250
    cost._wait(torch.device("cuda"))
    assert asked == ["reset", "wait"]
