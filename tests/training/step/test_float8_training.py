"""Training in float8 (train.precision=float8): near the gradients of float32, saved in float32; its refusals.

On a CPU the products are emulated: numbers are rounded to float8 and multiplied in float32.
"""

import pytest
import torch
from contract.moved import moved
from training.small import corpus, walk

from chainrule import cli
from chainrule.device import Precision, choose_precision
from chainrule.errors import UserError
from chainrule.kernels import float8_layers
from chainrule.layers import cross_entropy as chunked
from chainrule.layers.lora import LoRA, add_parametrization
from chainrule.model import Batch
from chainrule.models import build
from chainrule.models.transformer import EncoderDecoder, EncoderDecoderSettings
from chainrule.recipe import Gradient
from chainrule.training import trainer as trainers
from chainrule.training.log import Log
from chainrule.training.param_groups import Optimizers
from chainrule.training.pipeline import recipe_for
from chainrule.training.step import Step

CPU = torch.device("cpu")
EMULATED = Precision("cpu", torch.float32, "emulated", float8=True)
EXACT = Precision("cpu", torch.float32, "as asked")
SMALL = {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.context": 16, "model.dropout": 0.0}
VOCAB = 48


def made(kind="gpt2", **extra):
    torch.manual_seed(1)
    settings = SMALL | {name.replace("_", ".", 1): value for name, value in extra.items()}
    return moved(build(kind, recipe_for(kind, settings).model, VOCAB), 0.1).train()


def step_of(model, precision, micro_batch=8):
    return Step(model, Optimizers(model, Gradient(lr=0.01)), precision, 1.0, micro_batch, False)


def some_batch(rows=8):
    tokens = torch.randint(VOCAB, (rows, 17), generator=torch.Generator().manual_seed(2))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def gradients(model, precision, micro_batch=8):
    totals, _ = step_of(model, precision, micro_batch).accumulate(some_batch(), None)
    return float(totals[0]), torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.fixture
def float8_output(monkeypatch):
    """The output and the gradients of weights in float8 too, though they are small."""
    monkeypatch.setattr(float8_layers, "MIN_WEIGHT", 1)
    monkeypatch.setattr(chunked, "FUSED_DEVICES", {"cpu"})
    monkeypatch.setattr(chunked, "MIN_FUSED_VOCAB", 1)
    monkeypatch.setitem(chunked.VOCAB_MULTIPLE, "cpu", 16)


@pytest.mark.parametrize("extra", [
    {}, {"kind": "gpt"}, {"kind": "gpt", "model_activation": "swiglu", "model_biases": True},
    {"kind": "gpt", "model_activation": "geglu"}, {"kind": "gpt", "model_norm_first": False},
], ids=str)
def test_gradients_are_near_those_of_float32(extra, float8_output):
    model = made(**extra)
    nats, exact = gradients(model, EXACT)
    near, rough = gradients(model, EMULATED)
    assert near == pytest.approx(nats, rel=0.005)
    assert near != nats
    assert 0.01 < float((rough - exact).norm() / exact.norm()) < 0.15
    assert (rough @ exact) / rough.norm() / exact.norm() > 0.99
    assert not float8_layers.is_on()


def test_a_decoder_with_a_source_is_near_too():
    torch.manual_seed(1)
    settings = EncoderDecoderSettings(layers=2, width=32, heads=2, context=16, zero_init=False, dropout=0.0)
    model, batch = moved(EncoderDecoder(settings, VOCAB), 0.1).train(), some_batch()
    batch = Batch(batch.tokens, batch.targets, None, None, batch.tokens[:, :9], torch.tensor([9, 3, 7, 9, 1, 9, 9, 2]))
    found = []
    for precision in (EXACT, EMULATED):
        step_of(model, precision).accumulate(batch, None)
        found.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    assert 0.005 < float((found[1] - found[0]).norm() / found[0].norm()) < 0.25


def test_weights_are_cast_once_a_step_and_after_each_step(monkeypatch):
    model = made()
    step, seen = step_of(model, EMULATED, micro_batch=2), []
    refresh = step.float8.refresh
    monkeypatch.setattr(step.float8, "refresh", lambda: (seen.append(1), refresh()))
    layer = model.stack.blocks[0].feed_forward.up
    for count in (1, 2):
        step.take(some_batch(), None)                       # four micro-batches
        assert len(seen) == count
    before = layer.weight8.float().clone()
    step.take(some_batch(), None)
    assert not torch.equal(layer.weight8.float(), before)
    refresh()
    weight = layer.weight.detach()
    assert float((layer.weight8.float() * layer.inverse8 - weight).norm() / weight.norm()) < 0.05
    assert torch.equal(layer.weight8_t.float(), layer.weight8.float().T)


def test_evaluation_and_what_is_saved_are_not_in_float8(monkeypatch):
    model = made()
    names = set(model.state_dict())
    step_of(model, EMULATED).take(some_batch(), None)
    assert set(model.state_dict()) == names
    assert {weight.dtype for weight in model.state_dict().values()} == {torch.float32}
    monkeypatch.setattr(float8_layers, "float8_linear", None)
    monkeypatch.setattr(float8_layers, "float8_feed_forward", None)
    with EMULATED(), torch.no_grad():
        model.eval().loss(some_batch())


def test_training_learns_and_goes_on_from_a_checkpoint(tmp_path, monkeypatch):
    """Stopped halfway and resumed it ends with the same weights, and about where float32 ends."""
    settings = {"tokens": 256, "length": 16, "lr": 0.01, "steps": 24, "optimizer": "muon"}
    monkeypatch.setattr(trainers, "choose_precision", lambda name, device: EMULATED if name == "float8" else EXACT)
    recipe = recipe_for("gpt", SMALL)

    def trained(precision, stops=False):
        torch.manual_seed(1)
        model = build("gpt", recipe.model, 7)
        kept = None
        for budget in ((12, 24) if stops else (24,)):
            trainer = trainers.Trainer(model, corpus(walk(4001)), Gradient(**settings, precision=precision), Log())
            trainer.begin()
            if kept is not None:
                trainers.load_state(trainer, kept)
            while trainer.number < budget:
                trainer.one_step()
            facts, parts = trainers.state_of(trainer)
            copied = {name: {key: tensor.clone() for key, tensor in part.items()} for name, part in parts.items()}
            kept = type("Kept", (), {"facts": facts, "part": staticmethod(copied.__getitem__)})
            if stops and budget == 12:
                model = build("gpt", recipe.model, 7)
        return model, trainer.step.report()

    (whole, report), (resumed, _), (_, exact) = trained("float8"), trained("float8", stops=True), trained("float32")
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    assert report.nats / report.targets == pytest.approx(exact.nats / exact.targets, abs=0.03)


def test_a_gradient_that_is_not_finite_is_found():
    model = made()
    with torch.no_grad():
        model.stack.blocks[1].feed_forward.up.weight[3, 3] = torch.nan
    step = step_of(model, EMULATED)
    step.take(some_batch(), None)
    assert step.report().not_finite is not None


# Refusals


def as_words(settings):
    return [f"{name}={value}" for name, value in settings.items()]


def test_a_cpu_is_refused_in_one_line(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be\n" * 50)
    settings = ["train.precision=float8", "train.steps=1", "text.tokenizer=bytes", *as_words(SMALL)]
    assert cli.main(["train", str(text), "--kind", "gpt", "--device", "cpu", "--out", str(tmp_path / "run"), *settings])
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "train.precision=float8 needs an NVIDIA GPU with compute capability 8.9 or newer" in line
    assert "this is a CPU. Use train.precision=auto." in line


def test_an_older_gpu_is_refused_and_a_newer_one_is_not(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(UserError, match=r"NVIDIA A100 has 8\.0\. Use train\.precision=auto\."):
        choose_precision("float8", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose_precision("float8", torch.device("cuda")).float8


@pytest.mark.parametrize(("model", "line"), [
    (lambda: build("lstm", recipe_for("lstm", {}).model, VOCAB), "multiples of 16; in this model it has none"),
    (lambda: made(model_width=40), r"stack\.blocks\.0\.attention\.project is 120 x 40"),
    (lambda: adapted(made()), r"adapters \(LoRA\)"),
])
def test_models_without_float8_layers_are_refused(model, line):
    with pytest.raises(UserError, match=line):
        step_of(model(), EMULATED)


def adapted(model):
    layer = model.stack.blocks[0].attention.out
    add_parametrization(layer, "weight", LoRA(layer.weight, 2, 1.0))
    return model


def test_experts_stay_in_bfloat16_and_a_line_says_so(monkeypatch):
    lines = []
    monkeypatch.setattr("chainrule.training.step.say", lines.append)
    model = made("gpt", model_experts=4)
    gradients(model, EMULATED)
    assert lines == ["train.precision=float8: the products of experts stay in bfloat16."]
