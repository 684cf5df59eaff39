"""Softmax cross-entropy of rows of logits in one kernel: the loss of each target and its gradient for the logits.

    nats = -log softmax(z)[target]     grad = softmax(z) - one_hot(target)     z = logits, or cap · tanh(logits / cap)

A row is read twice. Shapes: C rows, V vocabulary, W numbers in a row, of which those after V are padding.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 2048     # numbers of a row that are read together; with more, threads wait longer for each other


@triton.jit
def _softcap(logits, CAP: tl.constexpr):
    """cap · tanh(x / cap), if there is a cap; tanh by the exponential, which the hardware has."""
    if CAP is not None:
        logits = CAP - 2 * CAP / (tl.exp(2 / CAP * logits) + 1)
    return logits


@triton.jit
def _softmax_loss(
    logits, targets, nats, grad, width, vocab, kept, share,
    CAP: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    grad += row * width
    target = tl.load(targets + row)
    target_logit = _softcap(tl.load(logits + target).to(tl.float32), CAP)
    offset = tl.arange(0, BLOCK)
    highest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for first in range(0, width, BLOCK):    # with the padding: loads are wide if the width is a multiple of 16
        column = first + offset
        value = _softcap(tl.load(logits + column, mask=column < width, other=0.0).to(tl.float32), CAP)
        value = tl.where(column < vocab, value, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(value, 0))
        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(value - new_highest), 0)
        highest = new_highest
    log_total = highest + tl.log(total)
    tl.store(nats + row, log_total - target_logit)
    for first in range(0, width, BLOCK):
        column = first + offset
        value = _softcap(tl.load(logits + column, mask=column < width, other=0.0).to(tl.float32), CAP)
        difference = tl.exp(value - log_total) - tl.where(column == target, kept + share, share)
        if CAP is not None:
            difference *= 1 - value * value / (CAP * CAP)
        if SCALE is not None:
            difference *= SCALE
        tl.store(grad + column, tl.where(column < vocab, difference, 0.0), mask=column < width)


def softmax_loss(
    logits: Tensor, targets: Tensor, vocab: int, cap: float | None, label_smoothing: float, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """(C, W), (C,) -> (C,) and (C, W); `label_smoothing` of each target is spread over the vocabulary.

    `scale`: the gradient is multiplied by it, and in float8 (e5m2).
    """
    nats = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits, dtype=None if scale is None else torch.float8_e5m2)
    width = logits.shape[1]
    block = min(triton.next_power_of_2(width), MAX_BLOCK)
    _softmax_loss[(len(logits),)](
        logits, targets, nats, grad, width, vocab, 1 - label_smoothing, label_smoothing / vocab,
        CAP=cap, SCALE=scale, BLOCK=block, num_warps=max(1, block // 512),
    )
    return nats, grad
