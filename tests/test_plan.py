"""The plan against what was published, against what a training step really keeps, and against what cannot fit."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from chainrule.cli import main
from chainrule.device import shapes_only
from chainrule.flops import GPUS, activation_bytes, attended_keys, mean_keys, peak_of, training_flops
from chainrule.layers.attention import TokenLayout
from chainrule.layers.blocks import make_attention
from chainrule.model import Batch
from chainrule.models import KINDS, Kind, build, kind, model_class
from chainrule.models.gpt import GPTSettings
from chainrule.models.published import PUBLISHED
from chainrule.plan import GIB, Plan, enough, make_plan, memory_of
from chainrule.recipe import Recipe, make_recipe
from chainrule.tasks.lm import order_text
from chainrule.text.corpus import Split


def recipe(name: str, **given: Any) -> Recipe:
    dotted = {key.replace("__", "."): value for key, value in given.items()}
    return make_recipe(name, model_class(name), dotted, kind(name).preset)


@cache
def plan(name: str, gpus: int = 1, gpu: str = "h200", source: int | None = None, **given: Any) -> Plan:
    return make_plan(recipe(name, **given), gpus, gpu, source)


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


SMALL: dict[str, Any] = {"model__layers": 2, "model__width": 32, "model__heads": 4, "model__context": 24}
COUNTED: dict[str, dict[str, Any]] = {
    "gpt": SMALL, "encoder": SMALL, "transformer": SMALL,
    "feedforward": {"model__hidden": 16, "model__embedding": 8, "model__order": 4},
}


def counted_by_torch(model: Any, length: int, source: int) -> float:
    """FLOPs of the matrix products of a forward and backward pass, as torch counts them, by token."""
    tokens = torch.zeros(3, length, dtype=torch.long)
    batch = Batch(tokens, tokens, source=torch.zeros(3, source, dtype=torch.long) if model.needs_source else None)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):    # it does not count the fused one
        model.loss(batch)[0].backward()
    return float(counter.get_total_flops()) / (3 * length)


@pytest.mark.parametrize("name", COUNTED)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    """Torch counts masked keys too, so causal attention is compared with all keys seen; norms are not counted."""
    made = recipe(name, model__dropout=0.0, **COUNTED[name])
    model = build(name, made.model, 100)
    length, source = 24, 12
    counted = training_flops(model, length, source if model.needs_source else None)
    if name in ("gpt", "transformer"):
        counted += 3 * 4 * 2 * 32 * (length - mean_keys(length, None))
    small = 6 * sum(weight.numel() for weight in model.parameters() if weight.dim() == 1)     # scales and biases
    assert counted - small == pytest.approx(counted_by_torch(model, length, source), rel=0.02)


def test_the_source_costs_by_its_own_length() -> None:
    """By hand: an encoder of 2 layers for 30 tokens of source, the decoder for 10 of the text, each key seen."""
    width, layers, vocab, text, source = 32, 2, 100, 10, 30
    made = plan("transformer", source=source, text__vocab=vocab, train__length=text, train__total_tokens=1,
                model__layers=layers, model__width=width, model__heads=4, model__hidden=64, model__tied=True)
    encoder = source * (4 * width**2 + 2 * width * 64) + 2 * source * source * width
    decoder = text * (4 * width**2 + 2 * width * 64) + 2 * width * text * (text + 1) / 2
    cross = text * 2 * width**2 + source * 2 * width**2 + 2 * text * source * width
    assert made.flops == pytest.approx(6 * (layers * (encoder + decoder + cross) / text + vocab * width))


def test_recurrent_attention_costs_the_source_for_each_token() -> None:
    short, long = (plan("seq2seq", source=source, text__vocab=100, train__length=10, train__total_tokens=1)
                   for source in (10, 20))
    with shapes_only():
        model = build("seq2seq", recipe("seq2seq").model, 100)
    encoder = sum(weight.numel() for part in (model.encoder, model.attention.keys) for weight in part.parameters())
    assert long.flops - short.flops == pytest.approx(6 * encoder + 3 * 4 * 512 * 10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 11, 12])
@pytest.mark.parametrize("kind", ["full", "local", "compressed", "sliding"])
def test_a_layer_attends_to_the_keys_that_its_kind_sees(kind: str, length: int, causal: bool) -> None:
    sizes = {"local": {"block": 4}, "sliding": {"window": 4}}.get(kind, {})
    settings = GPTSettings(layers=1, width=8, heads=1, context=12, attention=(kind,), **sizes)
    if kind == "sliding" and not causal:
        pytest.skip("an encoder has no sliding layers")
    layout = TokenLayout(torch.arange(length)[None], 1, causal)
    attention = make_attention(settings, kind, causal=causal)
    mask = attention.mask(layout, whole=True).as_tensor(length, torch.device("cpu"))
    every = 1 + -(-length // 3) if kind == "compressed" else length
    seen = length * every if mask is None else int(mask.expand(*mask.shape[:-2], length, -1).sum())
    assert attended_keys(settings, kind, length, causal=causal) == pytest.approx(seen / length)


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
        for name, given in dict[str, Any]({
            "muon": {}, "adamw": {"train__optimizer": "adamw"}, "sgd": {"train__optimizer": "sgd"},
            "momentum": {"train__optimizer": "sgd", "train__momentum": 0.9},
        }).items()
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
        model.loss(Batch(tokens, tokens, source=tokens if model.needs_source else None))
    return sum(size for size, _ in storages.values())


def test_a_token_of_an_encoder_decoder_keeps_its_share_of_the_source() -> None:
    """Each token of a source keeps what a token of an encoder does, and its keys and values for every layer."""
    settings = recipe("transformer", model__layers=4, model__width=128, model__heads=4, model__qk_norm=False).model
    half, whole, double = (activation_bytes(settings, ratio) for ratio in (0.5, 1.0, 2.0))
    encoder = activation_bytes(settings)
    assert double - whole == pytest.approx(2 * (whole - half))
    assert double - whole == pytest.approx(encoder + 4 * 2 * 2 * 128)


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_a_token_keeps_about_what_it_really_keeps(name: str) -> None:
    made = recipe(name, model__layers=2, model__width=128, model__heads=4, model__context=512)
    model = build(name, made.model, 64)
    real = (kept(model, 128) - kept(model, 64)) / 128           # the slope, so that copies of weights drop out
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


def test_what_does_not_fit_has_a_plan_that_names_what_would() -> None:
    made, train = plan("gpt3-175b"), recipe("gpt3-175b").train
    assert not made.fits
    assert made.enough is not None
    assert (made.enough.gpu, made.enough.gpus) == ("h200", 256)
    assert made.enough.memory.total < 0.94 * 140 * GIB
    assert memory_of(made.work, train, 2048, 128, "fsdp").total > 0.94 * 140 * GIB
    larger = enough(made.work, train, 2048, "t4")
    assert larger is not None
    assert larger.gpu == "h200"
    assert plan("gpt3-175b", 256).fits
    assert plan("gpt3-175b", 256).enough is None
    assert plan("gpt3-175b", 1024, model__context=65536).enough is None


def test_what_fits_by_shares_alone_is_not_refused() -> None:
    made = plan("gpt3-13b", 8)
    assert made.rows["ddp"] == 0
    assert made.rows["fsdp"] > 0


# The command line


@pytest.mark.parametrize("name", ["gpt1", "gpt3-13b", "bert-base", "transformer-big", "t5-base", "llama-7b"])
def test_the_plan_of_a_published_size_can_be_asked_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", name, "--gpus", "256", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == pytest.approx(PUBLISHED[name].parameters, rel=0.05)
    assert answer["bytes"]["fsdp"]["fits"]


def test_the_table_of_published_models_is_what_each_plan_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--published", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["published"]}
    assert rows.keys() == PUBLISHED.keys()
    for name in ("gpt2", "gpt3-small", "transformer-base", "bert-base"):
        assert rows[name]["parameters"] == plan(name).work.parameters
        assert rows[name]["flops"] in (None, pytest.approx(plan(name).flops))


def test_the_table_of_published_models_is_shown(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    few = {name: PUBLISHED[name] for name in ("gpt2", "gpt3-small", "gpt3-medium", "transformer-base")}
    monkeypatch.setattr("chainrule.plan.PUBLISHED", few)
    assert main(["plan", "--published"]) == 0
    shown = capsys.readouterr().out
    assert "gpt3-small             2020      125M    125.2M        12       768" in shown
    assert "gpt3-small to gpt3-175b: every second layer" in shown


def test_a_model_that_does_not_fit_is_planned_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt3-175b"]) == 0
    shown = capsys.readouterr().out
    assert "6 · parameters · tokens: 3.14e+23, 3,638" in shown          # the paper: 3.14e23, 3,640
    assert "gpt3-175b does not fit on 1 x h200: it needs 3,009 GiB on each, and has 132." in shown
    assert "256 x h200 with FSDP would be enough, and take 36.4 days." in shown
    epochs = [line.split()[-2:] for line in shown.splitlines() if line.startswith(("Common", "Books2"))]
    assert [abs(float(ours) - float(paper)) < 0.02 for ours, paper in epochs] == [True, True]
    assert main(["plan", "palm-540b"]) == 0
    assert "a smaller model.context needs less" in capsys.readouterr().out


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
        ([], "name a kind, such as gpt2"),
        (["gpt2", "--published"], "leave out gpt2"),
        (["gpt2", "--source", "9"], "gpt2 reads no source; seq2seq and transformer do"),
        (["transformer", "--source", "0"], "--source 0: it must be 1 or more"),
        (["glove"], "from pairs of words"),
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
