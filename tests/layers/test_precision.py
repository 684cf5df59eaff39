"""The precision of the residual stream: float32, or that of the matrix products if it is asked for."""

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
    """The loss, its gradients, and the dtype of the residual stream after each block."""
    tokens, types = torch.randint(20, (4, 17), generator=torch.Generator().manual_seed(2)), []
    note = lambda _, __, out: types.append(out[0].dtype)  # noqa: E731
    hooks = [block.register_forward_hook(note) for block in model.stack.blocks]
    with choose_precision(name, CPU)():
        total, _, _ = model.loss(Batch(tokens[:, :-1], tokens[:, 1:]))
    for hook in hooks:
        hook.remove()
    return float(total.detach()), torch.autograd.grad(total, list(model.parameters())), types


@pytest.mark.parametrize("choice", CHOICES)
def test_the_residual_stream_is_bfloat16_only_if_that_is_asked_for(choice):
    model = made(choice)
    assert answers(model, "float32")[2] == [torch.float32] * 3
    assert answers(model, "bfloat16")[2] == [torch.float32] * 3
    assert answers(model, "bfloat16-stream")[2] == [torch.bfloat16] * 3
    assert answers(model, "bfloat16")[2] == [torch.float32] * 3         # and is so no longer


@pytest.mark.parametrize("choice", CHOICES)
def test_a_bfloat16_residual_stream_has_nearly_the_same_loss_and_gradients(choice):
    model = made(choice)
    (exact, wanted, _), (nats, gradients, _) = answers(model, "float32"), answers(model, "bfloat16-stream")
    assert nats == pytest.approx(exact, rel=0.01)
    assert nats != exact
    length = torch.stack([gradient.norm() for gradient in wanted]).norm()
    for gradient, other in zip(gradients, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - other).norm() <= 0.05 * other.norm() + 0.005 * length


def test_the_switch_is_reset_after_an_error():
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


def test_without_autocast_the_residual_stream_keeps_its_dtype():
    model, tokens = made("gpt"), torch.randint(20, (2, 9))
    wanted = model(Batch(tokens, tokens))
    with bfloat16_residual(True):
        assert_close(model(Batch(tokens, tokens)), wanted, atol=0, rtol=0)
