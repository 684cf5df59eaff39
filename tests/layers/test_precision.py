"""What blocks pass upward: float32, or as asked in the precision of the products that are added to it."""

import pytest
import torch
from contract.moved import moved
from torch.testing import assert_close

from chainrule.device import as_residual, bfloat16_residual, choose_precision
from chainrule.model import Batch
from chainrule.models import build
from chainrule.training.pipeline import recipe_for

CPU = torch.device("cpu")
SMALL = {"model.layers": 3, "model.width": 32, "model.heads": 2, "model.context": 16, "model.dropout": 0.0}
LAYER = {"model.norm": "layer"}
CHOICES = {"gpt": {}, "gpt2": {}, "layer": LAYER, "2017": LAYER | {"model.norm_first": False}}


def made(choice):
    torch.manual_seed(1)
    kind = choice if choice == "gpt2" else "gpt"
    model = build(kind, recipe_for(kind, SMALL | CHOICES[choice]).model, 20)
    return moved(model, 0.05)


def answers(model, name):
    """Nats, their gradients, and the type of what each block passed upward."""
    tokens, types = torch.randint(20, (4, 17), generator=torch.Generator().manual_seed(2)), []
    note = lambda _, __, out: types.append(out[0].made().dtype)  # noqa: E731
    hooks = [block.register_forward_hook(note) for block in model.stack.blocks]
    with choose_precision(name, CPU)():
        total, _, _ = model.loss(Batch(tokens[:, :-1], tokens[:, 1:]))
    for hook in hooks:
        hook.remove()
    return float(total.detach()), torch.autograd.grad(total, list(model.parameters())), types


@pytest.mark.parametrize("choice", CHOICES)
def test_the_stream_is_low_only_where_that_is_asked(choice):
    model = made(choice)
    assert answers(model, "float32")[2] == [torch.float32] * 3
    assert answers(model, "bfloat16")[2] == [torch.float32] * 3
    assert answers(model, "bfloat16-stream")[2] == [torch.bfloat16] * 3
    assert answers(model, "bfloat16")[2] == [torch.float32] * 3         # nothing stays behind


@pytest.mark.parametrize("choice", CHOICES)
def test_a_low_stream_has_nearly_the_same_nats_and_gradients_which_stay_in_float32(choice):
    model = made(choice)
    (exact, wanted, _), (nats, gradients, _) = answers(model, "float32"), answers(model, "bfloat16-stream")
    assert nats == pytest.approx(exact, rel=0.01)
    assert nats != exact
    length = torch.stack([gradient.norm() for gradient in wanted]).norm()
    for gradient, other in zip(gradients, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - other).norm() <= 0.05 * other.norm() + 0.005 * length


def test_the_stream_is_as_it_was_behind_an_error():
    def fail():
        with bfloat16_residual(True):
            with bfloat16_residual(True):
                pass
            assert as_residual(x).dtype == torch.bfloat16                  # as it was around the inner one
            raise RuntimeError("within")

    x = torch.ones(2)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError, match="within"):
            fail()
        assert as_residual(x).dtype == torch.float32


def test_without_products_in_half_precision_nothing_is_lower():
    model, tokens = made("gpt"), torch.randint(20, (2, 9))
    wanted = model(Batch(tokens, tokens))
    with bfloat16_residual(True):
        assert_close(model(Batch(tokens, tokens)), wanted, atol=0, rtol=0)
