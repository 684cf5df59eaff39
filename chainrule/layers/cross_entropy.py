"""Cross-entropy over a large vocabulary in chunks, so that the logits of a batch are never held all at once.

    loss = Σ -log softmax(cap · tanh((h Wᵀ + b) / cap))[target]

The hidden vectors are taken one chunk at a time. The gradient of a chunk follows from its probabilities, so it is
computed at once and the logits are freed; the backward pass only scales it. Sums are in float32, matrix products in the
precision of autocast, or else of the hidden vectors, or in float8 (kernels/float8_output.py). Label smoothing and logit
soft-capping are here too.

Shapes: N hidden vectors, C of them in a chunk, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, autocast
from torch.nn.functional import linear

from chainrule import kernels
from chainrule.device import working_dtype
from chainrule.kernels.float8 import E5M2
from chainrule.kernels.float8_output import GRAD_SCALE, Output, use_for_output
from chainrule.kernels.ops import operator
from chainrule.model import Batch

CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 29}    # numbers in the logits of a chunk: 16 MB of float32, and 2 GB
VOCAB_MULTIPLE = {"cuda": 64}                       # the vocabulary is padded to it: other matrix products are slow
MAX_COMPILED_CHUNKS = 16                            # torch.compile writes out the loop over chunks
FUSED_DEVICES = {"cuda"}                            # devices with a kernel for a chunk (kernels/softmax_loss.py)
MIN_FUSED_VOCAB = 4096                              # which takes a second to compile: only for large vocabularies
PADDING_LOGIT = -1e9                                # of the padding after the vocabulary


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    batch: Batch,
    cap: float | None = None,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of (…, D) hidden vectors under a (V, D) output matrix: a sum in nats, and the target count.

    `weights`: the weight of each target in the sum, in the shape of the targets; None: 1. `label_smoothing`: gradients
    are those of targets with this share spread over the vocabulary (Szegedy et al. 2016); the loss is still the
    targets' own.
    """
    mask = batch.loss_mask
    targets = batch.targets.where(mask, 0).flatten()
    weights = (mask.float() if weights is None else weights * mask).flatten()          # (N,) 0 where none counts
    inputs = hidden.flatten(0, -2), weight, bias
    needs_grad = tuple(torch.is_grad_enabled() and x is not None and x.requires_grad for x in inputs)
    with torch.no_grad():
        loss, grads = _sum_over_chunks(needs_grad, *inputs, targets, weights, cap, label_smoothing)
    return _attach_grads(loss, inputs, grads), mask.sum()


def softcap(logits: Tensor, cap: float | None) -> Tensor:
    """Logit soft-capping: cap · tanh(logits / cap), between -cap and cap."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _attach_grads(loss: Tensor, inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> Tensor:
    """`loss` as it is, whose gradients in the backward pass are these.

    A workaround: x · g - (x · g).detach() is 0 and its gradient for x is g. A torch.autograd.Function would be plainer,
    but compiled as part of a model it returned gradients of zero (torch 2.11 on CUDA).
    """
    for x, grad in zip(inputs, grads):
        if x is not None and grad is not None:
            product = (x * grad).sum(dtype=torch.float32)
            loss = loss + (product - product.detach())
    return loss


def _sum_over_chunks(
    needs_grad: tuple[bool, ...],
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    cap: float | None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss, and those gradients for hidden vectors, weight and bias that are needed."""
    device = hidden.device.type
    dtype = working_dtype(hidden)
    matrix, shift = (_pad_vocab(part, dtype) for part in (weight, bias))
    loss = hidden.new_zeros((), dtype=torch.float32)
    grad_hidden: list[Tensor] = []
    grad_weight = torch.zeros_like(matrix, dtype=torch.float32) if needs_grad[1] else None
    grad_bias = torch.zeros_like(shift, dtype=torch.float32) if shift is not None and needs_grad[2] else None
    size = chunk_rows(len(hidden), len(weight), device)
    fused = device in FUSED_DEVICES and len(weight) >= MIN_FUSED_VOCAB
    float8 = fused and bias is None and all(needs_grad[:2]) and use_for_output(hidden)
    output = Output(matrix) if float8 else _Output(matrix, shift)
    for first in range(0, len(hidden), size):    # no sum is made in place: torch.compile keeps them for later
        here = slice(first, first + size)
        some, weigh = hidden[here].to(dtype), weights[here, None].to(dtype)                # (C, D), (C, 1)
        with autocast(device, enabled=False):
            logits = output.logits(some)                                                   # (C, V)
            if not any(needs_grad):
                loss = loss + weights[here] @ _nats(_log_probs(_masked(logits, len(weight), cap)), targets[here])
                continue
            given = logits, targets[here], len(weight), cap, label_smoothing
            if fused:
                nats, grad = fused_cross_entropy_and_grad(*given, GRAD_SCALE if float8 else None)    # (C,), (C, V)
            else:
                nats, grad = cross_entropy_and_grad(*given)
            loss = loss + weights[here] @ nats
            if needs_grad[0]:
                grad_hidden.append(output.grad_hidden(grad, dtype) * weigh)
            if grad_weight is not None:
                grad_weight = grad_weight + output.grad_matrix(grad, some * weigh)
            if grad_bias is not None:
                grad_bias = grad_bias + (grad.T @ weigh)[:, 0]
    every = torch.cat(grad_hidden).to(hidden.dtype) if grad_hidden else None
    return loss, [every, _unpad_vocab(grad_weight, weight), _unpad_vocab(grad_bias, bias)]


class _Output:
    """The products of a chunk with the output matrix (V, D); kernels/float8_output.py has the same in float8."""

    def __init__(self, matrix: Tensor, bias: Tensor | None):
        self.matrix, self.bias = matrix, bias

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.matrix, self.bias)

    def grad_hidden(self, grad: Tensor, dtype: torch.dtype) -> Tensor:
        return grad @ self.matrix

    def grad_matrix(self, grad: Tensor, hidden: Tensor) -> Tensor:
        return grad.T @ hidden


def cross_entropy_and_grad(
    logits: Tensor, targets: Tensor, vocab: int, cap: float | None, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of each target, and its gradient for the logits before the cap: softmax(logits) - one_hot(target).

    `label_smoothing` is taken from the target and spread over the vocabulary. Columns after `vocab` are padding.
    """
    capped = _masked(logits, vocab, cap)
    log_probs = _log_probs(capped)
    nats = _nats(log_probs, targets)
    grad = log_probs.exp_().to(logits.dtype)
    grad.scatter_(-1, targets[:, None], (torch.expm1(-nats) + label_smoothing).to(logits.dtype)[:, None])
    if label_smoothing:
        grad -= label_smoothing / vocab
    if cap is not None:
        grad *= 1 - (capped.float() / cap).square()           # tanh' = 1 - tanh²
    return nats, grad


def _masked(logits: Tensor, vocab: int, cap: float | None) -> Tensor:
    """(C, V) capped, and the padding impossible; without a cap that is done in place."""
    logits = softcap(logits, cap)
    logits[:, vocab:] = PADDING_LOGIT
    return logits


def _log_probs(logits: Tensor) -> Tensor:
    """(C, V) in float32."""
    return logits.log_softmax(-1, dtype=torch.float32)


def _nats(log_probs: Tensor, targets: Tensor) -> Tensor:
    return -log_probs.gather(-1, targets[:, None])[:, 0]


def _fused(
    logits: Tensor, targets: Tensor, vocab: int, cap: float | None, label_smoothing: float, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    if not kernels.available():
        nats, grad = cross_entropy_and_grad(logits.clone(), targets, vocab, cap, label_smoothing)
        return nats, grad if scale is None else (grad * scale).to(E5M2)
    from chainrule.kernels.softmax_loss import softmax_loss

    return softmax_loss(logits.contiguous(), targets, vocab, cap, label_smoothing, scale)


def _fused_like(
    logits: Tensor, targets: Tensor, vocab: int, cap: float | None, label_smoothing: float, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(logits, dtype=None if scale is None else E5M2)
    return logits.new_empty(len(logits), dtype=torch.float32), grad


fused_cross_entropy_and_grad = operator(    # the same by one kernel; with a scale, the gradient times it in e5m2
    "cross_entropy_and_grad(Tensor logits, Tensor targets, int vocab, float? cap, float label_smoothing, "
    "float? scale=None) "
    "-> (Tensor, Tensor)",
    _fused, _fused_like,
)


def chunk_rows(rows: int, vocab: int, device: str) -> int:
    """Rows of a chunk: so many that their logits are about CHUNK_LOGITS, and that chunks are of equal size."""
    chunks = -(-rows * vocab // CHUNK_LOGITS.get(device, CHUNK_LOGITS["cpu"]))
    if torch.compiler.is_compiling():
        chunks = min(chunks, MAX_COMPILED_CHUNKS)
    size, multiple = -(-rows // chunks), VOCAB_MULTIPLE.get(device, 1)
    return -(-size // multiple) * multiple


def _pad_vocab(parameter: Tensor | None, dtype: torch.dtype) -> Any:
    if parameter is None:
        return None
    more, same = -len(parameter) % VOCAB_MULTIPLE.get(parameter.device.type, 1), parameter.to(dtype)
    return torch.cat([same, same.new_zeros(more, *same.shape[1:])]) if more else same


def _unpad_vocab(grad: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    return None if grad is None or parameter is None else grad[: len(parameter)].to(parameter.dtype)
