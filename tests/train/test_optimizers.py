"""Muon against torch's, momentum against its formula, and which weight goes where."""

import pytest
import torch
from train.small import net

from chainrule.models import model_class
from chainrule.recipe import Gradient
from chainrule.train import optimizers
from chainrule.train.optimizers import Muon, Optimizers, maps_of, newton_schulz, sort_parameters

SHAPES = [(8, 8), (16, 8), (8, 16), (8, 8), (24, 8)]


def twins(shapes=SHAPES):
    torch.manual_seed(0)
    first = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    return first, [torch.nn.Parameter(matrix.detach().clone()) for matrix in first]


def test_muon_in_stacks_is_torchs_muon():
    ours, theirs = twins()
    mine = Muon(ours, 0.05, momentum=0.9, weight_decay=0.2)
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
    parts = {name: maps_of(gpt).get(parameter) for name, parameter in gpt.named_parameters()}
    width = gpt.settings.width
    assert parts["stack.blocks.0.attention.project.weight"] == [width] * 3
    assert parts["stack.blocks.0.attention.out.weight"] is None
    assert all(len(rows) == 4 and len(set(rows)) == 1 for rows in maps_of(lstm).values())
    assert len(maps_of(lstm)) == 2 * model_class("lstm").Settings().layers


def test_muon_takes_a_rate_that_is_a_tensor():
    ours, theirs = twins()
    first, second = Muon(ours, 0.05), Muon(theirs, torch.tensor(0.05))
    for one, other in zip(ours, theirs):
        one.grad = other.grad = torch.randn(one.shape)
    first.step()
    second.step()
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 4, 9), (2, 9, 4)])
def test_newton_schulz_brings_all_singular_values_near_1(shape, amx, monkeypatch):
    monkeypatch.setattr("chainrule.device.has_amx", lambda: amx)
    made = newton_schulz(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert made.dtype == (torch.bfloat16 if amx else torch.float32)
    made = made.float()
    assert made.shape == shape
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_a_stack_is_its_matrices_one_by_one():
    stack = torch.randn(3, 5, 8)
    for matrix, made in zip(stack, newton_schulz(stack)):
        torch.testing.assert_close(newton_schulz(matrix[None])[0], made, rtol=1e-4, atol=1e-5)


def names(parts):
    return [[name for name, _ in part] for part in parts]


def test_hidden_matrices_are_told_from_the_ends_of_a_network():
    hidden, output, rest = names(sort_parameters(net(), 7))
    assert hidden == ["layer.weight_ih_l0", "layer.weight_hh_l0"]
    assert output == ["out.weight"]
    assert rest == ["embed.weight", "layer.bias_ih_l0", "layer.bias_hh_l0", "norm.weight", "norm.bias", "out.bias"]


def test_a_hidden_layer_as_wide_as_the_vocabulary_is_hidden():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 9), torch.nn.Linear(9, 9), torch.nn.Linear(9, 9))
    assert names(sort_parameters(model, 9)) == [["1.weight"], ["2.weight"], ["0.weight", "1.bias", "2.bias"]]


def test_frozen_weights_are_nobodys():
    model = net()
    model.embed.weight.requires_grad_(False)
    assert not any("embed" in name for part in names(sort_parameters(model, 7)) for name in part)


def test_the_matrices_of_a_transformer_go_to_muon_and_its_ends_do_not():
    kind = model_class("gpt")
    model = kind(kind.Settings(), 50)
    hidden, output, rest = sort_parameters(model, 50)
    assert len(hidden) >= 4
    assert all(parameter.dim() == 2 and 50 not in parameter.shape for _, parameter in hidden)
    assert {id(parameter) for parameter in model.parameters()} == {id(one) for _, one in hidden + output + rest}


def test_nothing_but_matrices_decays():
    made = Optimizers(net(), 7, Gradient(weight_decay=0.3))
    (adamw,) = made.all
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.3, 0.0]
    assert all(parameter.dim() == 2 for parameter in adamw.param_groups[0]["params"])


def test_rates_of_both_optimizers_move_together():
    made = Optimizers(net(), 7, Gradient(optimizer="muon", lr=0.02, rest_lr=0.001))
    made.set_rate(0.5)
    assert [group["lr"] for group in made.groups()] == pytest.approx([0.01, 0.0005, 0.0005])


def test_a_rate_that_is_a_tensor_is_changed_in_place(monkeypatch):
    monkeypatch.setattr(optimizers, "_rate", lambda lr, parameters: torch.tensor(lr))
    made = Optimizers(net(), 7, Gradient(optimizer="muon", lr=0.5))
    rates = [group["lr"] for group in made.groups()]
    made.set_rate(0.5)
    assert all(one is other["lr"] and float(one) == 0.25 for one, other in zip(rates, made.groups()))


def test_optimizers_are_capturable_only_while_they_are_captured():
    made = Optimizers(net(), 7, Gradient())
    with made.capturable():
        assert all(group["capturable"] for group in made.groups())
    assert not any(group["capturable"] for group in made.groups())


def test_sgd_with_momentum_is_velocity_then_parameters():
    model = net()
    made = Optimizers(model, 7, Gradient(optimizer="sgd", lr=0.1, momentum=0.9))
    weight, velocity = model.out.weight.detach().clone(), 0.0
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        velocity = 0.9 * velocity + model.out.weight.grad
        weight = weight - 0.1 * velocity
        made.step()
    torch.testing.assert_close(model.out.weight, weight)


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_what_an_optimizer_remembers_can_be_taken_to_another(name):
    given = {"momentum": 0.9} if name == "sgd" else {}
    settings = Gradient(optimizer=name, lr=0.01, **given)
    first, second = net(), net()
    one, other = Optimizers(first, 7, settings), Optimizers(second, 7, settings)

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
