"""Our kernels for the CPU serve long training of Transformers, and a run that was interrupted goes on with them."""

import pytest
import torch
from contract import kernels_in_torch
from safetensors.torch import load_file
from training.small import assert_same_bits

from chainrule import kernels, models
from chainrule.kernels.cpu import layers
from chainrule.kernels.cpu.compiled import Library
from chainrule.recipe import Gradient
from chainrule.tasks import build_for, recipe_for
from chainrule.training.compile import cpu_kernels
from chainrule.training.compile.cpu_kernels import use_cpu_kernels
from chainrule.training.pipeline import make_run
from chainrule.training.schedule import TrainingBudget
from chainrule.training.step import Step

SMALL = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 16}
HOUR, STEPS = TrainingBudget(None, 3600.0, 1.0), {steps: TrainingBudget(steps, None, 1.0) for steps in (10, 10**8)}


@pytest.fixture
def compiled(monkeypatch):
    """A machine with a compiler."""
    monkeypatch.setattr(layers, "available", lambda: True)
    kernels_in_torch.stand_in(monkeypatch)


def gpt(device="cpu", **given):
    return build_for(recipe_for("gpt", {**SMALL, **given}), 30).to(device)


@pytest.mark.usefixtures("compiled")
def test_they_serve_transformers_that_are_trained_for_long():
    assert use_cpu_kernels(gpt(), Gradient(), HOUR, 64)
    assert use_cpu_kernels(gpt(), Gradient(), STEPS[10**8], 64)
    assert not use_cpu_kernels(gpt(), Gradient(), STEPS[10], 64)
    assert use_cpu_kernels(gpt(), Gradient(), STEPS[10], 10**9)
    assert not use_cpu_kernels(gpt(), Gradient(), TrainingBudget(None, 1.0, 1.0), 64)


@pytest.mark.usefixtures("compiled")
def test_other_kinds_other_norms_other_devices_and_torch_compile_do_without():
    lstm = build_for(recipe_for("lstm", {"model.hidden": 16}), 30)
    assert not use_cpu_kernels(lstm, Gradient(), HOUR, 64)
    assert not use_cpu_kernels(gpt(**{"model.norm": "layer"}), Gradient(), HOUR, 64)
    assert not use_cpu_kernels(gpt("meta"), Gradient(), HOUR, 64)
    assert not use_cpu_kernels(gpt(), Gradient(compile="true"), HOUR, 64)


def test_without_a_compiler_torch_computes_everything(monkeypatch, tmp_path):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(layers, "LIBRARY", Library(layers.LIBRARY.source))
    assert not use_cpu_kernels(gpt(), Gradient(), HOUR, 64)


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Trains a GPT for 12 steps, `until` a step that is not taken."""
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("the cat saw the dog, and the dog ran. the cow saw the cat.\n" * 12)
    given = {**SMALL, "text.tokenizer": "bytes", "train.steps": 12, "train.tokens": 64, "train.checkpoint": 0}
    take, fused = Step.take, []

    def watched(step, batch, state):
        fused.append(step.fused)
        if len(fused) == watched.until:
            raise KeyboardInterrupt
        return take(step, batch, state)

    def call(name, until=None):
        fused.clear()
        watched.until = until
        monkeypatch.setattr(Step, "take", watched)
        make_run([str(tmp_path / "book.txt")], recipe_for("gpt", given), tmp_path / name)
        return fused

    return call


@pytest.mark.usefixtures("compiled")
def test_a_run_that_was_interrupted_goes_on_with_the_same_kernels(make, monkeypatch, tmp_path):
    """What is left of it would not be long enough."""
    asked = []
    total = TrainingBudget.total_seconds
    monkeypatch.setattr(TrainingBudget, "total_seconds", lambda *given: asked.append(total(*given)) or asked[-1])
    assert make("short") == [False] * 12
    monkeypatch.setattr(cpu_kernels, "REPAID", 0.9 * asked[0])
    assert make("whole") == [True] * 12
    with pytest.raises(KeyboardInterrupt):
        make("interrupted", until=9)
    assert make("interrupted") == [True] * 4
    found = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "interrupted")]
    assert_same_bits(*found)


@pytest.mark.usefixtures("compiled")
def test_they_serve_nothing_but_the_steps(make, monkeypatch):
    """An evaluation and what is done with a model later compute as they always did."""
    monkeypatch.setattr(cpu_kernels, "REPAID", 0.0)
    seen = []
    whole = models.model_class("gpt").loss
    monkeypatch.setattr(models.model_class("gpt"), "loss", lambda model, *given: seen.append(
        kernels.use_in_training(torch.zeros(1))) or whole(model, *given))
    make("run")
    assert seen.count(True) == 12
    assert not kernels.use_in_training(torch.zeros(1))
