"""Low-rank adapters: a small file beside a run that stays, and to the last bit the weights that were used."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training.small import assert_same_bits
from training.topics import QUICK, fine_tune, pretrained, weights

from chainrule import run
from chainrule.errors import UserError
from chainrule.layers.lora import (
    LoRA,
    NewTokenRows,
    add_low_rank,
    add_parametrization,
    body_of,
    merge_lora,
    merged_state_dict,
    trainable_tensors,
)
from chainrule.model import Batch
from chainrule.tasks import build_for
from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import make_run, recipe_for

TASKS = [
    ("gpt", "classify", "few.tsv", "others.tsv"),
    ("gpt", "lm", "book.txt", None),
    ("gru", "tag", "tagged.tsv", None),
    ("gru", "lm", "book.txt", None),
    ("encoder", "classify", "few.tsv", "others.tsv"),
    ("transformer", "translate", "pairs.tsv", None),
]


@pytest.fixture
def used(monkeypatch):
    """The weights that a model had when it was saved, as it used them."""
    seen = {}
    save = run.save

    def spy(path, model, *words, **more):
        seen.clear()
        seen.update(merged_state_dict(model))
        save(path, model, *words, **more)

    monkeypatch.setattr(run, "save", spy)
    return seen


# The sum itself


def test_the_sum_is_that_of_the_formula_and_so_are_its_gradients():
    torch.manual_seed(1)
    weight, up, down = torch.randn(6, 5), torch.randn(6, 3), torch.randn(3, 5)
    torch.testing.assert_close(add_low_rank(weight, up, down, 0.5), weight + 0.5 * up @ down)
    wanted = [part.double().requires_grad_() for part in (up, down)]
    assert torch.autograd.gradcheck(lambda up, down: add_low_rank(weight.double(), up, down, 0.5), wanted)


def test_the_sum_is_the_same_to_the_last_bit_however_it_is_cut():
    """A product of matrices is not, which is why none is used: see the last line."""
    torch.manual_seed(1)
    weight, up, down = torch.randn(64, 96), torch.randn(64, 48), torch.randn(48, 96)
    whole = add_low_rank(weight, up, down, 0.3)
    rows = torch.cat([add_low_rank(weight[[row]], up[[row]], down, 0.3) for row in range(64)])
    pieces = zip(weight.split(7, 1), down.split(7, 1))
    columns = torch.cat([add_low_rank(part, up, some, 0.3) for part, some in pieces], 1)
    assert torch.equal(whole, rows)
    assert torch.equal(whole, columns)
    assert not torch.equal(whole, weight + 0.3 * up @ down)


def test_under_autocast_the_sum_stays_in_full_precision():
    layer = nn.Linear(8, 8)
    add_parametrization(layer, "weight", LoRA(layer.weight, 2, 1.0))
    nn.init.normal_(layer.parametrizations.weight[0].up)
    outside = layer.weight
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight, outside)
        layer(torch.randn(2, 8)).sum().backward()
    assert layer.parametrizations.weight[0].up.grad.dtype == torch.float32


def test_an_adapter_changes_no_output_at_first():
    layer = nn.Linear(8, 8)
    before = layer.weight.detach().clone()
    add_parametrization(layer, "weight", LoRA(layer.weight, 2, 1.0))
    assert torch.equal(layer.weight, before)
    assert sorted(trainable_tensors(layer)) == ["bias", "weight/down", "weight/up"]


def test_a_compiled_model_is_the_same_with_adapters():
    settings = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 8}
    model = build_for(recipe_for("gpt", settings, "classify"), 12, ("a", "b")).eval()
    torch.manual_seed(1)
    name = "body.stack.blocks.0.feed_forward.up.weight"
    add_parametrization(model, name, LoRA(model.get_parameter(name), 2, 1.0))
    add_parametrization(model, "body.embedding.tokens.weight", NewTokenRows(model.body.embedding.tokens.weight, 10))
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    batch = Batch(torch.arange(12).view(2, 6), torch.tensor([0, 1]))
    plain, _, _ = model.loss(batch)
    plain.backward()
    gradients = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad()
    # Traced, differentiated ahead of time and run operation by operation: all but the code that takes long to make.
    nats, _, _ = torch.compile(model.loss, backend="aot_eager")(batch)
    nats.backward()
    torch.testing.assert_close(nats, plain)
    assert any(name.endswith(".up") for name in gradients)
    for name, part in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, part)


# Runs


@pytest.mark.parametrize(("kind", "task", "text", "valid"), TASKS)
def test_a_loaded_run_has_the_very_weights_that_were_used(desk, used, kind, task, text, valid):
    made = fine_tune(desk, pretrained(desk, kind), "adapted", task, 4, text, valid, train_lora=2, train_lr=0.01)
    assert_same_bits(used, weights(made.path))
    assert not (made.path / "model.safetensors").exists()
    base, changed = run.load(pretrained(desk, kind)).model, 0
    for name, parameter in body_of(run.load(made.path).model).named_parameters():
        changed += parameter.dim() == 2 and not torch.equal(parameter, base.get_parameter(name))
    assert changed >= 4


def test_the_file_is_small(desk):
    wide = {"model.layers": 2, "model.width": 128, "model.heads": 2, "model.context": 16}
    recipe = recipe_for("gpt", {"text.tokenizer": "words", "train.steps": 1, **QUICK, **wide})
    base = make_run([str(desk / "book.txt")], recipe, desk / "wide").path
    made = fine_tune(desk, base, "small", steps=1, train_lora=4)
    small, whole = (path.stat().st_size for path in (made.path / "adapter.safetensors", base / "model.safetensors"))
    assert small < 0.1 * whole
    names = set(load_file(made.path / "adapter.safetensors"))
    assert {"output.weight", "output.bias", "body.embedding.tokens.weight/rows"} <= names
    assert "body.stack.blocks.0.attention.project.weight/up" in names


def test_alpha_says_how_much_adapters_count(desk):
    assert finetune_recipe(pretrained(desk, "gpt"), {"train.lora": 4}).train.lora_scale == 2
    assert finetune_recipe(pretrained(desk, "gpt"), {"train.lora": 4, "train.lora_alpha": 1}).train.lora_scale == 0.25


def test_frozen_layers_have_no_adapters(desk):
    made = fine_tune(desk, pretrained(desk, "gpt"), "half", train_lora=2, train_freeze="1")
    names = load_file(made.path / "adapter.safetensors")
    assert any(name.startswith("body.stack.blocks.1") for name in names)
    assert not any(name.startswith("body.stack.blocks.0") for name in names)
    with pytest.raises(UserError, match="no matrix to adapt"):
        fine_tune(desk, pretrained(desk, "gpt"), "none", train_lora=2, train_freeze="stack")


def test_a_merged_run_is_an_ordinary_one_and_answers_the_same(desk):
    made = fine_tune(desk, pretrained(desk, "gpt"), "adapted", train_lora=2, train_lr=0.01)
    run.remove(desk / "merged")
    run.merged(made.path, desk / "merged")
    assert_same_bits(weights(made.path), load_file(desk / "merged" / "model.safetensors"))
    assert run.load(desk / "merged").labels == ("sea", "wood")
    assert run.read_log(desk / "merged") == run.read_log(made.path)
    with pytest.raises(UserError, match="has no adapters to merge"):
        run.merged(desk / "merged", desk / "again")
    with pytest.raises(UserError, match="holds a run already"):
        run.merged(made.path, desk / "merged")
    run.merged(made.path, desk / "merged", overwrite=True)


def test_a_run_with_adapters_can_be_adapted_again(desk, used):
    first = fine_tune(desk, pretrained(desk, "gpt"), "first", train_lora=2, train_lr=0.01)
    second = fine_tune(desk, first.path, "second", "lm", 3, "book.txt", None, train_lora=1, train_lr=0.01)
    assert_same_bits(used, weights(second.path))


def test_one_that_replaces_another_leaves_no_old_weights(desk):
    for given, there, gone in (({"train_lora": 2}, "adapter", "model"), ({}, "model", "adapter")):
        made = fine_tune(desk, pretrained(desk, "gpt"), "turns", steps=1, **given)
        assert (made.path / f"{there}.safetensors").exists()
        assert not (made.path / f"{gone}.safetensors").exists()


# The run it stands on


@pytest.fixture
def moved(desk, tmp_path):
    """A run with adapters in one folder, and what it stands on in another."""
    shutil.copytree(pretrained(desk, "gpt"), tmp_path / "there" / "gpt")
    made = fine_tune(desk, tmp_path / "there" / "gpt", "far", train_lora=2, train_lr=0.01)
    shutil.copytree(made.path, tmp_path / "here" / "far")
    return tmp_path


def test_a_base_that_is_gone_is_named(moved):
    (moved / "there" / "gpt").rename(moved / "elsewhere")
    with pytest.raises(UserError) as caught:
        run.load(moved / "here" / "far")
    assert f"needs the run {moved / 'there' / 'gpt'}" in str(caught.value)
    assert "not there. Put it back, or beside" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_base_is_found_beside_the_run_too(moved):
    before = weights(moved / "here" / "far")
    (moved / "there" / "gpt").rename(moved / "here" / "gpt")
    assert_same_bits(before, weights(moved / "here" / "far"))


def test_a_base_that_was_trained_again_is_not_taken_for_the_old_one(desk, moved):
    shutil.rmtree(moved / "there" / "gpt")
    shutil.copytree(pretrained(desk, "encoder"), moved / "there" / "gpt")
    with pytest.raises(UserError, match="has been trained again since"):
        run.load(moved / "here" / "far")


def test_a_damaged_adapter_is_refused(moved):
    file = moved / "here" / "far" / "adapter.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match=r"adapter\.safetensors has been changed since it was written"):
        run.load(moved / "here" / "far")
    file.unlink()
    with pytest.raises(UserError, match=r"adapter\.safetensors is missing"):
        run.load(moved / "here" / "far")


def test_an_adapter_without_its_head_is_refused():
    model = build_for(recipe_for("gru", {"model.hidden": 8, "model.layers": 1}, "classify"), 12, ("a", "b"))
    with pytest.raises(KeyError, match=r"output\.weight"):
        merge_lora(model, {}, 1.0)
