"""SGD, AdamW and Muon against torch's, and which weight goes where."""

import subprocess
import sys

import pytest
import torch
from training.small import net

from chainrule.layers.parameters import group_parameters
from chainrule.models import model_class
from chainrule.recipe import Gradient, make_recipe
from chainrule.tasks import build_for, find_task
from chainrule.training.optim import SGD, AdamW, Muon, newton_schulz, packed_rows
from chainrule.training.param_groups import Optimizers

SHAPES = [(8, 8), (16, 8), (8, 16), (8, 8), (24, 8)]


def twins(shapes=SHAPES):
    torch.manual_seed(0)
    first = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    return first, [torch.nn.Parameter(matrix.detach().clone()) for matrix in first]


def test_muon_in_stacks_is_torchs_muon():
    ours, theirs = twins()
    mine = Muon(ours, 0.05, momentum=0.9, decay=0.2)
    judge = torch.optim.Muon(theirs, 0.05, momentum=0.9, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        mine.step()
        judge.step()
    for one, other in zip(ours, theirs):    # torch's works in bfloat16
        torch.testing.assert_close(one, other, rtol=0, atol=5e-3)
        assert (one - other).abs().mean() < 1e-3


def test_a_matrix_that_holds_several_maps_is_as_many_matrices():
    whole, (first, second) = torch.nn.Parameter(torch.randn(10, 6)), twins([(6, 6), (4, 6)])[0]
    with torch.no_grad():
        whole.copy_(torch.cat([first, second]))
    together, apart = Muon([whole], 0.05, parts={whole: [6, 4]}), Muon([first, second], 0.05)
    for _ in range(3):
        first.grad, second.grad = torch.randn(6, 6), torch.randn(4, 6)
        whole.grad = torch.cat([first.grad, second.grad])
        together.step()
        apart.step()
    torch.testing.assert_close(whole, torch.cat([first, second]))


def test_the_maps_of_a_model_are_known():
    gpt, lstm = (model_class(kind)(model_class(kind).Settings(), 50) for kind in ("gpt", "lstm"))
    parts = {name: packed_rows(gpt).get(parameter) for name, parameter in gpt.named_parameters()}
    width = gpt.settings.width
    assert parts["stack.blocks.0.attention.project.weight"] == [width] * 3
    assert parts["stack.blocks.0.attention.out.weight"] is None
    assert all(len(rows) == 4 and len(set(rows)) == 1 for rows in packed_rows(lstm).values())
    assert len(packed_rows(lstm)) == 2 * model_class("lstm").Settings().layers


def test_muon_takes_a_rate_that_is_a_tensor():
    ours, theirs = twins()
    first, second = Muon(ours, 0.05), Muon(theirs, 0.05)
    second.lr = torch.tensor(0.05)
    for one, other in zip(ours, theirs):
        one.grad = other.grad = torch.randn(one.shape)
    first.step()
    second.step()
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 4, 9), (2, 9, 4)])
def test_newton_schulz_brings_all_singular_values_near_1(shape, fast, monkeypatch):
    monkeypatch.setattr("chainrule.device.has_bfloat16_units", lambda: fast)
    made = newton_schulz(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert made.dtype == (torch.bfloat16 if fast else torch.float32)
    made = made.float()
    assert made.shape == shape
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.3
    assert values.max() < 1.4


@pytest.mark.parametrize("shape", [(3, 12, 12), (3, 12, 23), (3, 12, 24), (3, 12, 60), (3, 60, 12)], ids=str)
@pytest.mark.parametrize("rank", [1, 3, 12])
def test_newton_schulz_is_its_five_rounds_in_float64(shape, rank, monkeypatch):
    """Directions in which a gradient is zero stay so, also where only X Xᵀ is multiplied."""
    monkeypatch.setattr("chainrule.device.has_bfloat16_units", lambda: False)
    torch.manual_seed(1)
    stack = torch.randn(shape[0], shape[1], rank) @ torch.randn(shape[0], rank, shape[2])
    x = stack.double() / stack.double().norm(dim=(1, 2), keepdim=True)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x @ x.mT @ x + 2.0315 * x @ x.mT @ x @ x.mT @ x
    torch.testing.assert_close(newton_schulz(stack).double(), x, rtol=0, atol=2e-5)


def test_a_stack_is_its_matrices_one_by_one():
    stack = torch.randn(3, 5, 8)
    for matrix, made in zip(stack, newton_schulz(stack)):
        torch.testing.assert_close(newton_schulz(matrix[None])[0], made, rtol=1e-4, atol=1e-5)


def names(parts):
    return [[name for name, _ in part] for part in parts]


def test_hidden_matrices_are_separated_from_the_ends_of_a_network():
    hidden, output, rest = names(group_parameters(net()))
    assert hidden == ["layer.weight_ih_l0", "layer.weight_hh_l0"]
    assert output == ["output.weight"]
    assert rest == ["embed.weight", "layer.bias_ih_l0", "layer.bias_hh_l0", "norm.weight", "norm.bias", "output.bias"]


@pytest.mark.parametrize(
    ("task", "kind", "given", "vocab", "wanted"),
    [
        ("lm", "gpt", {"tied": True}, 64, []),                           # hidden layers of 64 x 16
        ("lm", "lstm", {"tied": False}, 64, ["embedding.output.weight"]),
        ("lm", "feedforward", {"hidden": 64}, 64, ["embedding.output.weight"]),
        ("translate", "transformer", {"tied": False}, 64, ["output.weight"]),
        ("translate", "transformer", {"tied": False}, 48, ["output.weight"]),
        ("translate", "seq2seq", {"tied": False}, 16, ["embedding.output.weight"]),
        ("classify", "gpt", {"tied": False}, 64, ["body.output.weight", "output.weight"]),
    ],
)
def test_the_output_is_known_by_its_name_whatever_else_is_as_large(task, kind, given, vocab, wanted):
    sizes = {"hidden": 16} if kind in ("lstm", "feedforward", "seq2seq") else {"width": 16, "heads": 2, "layers": 1}
    settings = {f"model.{name}": value for name, value in {**sizes, **given}.items()}
    recipe = make_recipe(kind, find_task(task).model_class(kind), settings, task=find_task(task))
    model = build_for(recipe, vocab, ("good", "bad") if task == "classify" else ())
    hidden, output, rest = names(group_parameters(model))
    assert output == wanted
    assert not any("embedding" in name or "output" in name for name in hidden)
    assert all(weight.dim() == 1 or "embedding" in name for name, weight in group_parameters(model)[2])
    assert len(hidden) + len(output) + len(rest) == len(list(model.parameters()))


def test_frozen_weights_are_nobodys():
    model = net()
    model.embed.weight.requires_grad_(False)
    assert not any("embed" in name for part in names(group_parameters(model)) for name in part)


def test_the_matrices_of_a_transformer_go_to_muon_and_its_ends_do_not():
    kind = model_class("gpt")
    model = kind(kind.Settings(), 50)
    hidden, output, rest = group_parameters(model)
    assert len(hidden) >= 4
    assert all(parameter.dim() == 2 and 50 not in parameter.shape for _, parameter in hidden)
    assert {id(parameter) for parameter in model.parameters()} == {id(one) for _, one in hidden + output + rest}


def test_only_matrices_have_weight_decay():
    made = Optimizers(net(), Gradient(weight_decay=0.3))
    assert [rule.decay for rule in made.every] == [0.3, 0.0]
    assert all(weight.dim() == 2 for weight in made.every[0].weights)


def test_rates_of_both_optimizers_move_together():
    made = Optimizers(net(), Gradient(optimizer="muon", lr=0.02, adamw_lr=0.001))
    made.set_lr(0.5)
    assert [rule.lr for rule in made.every] == pytest.approx([0.01, 0.0005, 0.0005])


def test_a_rate_that_is_a_tensor_is_changed_in_place():
    made = Optimizers(net(), Gradient(optimizer="muon", lr=0.5))
    rates = [torch.tensor(0.5) for _ in made.every]
    for rule, rate in zip(made.every, rates):
        rule.lr = rate
    made.set_lr(0.5)
    assert all(rule.lr is rate and float(rate) == 0.25 for rule, rate in zip(made.every, rates))


@pytest.mark.parametrize(
    ("rule", "judge"),
    [
        (lambda weights: SGD(weights, 0.1, 0.0, 0.0), lambda weights: torch.optim.SGD(weights, 0.1)),
        (
            lambda weights: SGD(weights, 0.1, 0.9, 0.2),
            lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, weight_decay=0.2),
        ),
        (
            lambda weights: AdamW(weights, 0.01, (0.8, 0.95), 0.3),
            lambda weights: torch.optim.AdamW(weights, 0.01, betas=(0.8, 0.95), weight_decay=0.3),
        ),
    ],
    ids=["sgd", "momentum", "adamw"],
)
def test_optimizers_are_those_of_torch(rule, judge):
    ours, theirs = twins([(5, 3), (4,), (2, 2)])
    mine, judge = rule(ours), judge(theirs)
    for number in range(5):
        mine.set_lr(1 - number / 10)
        for group in judge.param_groups:
            group["lr"] = mine.max_lr * (1 - number / 10)
        for place, (one, other) in enumerate(zip(ours, theirs)):
            one.grad = None if place == 2 and number == 0 else torch.randn(one.shape)    # not every weight every time
            other.grad = None if one.grad is None else one.grad.clone()
        mine.step()
        judge.step()
    torch.testing.assert_close(ours, theirs)


def test_a_training_does_not_load_the_compiler():
    program = """
import sys, torch
from chainrule.recipe import Gradient
from chainrule.training.param_groups import Optimizers
for name in ("adamw", "muon", "sgd"):
    model = torch.nn.Linear(3, 4)
    made = Optimizers(model, Gradient(optimizer=name))
    model(torch.ones(2, 3)).sum().backward()
    made.step()
print("torch._dynamo" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == "False\n"


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_what_an_optimizer_remembers_can_be_taken_to_another(name):
    given = {"momentum": 0.9} if name == "sgd" else {}
    settings = Gradient(optimizer=name, lr=0.01, **given)
    first, second = net(), net()
    one, other = Optimizers(first, settings), Optimizers(second, settings)

    def step(model, made, seed):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        made.step()

    step(first, one, 1)
    second.load_state_dict(first.state_dict())
    other.load({key: tensor.clone() for key, tensor in one.tensors().items()})
    step(first, one, 2)
    step(second, other, 2)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
