"""All tokens of a recurrent layer in one call of torch's fused kernels: cuDNN on a GPU, oneDNN or plain torch on a CPU.

The weights are arguments, not a module's own: they may have been dropped in part, or made from others for the occasion.

Shapes: B rows, T tokens, D inputs, H hidden units, K directions, P tokens of all rows without their padding.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, autocast
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from chainrule.kernels.compiling import not_compiled
from chainrule.layers.cells import CELLS, Weights

# Sizes that suit the tensor cores: a layer of 650 or 1,500 units runs as one of 656 or 1,504, with the same result.
#
# All weights to and from the units that are added are 0, so nobody reads them. They are added for the occasion, while
# learning in half precision on a GPU, where 2 x 1,500 units learn half again as fast; the layer keeps its size.
#
# Shapes: B rows, T tokens, D inputs, H hidden units, K directions, G gates.

MULTIPLE = 8


def is_worth_it(x: Tensor, hidden: int) -> bool:
    half = torch.is_autocast_enabled(x.device.type) or x.dtype != torch.float32
    suits = x.shape[-1] % MULTIPLE == 0 and hidden % MULTIPLE == 0
    return x.is_cuda and half and not suits and torch.is_grad_enabled()


def widen(vectors: Tensor) -> Tensor:
    """Zeros behind the numbers of the last axis."""
    return pad(vectors, (0, -vectors.shape[-1] % MULTIPLE))


def widen_weights(weights: Weights) -> Weights:
    """The same for inputs and hidden units, gate by gate."""
    hidden = weights.W.shape[1]
    more = -hidden % MULTIPLE
    U, W = (pad(part.view(-1, hidden, part.shape[1]), (0, -part.shape[1] % MULTIPLE, 0, more)) for part in weights[:2])
    b_U, b_W = (widen(part.view(-1, hidden)) for part in weights[2:])
    return Weights(U.flatten(0, 1), W.flatten(0, 1), b_U.flatten(), b_W.flatten())


def narrow(vectors: Tensor, hidden: int, directions: int = 1) -> Tensor:
    """(…, K·H wide) -> (…, K·H)"""
    by_direction = vectors.view(*vectors.shape[:-1], directions, -1)
    return by_direction[..., :hidden].flatten(-2)


@not_compiled    # the compiler would unroll the loop over tokens
def run_fused(
    cell: str, x: Tensor, first: list[Tensor], weights: list[Weights], lengths: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """(B, T, D), (K, B, H) of each vector carried -> (B, T, K·H), zero where there is padding, and those carried on."""
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):    # token by token, casts cost more than they save
        with autocast("cpu", enabled=False):
            return run_fused(cell, x.to(first[0].dtype), first, weights, lengths)
    if cell == "sigmoid":
        first, weights = [2 * h - 1 for h in first], [sigmoid_as_tanh(one) for one in weights]
    every = [part for one in weights for part in one]
    # Biases, one layer, no dropout of its own; gradients may be wanted in eval too, so cuDNN is told whether they are.
    how = (in_one_piece(every) if x.is_cuda else every, True, 1, 0.0, torch.is_grad_enabled(), len(weights) == 2)
    kernel = CELLS[cell].kernel
    if lengths is None:
        outputs, *last = kernel(x, _one_or_pair(first), *how, True)
    else:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        first = [part[:, packed.sorted_indices] for part in first]
        data, *last = kernel(packed.data, packed.batch_sizes, _one_or_pair(first), *how)        # (P, K·H)
        outputs = _padded(packed, data, x.shape[1], nothing=-1.0 if cell == "sigmoid" else 0.0)
        last = [part[:, packed.unsorted_indices] for part in last]
    if cell == "sigmoid":
        outputs, last = (1 + outputs) / 2, [(1 + g) / 2 for g in last]
    return outputs, last


def sigmoid_as_tanh(weights: Weights) -> Weights:
    """Weights with which a tanh cell carries g = 2h - 1 where a sigmoid cell with the given ones would carry h.

    For σ(z) = (1 + tanh(z/2)) / 2, and h = (1 + g) / 2 in z = Wh + Ux + b. So the third σ needs no kernel of its own.
    """
    U, W, b_U, b_W = weights
    return Weights(U / 2, W / 4, b_U / 2 + W.sum(1) / 4, b_W / 2)


def in_one_piece(weights: list[Tensor]) -> list[Tensor]:
    """cuDNN wants all matrices and then all biases end to end in memory. Where they do not lie so, copies that do."""
    order = sorted(range(len(weights)), key=lambda place: -weights[place].dim())    # matrices first, else as they come
    arranged = [weights[place] for place in order]
    if _end_to_end(arranged):
        return weights
    pieces = torch.cat([part.flatten() for part in arranged]).split_with_sizes([part.numel() for part in arranged])
    found = {place: piece.view_as(weights[place]) for place, piece in zip(order, pieces)}
    return [found[place] for place in range(len(weights))]


def _end_to_end(parts: list[Tensor]) -> bool:
    """In one storage: neighbours by chance are not enough for cuDNN."""
    alone = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return alone and all(after.data_ptr() == before.data_ptr() + before.nbytes for before, after in pairwise(parts))


def _one_or_pair(carried: Sequence[Tensor]) -> Any:
    return tuple(carried) if len(carried) > 1 else carried[0]


def _padded(packed: PackedSequence, data: Tensor, length: int, nothing: float) -> Tensor:
    whole = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    outputs, _ = pad_packed_sequence(whole, batch_first=True, padding_value=nothing, total_length=length)
    return outputs
