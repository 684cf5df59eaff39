"""The nats of a large vocabulary, without ever holding all its logits.

    nats = Σ -log softmax(cap · tanh((h Wᵀ + b) / cap))[target]

Rows of hidden vectors are taken a chunk at a time. The gradients of a chunk follow from its probabilities, so they are
made on the spot and the logits forgotten; going backward only scales them. Sums are kept in float32, matrix products in
the precision of autocast, or else of the hidden vectors.

Shapes: N hidden vectors, C of them in a chunk, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, autocast
from torch.nn.functional import linear

from chainrule import kernels
from chainrule.device import working_dtype
from chainrule.kernels.ops import operator
from chainrule.model import Batch

LOGITS = {"cpu": 1 << 22, "cuda": 1 << 29}    # numbers in the logits of one chunk: 16 MB of float32, and 2 GB
ALIGNED = {"cuda": 64}                        # words are padded to a multiple, without which products are slow there
UNROLLED = 16                                 # chunks, at most, where a compiler writes each of them out
QUICK = {"cuda"}                              # where there is a kernel of our own, and words that repay it,
LARGE = 4096                                  # since it takes a second to be made
NEVER = -1e9                                  # the logit of such a padding


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    batch: Batch,
    cap: float | None = None,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`loss` of the logits of (…, D) hidden vectors under a (V, D) output matrix: a sum in nats and a count.

    `weights`: what each target weighs in the sum, in the shape of the targets; None: 1. `smoothing`: gradients are of
    targets of which this share is spread over all words (Szegedy et al. 2016); the nats are still the targets' own.
    """
    counted = batch.loss_mask
    targets = batch.targets.where(counted, 0).flatten()
    weights = (counted.float() if weights is None else weights * counted).flatten()    # (N,) 0 where none counts
    inputs = hidden.flatten(0, -2), weight, bias
    wanted = tuple(torch.is_grad_enabled() and x is not None and x.requires_grad for x in inputs)
    with torch.no_grad():
        nats, gradients = _in_chunks(wanted, *inputs, targets, weights, cap, label_smoothing)
    return _with_gradients(nats, inputs, gradients), counted.sum()


def softcap(logits: Tensor, cap: float | None) -> Tensor:
    """Logits held softly between -cap and cap."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _with_gradients(value: Tensor, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> Tensor:
    """`value` as it is, which going backward has these gradients.

    They are those of Σ x · g, of which nothing is added. A function of its own for autograd would say it more plainly,
    but compiled whole with a model it has given gradients of zero (torch 2.11, CUDA).
    """
    for x, gradient in zip(inputs, gradients):
        if x is not None and gradient is not None:
            product = (x * gradient).sum(dtype=torch.float32)
            value = value + (product - product.detach())
    return value


def _in_chunks(
    wanted: tuple[bool, ...],
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weights: Tensor,
    cap: float | None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, list[Tensor | None]]:
    """The sum over all chunks, and those of its gradients that are wanted."""
    device = hidden.device.type
    dtype = working_dtype(hidden)
    matrix, shift = (_padded(part, dtype) for part in (weight, bias))
    nats = hidden.new_zeros((), dtype=torch.float32)
    to_hidden: list[Tensor] = []
    to_weight = torch.zeros_like(matrix, dtype=torch.float32) if wanted[1] else None
    to_bias = torch.zeros_like(shift, dtype=torch.float32) if shift is not None and wanted[2] else None
    size = rows_at_once(len(hidden), len(weight), device)
    for first in range(0, len(hidden), size):    # nothing is written over: what is kept for later must stay what it is
        here = slice(first, first + size)
        some, weigh = hidden[here].to(dtype), weights[here, None].to(dtype)                # (C, D), (C, 1)
        with autocast(device, enabled=False):
            logits = linear(some, matrix, shift)                                           # (C, V)
            if not any(wanted):
                nats = nats + weights[here] @ _nats(_log_probs(_held(logits, len(weight), cap)), targets[here])
                continue
            by = fused_cross_entropy_and_grad if device in QUICK and len(weight) >= LARGE else surprises
            surprise, error = by(logits, targets[here], len(weight), cap, label_smoothing)      # (C,), (C, V)
            nats = nats + weights[here] @ surprise
            if wanted[0]:
                to_hidden.append((error @ matrix) * weigh)
            if to_weight is not None:
                to_weight = to_weight + error.T @ (some * weigh)
            if to_bias is not None:
                to_bias = to_bias + (error.T @ weigh)[:, 0]
    every = torch.cat(to_hidden).to(hidden.dtype) if to_hidden else None
    return nats, [every, _like(to_weight, weight), _like(to_bias, bias)]


def surprises(
    logits: Tensor, targets: Tensor, vocab: int, cap: float | None, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Nats of each target, and their gradient for the logits as they were before the cap: probability less truth.

    Of the truth `smoothing` is taken from the target and spread over all words. What lies behind `vocab` is padding.
    """
    held = _held(logits, vocab, cap)
    log_probs = _log_probs(held)
    nats = _nats(log_probs, targets)
    error = log_probs.exp_().to(logits.dtype)
    error.scatter_(-1, targets[:, None], (torch.expm1(-nats) + label_smoothing).to(logits.dtype)[:, None])
    if label_smoothing:
        error -= label_smoothing / vocab
    if cap is not None:
        error *= 1 - (held.float() / cap).square()            # tanh' = 1 - tanh²
    return nats, error


def _held(logits: Tensor, vocab: int, cap: float | None) -> Tensor:
    """(C, V) capped, and never what lies behind the vocabulary; without a cap that is written over."""
    logits = softcap(logits, cap)
    logits[:, vocab:] = NEVER
    return logits


def _log_probs(logits: Tensor) -> Tensor:
    """(C, V) in float32."""
    return logits.log_softmax(-1, dtype=torch.float32)


def _nats(log_probs: Tensor, targets: Tensor) -> Tensor:
    return -log_probs.gather(-1, targets[:, None])[:, 0]


def _by_kernel(
    logits: Tensor, targets: Tensor, vocab: int, cap: float | None, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    if not kernels.available():
        return surprises(logits.clone(), targets, vocab, cap, label_smoothing)
    from chainrule.kernels.softmax_loss import surprise

    return surprise(logits.contiguous(), targets, vocab, cap, label_smoothing)


fused_cross_entropy_and_grad = operator(                             # the same by one kernel
    "surprises(Tensor logits, Tensor targets, int vocab, float? cap, float smoothing) -> (Tensor, Tensor)",
    _by_kernel, lambda logits, *_: (logits.new_empty(len(logits), dtype=torch.float32), torch.empty_like(logits)),
)


def rows_at_once(rows: int, vocab: int, device: str) -> int:
    """So many that their logits fit, more or less, and the chunks are alike."""
    chunks = -(-rows * vocab // LOGITS.get(device, LOGITS["cpu"]))
    if torch.compiler.is_compiling():
        chunks = min(chunks, UNROLLED)
    size, multiple = -(-rows // chunks), ALIGNED.get(device, 1)
    return -(-size // multiple) * multiple


def _padded(parameter: Tensor | None, dtype: torch.dtype) -> Any:
    if parameter is None:
        return None
    more, same = -len(parameter) % ALIGNED.get(parameter.device.type, 1), parameter.to(dtype)
    return torch.cat([same, same.new_zeros(more, *same.shape[1:])]) if more else same


def _like(gradient: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    """Without the padding."""
    return None if gradient is None or parameter is None else gradient[: len(parameter)].to(parameter.dtype)
