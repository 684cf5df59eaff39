"""Chunked cross-entropy against plain cross-entropy: value, gradients, and the memory it needs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import linear
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from chainrule.layers import cross_entropy as layer
from chainrule.layers.cross_entropy import chunked_cross_entropy, softcap
from chainrule.model import IGNORE, Batch, cross_entropy

ROWS, LENGTH, WIDTH, VOCAB = 3, 7, 3, 50


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layer.CHUNK_LOGITS, "cpu", 4 * VOCAB)    # 4 hidden vectors at a time, of 21


def some_batch(padded: bool) -> Batch:
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(VOCAB, (ROWS, LENGTH), generator=generator)
    if not padded:
        return Batch(targets, targets)
    targets[0, 2] = IGNORE
    return Batch(targets.clamp(min=0), targets, torch.tensor([7, 1, 4]), torch.tensor([0, 0, 2]))


def leaves(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = ((ROWS, LENGTH, WIDTH), (VOCAB, WIDTH), (VOCAB,))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def plainly(hidden: Tensor, weight: Tensor, bias: Tensor | None, batch: Batch, cap: float | None) -> Any:
    return cross_entropy(softcap(linear(hidden, weight, bias).float(), cap), batch)


def answers(nats: Callable[..., Any], inputs: list[Tensor], biased: bool, *rest: Any) -> list[Tensor]:
    hidden, weight, bias = inputs
    total, count = nats(hidden, weight, bias if biased else None, *rest)
    wanted = inputs if biased else inputs[:2]
    return [total, count, *torch.autograd.grad(3 * total / count, wanted)]


@pytest.mark.parametrize("aligned", [1, 8])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_chunks_give_the_value_and_gradients_of_plain_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, cap: float, biased: bool, padded: bool, aligned: int
) -> None:
    monkeypatch.setitem(layer.VOCAB_MULTIPLE, "cpu", aligned)
    batch = some_batch(padded)
    chunked, plain = (answers(nats, leaves(), biased, batch, cap) for nats in (chunked_cross_entropy, plainly))
    assert_close(chunked, plain)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_the_fused_operator_gives_them_too(monkeypatch: pytest.MonkeyPatch, cap: float | None) -> None:
    monkeypatch.setattr(layer, "FUSED_DEVICES", {"cpu"})   # no kernel is available there: it computes as torch does
    monkeypatch.setattr(layer, "MIN_FUSED_VOCAB", VOCAB)
    monkeypatch.setattr(layer, "fused_cross_entropy_and_grad", asked := Asked(layer.fused_cross_entropy_and_grad))
    monkeypatch.setitem(layer.VOCAB_MULTIPLE, "cpu", 8)
    batch = some_batch(True)
    assert_close(*(answers(nats, leaves(), True, batch, cap) for nats in (chunked_cross_entropy, plainly)))
    chunks = -(-ROWS * LENGTH // layer.chunk_rows(ROWS * LENGTH, VOCAB, "cpu"))
    assert asked.times == chunks > 1
    monkeypatch.setattr(layer, "MIN_FUSED_VOCAB", VOCAB + 1)   # a smaller vocabulary is not worth it
    chunked_cross_entropy(*leaves(), batch, cap)
    monkeypatch.setattr(layer, "MIN_FUSED_VOCAB", VOCAB)
    monkeypatch.setattr(layer, "FUSED_DEVICES", {"cuda"})
    chunked_cross_entropy(*leaves(), batch, cap)
    assert asked.times == chunks


class Asked:
    def __init__(self, function: Callable[..., Any]):
        self.function, self.times = function, 0

    def __call__(self, *given: Any) -> Any:
        self.times += 1
        return self.function(*given)


@pytest.mark.parametrize("aligned", [1, 8])
def test_label_smoothing_changes_the_gradient_and_not_the_value(monkeypatch: pytest.MonkeyPatch, aligned: int) -> None:
    monkeypatch.setitem(layer.VOCAB_MULTIPLE, "cpu", aligned)
    batch, inputs = some_batch(True), leaves()
    total, _ = chunked_cross_entropy(*inputs, batch, label_smoothing=0.2)
    plain, _ = plainly(*inputs, batch, None)
    assert_close(total, plain)
    targets = batch.targets.where(batch.loss_mask, IGNORE).flatten()
    logits = linear(inputs[0], inputs[1], inputs[2]).flatten(0, 1)
    wanted = functional.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=0.2)
    assert_close(torch.autograd.grad(total, inputs), torch.autograd.grad(wanted, inputs))


@pytest.mark.parametrize("cap", [None, 2.0])
def test_bf16_autocast_changes_no_more_than_bf16_does(cap: float | None) -> None:
    exact = answers(plainly, leaves(), True, some_batch(True), cap)
    with torch.autocast("cpu", torch.bfloat16):
        chunked = answers(chunked_cross_entropy, leaves(), True, some_batch(True), cap)
    assert [answer.dtype for answer in chunked] == [answer.dtype for answer in exact]
    assert_close(chunked, exact, atol=0.02, rtol=0.02)


def test_bf16_parameters_have_bf16_gradients() -> None:
    exact = answers(plainly, leaves(), True, some_batch(True), None)
    chunked = answers(chunked_cross_entropy, leaves(torch.bfloat16), True, some_batch(True), None)
    assert [answer.dtype for answer in chunked[2:]] == [torch.bfloat16] * 3
    assert_close([answer.float() for answer in chunked], [answer.float() for answer in exact], atol=0.05, rtol=0.05)


def test_many_small_chunks_add_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added up in bf16, 4096 equal gradients would stop growing at 256 of them."""
    monkeypatch.setitem(layer.CHUNK_LOGITS, "cpu", 1)
    rows = 4096
    hidden, weight = torch.ones(rows, 1, dtype=torch.bfloat16), torch.zeros(2, 1, dtype=torch.bfloat16).requires_grad_()
    targets = torch.zeros(rows, dtype=torch.long)
    total, _ = chunked_cross_entropy(hidden, weight, None, Batch(targets, targets))
    total.backward()
    assert weight.grad is not None
    assert weight.grad[:, 0].tolist() == [-rows / 2, rows / 2]


def test_the_gradient_may_be_asked_for_twice() -> None:
    inputs = leaves()
    total, _ = chunked_cross_entropy(*inputs, some_batch(True))
    once = torch.autograd.grad(total, inputs, retain_graph=True)
    assert_close(torch.autograd.grad(2 * total, inputs), tuple(2 * gradient for gradient in once))


def test_a_frozen_output_has_no_gradient_and_without_gradients_there_is_no_work() -> None:
    hidden, weight, bias = leaves()
    total, _ = chunked_cross_entropy(hidden, weight.detach(), bias.detach(), some_batch(False))
    total.backward()
    assert hidden.grad is not None
    with torch.no_grad():
        quiet, count = chunked_cross_entropy(hidden, weight, bias, some_batch(False))
    assert not quiet.requires_grad
    assert int(count) == ROWS * LENGTH
    assert_close(quiet, total.detach())


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


@pytest.mark.parametrize("gradient", [False, True])
def test_no_tensor_is_larger_than_a_chunk_of_logits(gradient: bool) -> None:
    batch = some_batch(True)
    with torch.set_grad_enabled(gradient), Largest() as largest:
        total, _ = chunked_cross_entropy(*leaves(), batch)
        if gradient:
            total.backward()
    assert largest.numbers == 4 * VOCAB
    with Largest() as largest:
        plainly(*leaves(), batch, None)
    assert largest.numbers == ROWS * LENGTH * VOCAB
