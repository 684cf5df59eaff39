"""Mixture of experts: routing against a loop over tokens and experts, losses against transformers', all paths alike."""

import math
from unittest.mock import patch

import pytest
import torch
from contract.moved import moved
from torch import Tensor
from torch.testing import assert_close

from chainrule.device import choose_precision
from chainrule.errors import UserError
from chainrule.flops import multiplied_weights, training_flops
from chainrule.layers import experts
from chainrule.layers.blocks import ACTIVATIONS, make_feed_forward
from chainrule.layers.experts import Balance, Experts, Groups, Routing, report_experts
from chainrule.layers.parameters import group_parameters
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import IGNORE, Batch
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.recipe import Gradient
from chainrule.training.optim import Muon, newton_schulz, packed_rows
from chainrule.training.param_groups import Optimizers
from chainrule.training.step import Step

SMALL = {"layers": 2, "width": 16, "heads": 2, "context": 16, "experts": 4, "active": 2, "hidden": 24}
CHOICES = [
    {},
    {"activation": "swiglu", "renormalise": False},
    {"active": 1, "activation": "gelu"},
    {"active": 4, "shared_expert": True, "biases": True},
    {"experts": 1, "active": 1, "activation": "relu"},
]


def made(**choice) -> Experts:
    torch.manual_seed(1)
    layer = make_feed_forward(TransformerSettings(**{**SMALL, **choice}))
    assert isinstance(layer, Experts)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer.double()


def tokens() -> Tensor:
    """(B, T, D)"""
    return torch.randn(3, 7, 16, dtype=torch.float64, requires_grad=True)


def by_a_loop(layer: Experts, x: Tensor) -> Tensor:
    """Token by token and expert by expert, as the formula says."""
    settings, rows = layer.settings, []
    for token in x.flatten(0, -2):
        p = (layer.router.weight @ token).softmax(0)
        best = sorted(range(settings.experts), key=lambda expert: -float(p[expert].detach()))[: settings.active]
        total = sum(p[expert] for expert in best) if settings.renormalise else 1.0
        y = torch.zeros_like(token) if layer.shared is None else layer.shared(token[None])[0]
        for expert in best:
            hidden = ACTIVATIONS[settings.activation](layer.up.weight[expert] @ token)
            y = y + p[expert] / total * (layer.out.weight[expert] @ hidden)
        rows.append(y)
    return torch.stack(rows).view(x.shape)


def gradients(layer: Experts, y: Tensor, x: Tensor) -> list[Tensor]:
    weights = [x, *layer.parameters()]
    return list(torch.autograd.grad(y.square().sum(), weights, retain_graph=True))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_results_and_gradients_are_those_of_a_loop_over_experts(choice) -> None:
    layer, x = made(**choice), tokens()
    y, wanted = layer(x), by_a_loop(layer, x)
    assert_close(y, wanted)
    for one, other in zip(gradients(layer, y, x), gradients(layer, wanted, x), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_expert_for_every_token_gives_the_same(choice) -> None:
    layer, x = made(**choice), tokens()
    routing, flat = layer.route(x.flatten(0, 1)), x.flatten(0, 1)
    y, wanted = layer._mix(flat, routing), layer._mix_of_all(flat, routing)
    assert_close(y, wanted)
    layer.shared = None
    for one, other in zip(gradients(layer, y, x), gradients(layer, wanted, x), strict=True):
        assert_close(one, other)


def test_the_grouped_product_is_the_loop() -> None:
    rows, weight = torch.randn(64, 32), torch.randn(4, 48, 32)
    ends = torch.tensor([10, 10, 40, 64], dtype=torch.int32)
    assert_close(experts._grouped_mm(rows, weight, ends), experts._one_by_one(rows, weight, ends), atol=1e-4, rtol=1e-4)


def test_rows_are_sorted_by_expert_and_find_their_way_back() -> None:
    chosen = torch.tensor([[2, 0], [1, 2], [2, 3]])
    groups = Groups.sort(chosen, 5)
    assert chosen.flatten()[groups.order].tolist() == [0, 1, 2, 2, 2, 3]
    assert groups.ends.tolist() == [1, 2, 5, 6, 6]
    assert chosen.flatten()[groups.order][groups.inverse].tolist() == chosen.flatten().tolist()
    assert groups.order[groups.inverse].tolist() == list(range(6))


def test_repeated_maxima_are_the_largest() -> None:
    p = torch.rand(50, 6)
    wanted = p.topk(3).indices

    class OnGPU(torch.Tensor):
        is_cuda = True

    assert torch.equal(experts._largest(p.as_subclass(OnGPU), 3).as_subclass(Tensor), wanted)


def test_compiled_experts_give_the_same() -> None:
    """The compiler traces the layer whole. What it traced is run as it is, since that needs no C compiler."""
    layer, x = made(), tokens()
    assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))


# Losses of the router


def one_step(model, batch: Batch, micro_batch: int = 100, **settings) -> Step:
    """A trainer's step whose learning rate is 0, so that the model stays as it is."""
    train = Gradient(**{"optimizer": "sgd", "lr": 1e-30, "clip": 0.0, **settings})
    precision = choose_precision("float32", torch.device("cpu"))
    return Step(model, Optimizers(model, train), precision, train.clip, micro_batch, carries=False)


def a_batch(rows: int = 6, lengths: Tensor | None = None) -> Batch:
    tokens = torch.randint(20, (rows, 11), generator=torch.Generator().manual_seed(3))
    return Batch(tokens[:, :-1], tokens[:, 1:], lengths)


def a_model(**choice) -> GPT:
    torch.manual_seed(1)
    return moved(GPT(GPTSettings(**{**SMALL, **choice}), 20), 0.2).train()


def gradient_after(step: Step, batch: Batch) -> dict[str, Tensor]:
    step.accumulate(batch, None)
    return {name: weight.grad.clone() for name, weight in step.model.named_parameters() if weight.grad is not None}


LENGTHS = torch.tensor([10, 4, 7, 1, 10, 2])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
def test_the_load_balancing_loss_is_that_of_transformers(lengths) -> None:
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    model, batch = a_model(balance_loss=0.5, router_z_loss=0.25), a_batch(lengths=lengths)
    step = one_step(model, batch)
    step.take(batch, None)                     # f of the step before: that of the same batch, by the same weights
    with torch.no_grad():
        routings = routings_of(model, batch)
    mask = None if lengths is None else batch.loss_mask.float()
    losses = [float(mixtral.load_balancing_loss_func((logits,), 4, 2, mask)) for logits in routings]
    found = report_experts(step.report().experts, [])
    assert found.balance == pytest.approx(sum(losses) / 2, rel=1e-5)
    keep = batch.loss_mask.flatten()
    squares = [float(logits.logsumexp(-1).square()[keep].mean()) for logits in routings]
    assert found.z == pytest.approx(sum(squares) / 2, rel=1e-5)
    assert [sum(layer) for layer in found.shares] == pytest.approx([1.0, 1.0])

    got = gradient_after(step, batch)
    model.zero_grad()
    nats, count, _ = model.loss(batch)
    routings = routings_of(model, batch)
    extra = sum(0.5 * mixtral.load_balancing_loss_func((logits,), 4, 2, mask) for logits in routings) / 2
    extra += sum(0.25 * logits.logsumexp(-1).square()[keep].mean() for logits in routings) / 2
    (nats + count * extra).backward()
    for name, weight in model.named_parameters():
        assert_close(got[name], weight.grad, atol=1e-4, rtol=1e-3, msg=lambda line, name=name: f"{name}: {line}")


route = Experts.route


def routings_of(model: GPT, batch: Batch) -> list[Tensor]:
    """The router's logits in each layer."""
    logits = []

    def noted(layer: Experts, x: Tensor) -> Routing:
        routing = route(layer, x)
        logits.append(routing.logits)
        return routing

    with patch.object(Experts, "route", noted):
        model(batch)
    return logits


def test_the_reported_loss_is_the_cross_entropy_alone() -> None:
    batch = a_batch()
    model = a_model(balance_loss=5.0, router_z_loss=5.0)
    plain, _, _ = model.loss(batch)
    step = one_step(model, batch)
    before = gradient_after(step, batch)
    step.take(batch, None)
    totals, _ = step.accumulate(batch, None)
    assert float(totals[0]) == pytest.approx(float(plain.detach()), rel=1e-6)
    after = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert not torch.allclose(before["stack.blocks.0.feed_forward.router.weight"],
                              after["stack.blocks.0.feed_forward.router.weight"])


@pytest.mark.parametrize("task", ["text", "masked"])
def test_micro_batches_and_padding_change_no_gradient(task: str) -> None:
    batch = a_batch(lengths=LENGTHS)
    other = Batch(batch.tokens.where(batch.loss_mask, 7), batch.targets, LENGTHS)
    if task == "masked":                       # few targets: the router's losses are weighed by targets per token
        targets = batch.targets.where(torch.arange(10) % 3 == 0, -1)
        batch, other = (Batch(one.tokens, targets, LENGTHS) for one in (batch, other))
    found = []
    for micro_batch, text in ((6, batch), (2, batch), (6, other)):
        torch.manual_seed(1)
        model = a_model(balance_loss=1.0, router_z_loss=1.0)
        if task == "masked":
            model = moved(TransformerEncoder(EncoderSettings(**SMALL, balance_loss=1.0, router_z_loss=1.0), 20), 0.2)
        step = one_step(model.train(), text, micro_batch)
        step.take(text, None)
        found.append((gradient_after(step, text), step.balance.totals.clone()))
    for gradient, totals in found[1:]:
        assert_close(totals, found[0][1], rtol=1e-6, atol=0.0)
        for name, wanted in found[0][0].items():
            assert_close(gradient[name], wanted, atol=1e-5, rtol=1e-4)


def test_rows_without_targets_count_no_more_than_padding() -> None:
    """The last ranks have such rows where ranks share the rows of a step unevenly."""
    batch, found = a_batch(), []
    none = torch.full_like(batch.targets[:2], IGNORE)
    more = Batch(torch.cat([batch.tokens, batch.tokens[:2]]), torch.cat([batch.targets, none]))
    for text in (batch, more):
        step = one_step(a_model(balance_loss=1.0), text)
        step.take(text, None)
        found.append((step.balance.totals.clone(), gradient_after(step, text)))
    assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_balancing_makes_the_shares_even() -> None:
    batch, found = a_batch(32), []
    for coefficient in (0.0, 1.0):
        model = a_model(balance_loss=coefficient)
        with torch.no_grad():
            for block in model.stack.blocks:
                block.feed_forward.router.weight[0] *= 3
        step = one_step(model, batch, optimizer="adamw", lr=0.01)
        step.optimizers.set_lr(1.0)
        for _ in range(20):
            before = step.balance.totals.tolist()
            step.take(batch, None)
        found.append(report_experts(step.balance.totals.tolist(), before).balance)
    assert found[1] < 2.02 < found[0]


def test_a_step_goes_on_from_the_shares_of_a_checkpoint() -> None:
    batch, steps = a_batch(), [one_step(a_model(balance_loss=1.0), a_batch()) for _ in range(2)]
    steps[0].take(batch, None)
    steps[1].start_from(1, {name: part.clone() for name, part in steps[0].sums().items()})
    assert "experts.share" in steps[0].sums()
    for one, other in zip(*(gradient_after(step, batch).values() for step in steps), strict=True):
        assert torch.equal(one, other)


def test_a_model_without_experts_has_nothing_to_balance() -> None:
    model = a_model(experts=0, active=None)
    balance = Balance(model, torch.device("cpu"))
    balance.begin()
    balance.update(torch.tensor(5.0))
    assert balance.tensors() == {}
    assert report_experts(balance.totals.tolist(), []) is None


# Optimizers, cost, settings


def test_muon_orthogonalises_each_expert_alone() -> None:
    model = a_model(activation="swiglu")
    weight = model.stack.blocks[0].feed_forward.up.weight          # (4, 48, 16): gates and values
    hidden = [weight for _, weight in group_parameters(model)[0]]
    assert any(one is weight for one in hidden)
    muon = Muon([weight], 0.1, 0.0, 0.0, packed_rows(model))
    weight.grad, before = torch.randn_like(weight), weight.detach().clone()
    muon.step()
    for expert in range(4):
        for part in (slice(24), slice(24, 48)):
            wanted = -0.1 * 0.2 * math.sqrt(24) * newton_schulz(weight.grad[expert, part][None])[0].float()
            assert_close((weight - before)[expert, part].detach(), wanted, atol=1e-6, rtol=1e-3)


def test_only_active_experts_cost_flops() -> None:
    settings = {"layers": 3, "width": 32, "heads": 2, "context": 16}
    dense, sparse = GPT(GPTSettings(**settings), 50), GPT(GPTSettings(**settings, experts=8), 50)
    router = 3 * 8 * 32
    assert sparse.settings.hidden == 64
    assert multiplied_weights(sparse) == multiplied_weights(dense) + router
    assert training_flops(sparse, 16) == training_flops(dense, 16) + 6 * router


@pytest.mark.parametrize(("given", "line"), [
    ({"experts": 4, "active": 5}, "model.active=5: there are only model.experts=4 to choose from."),
    ({"experts": 4, "active": 0}, "model.active=0: it must be 1 or more."),
    ({"active": 2}, "model.active=2 is for a mixture of experts. Set model.experts too, such as model.experts=8."),
    ({"shared_expert": True}, "model.shared_expert=true is for a mixture of experts. Set model.experts too, such as"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(given, line) -> None:
    with pytest.raises(UserError) as error:
        GPTSettings(**given)
    assert str(error.value).startswith(line)


