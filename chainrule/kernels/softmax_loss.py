"""Of rows of logits: the nats of each row's target, and how they change with each logit. A row is looked at twice.

    nats = -log softmax(z)[target]        error = softmax(z) - truth        z = logits, or cap · tanh(logits / cap)

Shapes: C rows, V vocabulary, W numbers in a row of which those behind V are padding.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 2048          # numbers of a row that are looked at together; more wait longer for each other


@triton.jit
def _held(logits, CAP: tl.constexpr):
    """cap · tanh(x / cap), where there is a cap; tanh by the exponential, which is in hardware."""
    if CAP is not None:
        logits = CAP - 2 * CAP / (tl.exp(2 / CAP * logits) + 1)
    return logits


@triton.jit
def _surprise(logits, targets, nats, error, width, vocab, kept, share, CAP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    error += row * width
    target = tl.load(targets + row)
    hit = _held(tl.load(logits + target).to(tl.float32), CAP)
    lane = tl.arange(0, BLOCK)
    most = tl.full((), float("-inf"), tl.float32)
    mass = tl.zeros((), tl.float32)
    for first in range(0, width, BLOCK):    # padding is loaded too: to a width that is a multiple of 16 loads are wide
        column = first + lane
        value = _held(tl.load(logits + column, mask=column < width, other=0.0).to(tl.float32), CAP)
        value = tl.where(column < vocab, value, float("-inf"))
        higher = tl.maximum(most, tl.max(value, 0))
        mass = mass * tl.exp(most - higher) + tl.sum(tl.exp(value - higher), 0)
        most = higher
    whole = most + tl.log(mass)
    tl.store(nats + row, whole - hit)
    for first in range(0, width, BLOCK):
        column = first + lane
        value = _held(tl.load(logits + column, mask=column < width, other=0.0).to(tl.float32), CAP)
        wrong = tl.exp(value - whole) - tl.where(column == target, kept + share, share)
        if CAP is not None:
            wrong *= 1 - value * value / (CAP * CAP)
        tl.store(error + column, tl.where(column < vocab, wrong, 0.0), mask=column < width)


def surprise(
    logits: Tensor, targets: Tensor, vocab: int, cap: float | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """(C, W), (C,) -> (C,) and (C, W); of the truth `smoothing` is spread over all words."""
    nats, error = torch.empty(len(logits), dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    width = logits.shape[1]
    block = min(triton.next_power_of_2(width), MOST)
    _surprise[(len(logits),)](
        logits, targets, nats, error, width, vocab, 1 - smoothing, smoothing / vocab,
        CAP=cap, BLOCK=block, num_warps=max(1, block // 512),
    )
    return nats, error
