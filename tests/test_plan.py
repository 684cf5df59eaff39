"""The plan against what was published, against what a training step really keeps, and against what cannot fit."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.flops import GPUS, mean_keys, peak_of
from chainrule.model import Batch
from chainrule.models import KINDS, Kind, build, kind, model_class
from chainrule.models.published import PUBLISHED
from chainrule.plan import GIB, Plan, activation_bytes, enough, make_plan, memory_of, refuse_what_cannot_fit
from chainrule.recipe import Recipe, make_recipe
from chainrule.tasks.lm import order_text
from chainrule.text.corpus import Split


def recipe(name: str, **given: Any) -> Recipe:
    dotted = {key.replace("__", "."): value for key, value in given.items()}
    return make_recipe(name, model_class(name), dotted, kind(name).preset)


def plan(name: str, gpus: int = 1, gpu: str = "h200", **given: Any) -> Plan:
    return make_plan(recipe(name, **given), gpus, gpu)


def test_gpt3_costs_what_was_published() -> None:
    assert plan("gpt3-175b").flops == pytest.approx(3.14e23, rel=0.05)


@pytest.mark.parametrize(("name", "days"), [("gpt3-small", 2.6), ("gpt3-xl", 27.5), ("gpt3-13b", 268)])
def test_the_table_of_petaflop_days(name: str, days: float) -> None:
    """Table D.1 of the GPT-3 paper, which leaves attention out; with it a small model costs some more."""
    petaflop_day = 1e15 * 86400
    assert days < plan(name).flops / petaflop_day < 1.2 * days


def test_a_token_costs_six_flops_a_weight_and_the_keys_it_sees() -> None:
    made = plan("gpt2", train__total_tokens=1)
    multiplied = 124_439_808 - 1024 * 768                       # all but the places, which are looked up
    scores_and_values = 2 * 12 * 768 * (1024 + 1) / 2
    assert made.flops == 6 * (multiplied + scores_and_values)
    assert plan("gpt2", model__tied=False, train__total_tokens=1).flops == made.flops


@pytest.mark.parametrize(("length", "window"), [(7, None), (7, 3), (7, 7), (7, 9), (1, 1)])
def test_keys_mean_keys(length: int, window: int | None) -> None:
    seen = [min(place + 1, window or length) for place in range(length)]
    assert mean_keys(length, window) == pytest.approx(sum(seen) / length)


def test_the_end_of_training_is_the_recipes_or_the_papers_or_twenty_tokens_a_parameter() -> None:
    assert plan("gpt3-small").tokens == 300e9
    assert plan("gpt3-small", train__total_tokens=7e9).tokens == 7e9
    assert plan("gpt3-small", train__steps=10).tokens == 10 * 512 * 1024
    made = plan("gpt")
    assert made.tokens == 20 * made.work.parameters
    one, eight = (plan("gpt3-small", gpus, train__minutes=5) for gpus in (1, 8))
    assert eight.seconds == pytest.approx(300)
    assert eight.tokens == pytest.approx(8 * one.tokens)


def test_days_are_flops_by_what_the_gpus_do() -> None:
    one, many = plan("gpt2-xl"), plan("gpt2-xl", 64)
    assert one.seconds == pytest.approx(one.flops / (0.4 * 989e12))
    assert many.seconds == pytest.approx(one.seconds / 64)


def test_a_network_without_attention_costs_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "lstm", Kind("rnn:LSTM", ""))
    made = plan("lstm", model__layers=2, model__hidden=50, model__tied=True, text__vocab=1000, train__total_tokens=1)
    cells = 2 * (4 * 50 * 100 + 2 * 4 * 50)                     # eight matrices of 50 x 50 a layer, and their biases
    assert made.work.parameters == cells + 1000 * 50 + 1000
    assert made.flops == 6 * (cells + 1000 * 50 + 1000)
    assert made.rows["ddp"] > 1


@pytest.mark.parametrize(
    ("name", "vocab", "given"),
    [
        ("lstm", 2048, {}), ("gru", 1536, {}), ("feedforward", 512, {}),             # rows of their hidden matrices
        ("gpt", 512, {"model__size": "tiny", "model__tied": True}), ("gpt2", 1024, {}),
    ],
)
def test_a_vocabulary_as_large_as_something_else_is_nothing_special(name: str, vocab: int, given: Any) -> None:
    works = [plan(name, text__vocab=vocab + more, **given).work for more in (-1, 0, 1)]
    for what in ("flops", "parameters", "hidden", "activations"):
        below, here, above = (getattr(work, what) for work in works)
        assert here == pytest.approx((below + above) / 2), what


@pytest.mark.parametrize("name", ["gpt", "gpt2", "lstm", "gpt3-small"])
def test_a_step_is_as_large_as_training_takes_it(name: str) -> None:
    made, given = plan(name), recipe(name)
    text = Split(np.zeros(100 * made.batch + 1, np.uint16), 1, 1, "")
    context = getattr(given.model, "context", None)
    assert order_text(text, given.train, context).targets == made.batch


@pytest.mark.parametrize(("name", "peak"), [
    ("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-40GB", 312e12), ("NVIDIA GeForce RTX 4090", 165e12),
    ("NVIDIA L40S", 362e12), ("NVIDIA L4", 121e12), ("Tesla T4", 65e12), ("NVIDIA GH200 480GB", 989e12),
    ("Other", None),
])
def test_the_peak_of_a_gpu_is_known_by_its_name(name: str, peak: float | None, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_of(torch.device("cuda")) == peak
    assert peak_of(torch.device("cpu")) is None


# Memory


def test_ddp_holds_all_of_the_state_and_fsdp_a_share() -> None:
    train, work = recipe("gpt3-6.7b").train, plan("gpt3-6.7b").work
    ddp, fsdp = (memory_of(work, train, 2048, 64, how) for how in ("ddp", "fsdp"))
    assert (ddp.weights, ddp.gradients, ddp.optimizer) == tuple(n * work.parameters for n in (6, 4, 8))
    assert fsdp.optimizer == ddp.optimizer / 64
    words, layer = work.parameters - work.hidden, work.layer
    assert fsdp.weights == 4 * work.parameters / 64 + 6 * (2 * layer + words)    # what is gathered is float32 and bf16
    assert fsdp.gradients == 4 * work.parameters / 64 + 4 * (layer + words)
    assert fsdp.total < ddp.total / 5
    assert fsdp.activations == ddp.activations


def test_optimizers_remember_as_much_as_they_do() -> None:
    work = plan("gpt").work
    bytes_of = {
        name: memory_of(work, recipe("gpt", **given).train, 1, 1, "ddp").optimizer
        for name, given in {
            "muon": {}, "adamw": {"train__optimizer": "adamw"}, "sgd": {"train__optimizer": "sgd"},
            "momentum": {"train__optimizer": "sgd", "train__momentum": 0.9},
        }.items()
    }  # fmt: skip
    assert bytes_of["adamw"] == 8 * work.parameters
    assert bytes_of["muon"] == 8 * work.parameters - 4 * work.hidden
    assert (bytes_of["momentum"], bytes_of["sgd"]) == (4 * work.parameters, 0)


def kept(model: Any, length: int) -> int:
    """Bytes that a training step in mixed precision keeps beside the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    tokens = torch.zeros(2, length, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model.loss(Batch(tokens, tokens))
    return sum(size for size, _ in storages.values())


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_a_token_keeps_about_what_it_really_keeps(name: str) -> None:
    made = recipe(name, model__layers=4, model__width=128, model__heads=4, model__context=512)
    model = build(name, made.model, 64)
    real = (kept(model, 256) - kept(model, 128)) / 256          # the slope, so that copies of weights drop out
    assert activation_bytes(made.model) == pytest.approx(real, rel=0.2)


def test_the_cache_is_what_a_state_holds() -> None:
    made = recipe("gpt", model__layers=3, model__width=32, model__heads=4, model__kv_heads=2, model__context=64)
    model = build("gpt", made.model, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, state = model.step(torch.zeros(1, 64, dtype=torch.long), model.start(1))
    assert make_plan(made).work.cache * 64 == state["keys"].nbytes + state["values"].nbytes


def test_as_many_rows_as_fit_and_no_more() -> None:
    made = plan("gpt2-xl", gpu="h100")
    rows = made.rows["ddp"]
    assert 1 < rows < 512
    train, room = recipe("gpt2-xl").train, GPUS["h100"].memory * GIB
    assert memory_of(made.work, train, rows * 1024, 1, "ddp").total < room
    assert memory_of(made.work, train, 2 * rows * 1024, 1, "ddp").total > 0.94 * room
    assert plan("gpt2", train__micro_batch=3).rows["ddp"] == 3
    assert plan("gpt2", 64, train__tokens=65536).rows["ddp"] == 1


def test_what_cannot_fit_is_refused_and_what_would_is_named() -> None:
    made, train = plan("gpt3-175b"), recipe("gpt3-175b").train
    with pytest.raises(UserError, match=r"does not fit on 1 x h200: .* 256 x h200 with FSDP would be enough\.$"):
        refuse_what_cannot_fit("gpt3-175b", made, train)
    assert enough(made, train, "h200") == 256
    assert enough(made, train, "t4") is None
    refuse_what_cannot_fit("gpt3-175b", plan("gpt3-175b", 256), train)
    with pytest.raises(UserError, match="x h200 with FSDP"):
        refuse_what_cannot_fit("gpt3-175b", plan("gpt3-175b", gpu="t4"), train)
    with pytest.raises(UserError, match=r"A smaller model.context needs less\.$"):
        refuse_what_cannot_fit("gpt3-175b", plan("gpt3-175b", 1024, model__context=65536), train)


def test_what_fits_by_shares_alone_is_not_refused() -> None:
    made = plan("gpt3-13b", 8)
    assert made.rows["ddp"] == 0
    assert made.rows["fsdp"] > 0


# The command line


def test_the_plan_of_every_published_size_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for name in PUBLISHED:
        assert main(["plan", name, "--gpus", "256", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["parameters"] > 1e8
        assert answer["bytes"]["fsdp"]["fits"]


def test_the_plan_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt3-175b", "--gpus", "2048", "--gpu", "h100", "model.context=1024"]) == 0
    shown = capsys.readouterr().out
    assert "174.6B parameters" in shown
    assert "300B tokens" in shown
    assert "days" in shown
    assert "too large" in shown
    assert main(["plan", "gpt", "model.size=tiny", "train.steps=100", "text.vocab=300"]) == 0
    assert "seconds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ngram"], "learns by counting"),
        (["gpt2", "--gpus", "0"], "--gpus 0"),
        (["gpt2", "--gpu", "h20"], "unknown GPU h20. Did you mean h200?"),
        (["gpt3"], "unknown kind gpt3"),
        (["gpt3-175b"], "does not fit"),
        (["gpt2", "model.heads=5"], "does not divide"),
        (["gpt2", "train.epochs=3"], "train.epochs=3: a plan does not know the text. Give train.total_tokens"),
    ],
)
def test_a_plan_that_cannot_be_made_is_one_line(words: list[str], says: str, capsys: Any) -> None:
    assert main(["plan", *words]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
