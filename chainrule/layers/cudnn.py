"""Fused recurrent kernels: all time steps of a layer in one call, by cuDNN on a GPU, oneDNN or ATen on a CPU.

The weights are arguments rather than a module's own, because weight dropout or adapters may have changed them.

On a GPU in half precision, sizes that are not a multiple of 8 miss the tensor cores. `run_padded` therefore pads a
layer of 650 or 1,500 units to 656 or 1,504 during training, with zero weights to and from the padding, so the result
is the same; 2 x 1,500 units train 1.5 times as fast. The layer's own weights keep their size.

Shapes: B rows, T tokens, D inputs, H hidden units, K directions, G gates, P tokens of all rows without padding.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, autocast
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from chainrule.kernels.ops import not_compiled
from chainrule.layers.cells import CELLS, Weights

MULTIPLE = 8    # of the sizes that tensor cores need


@not_compiled    # the compiler would unroll the loop over time steps
def run_fused(
    cell: str, x: Tensor, initial: list[Tensor], weights: list[Weights], lengths: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """(B, T, D), (K, B, H) of each vector of the state -> (B, T, K·H), zero at padding, and the state at the end."""
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):    # casting each step costs more than it saves
        with autocast("cpu", enabled=False):
            return run_fused(cell, x.to(initial[0].dtype), initial, weights, lengths)
    if cell == "sigmoid":
        initial, weights = [2 * h - 1 for h in initial], [sigmoid_as_tanh(one) for one in weights]
    every = [part for one in weights for part in one]
    # Biases, one layer, no dropout of its own; gradients may be needed in eval too, so cuDNN gets a flag.
    how = (flatten_weights(every) if x.is_cuda else every, True, 1, 0.0, torch.is_grad_enabled(), len(weights) == 2)
    kernel = CELLS[cell].kernel
    assert kernel is not None, "a cell without a kernel runs unrolled"
    if lengths is None:
        outputs, *last = kernel(x, _one_or_pair(initial), *how, True)
    else:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        initial = [part[:, packed.sorted_indices] for part in initial]
        data, *last = kernel(packed.data, packed.batch_sizes, _one_or_pair(initial), *how)        # (P, K·H)
        outputs = _unpack(packed, data, x.shape[1], padding=-1.0 if cell == "sigmoid" else 0.0)
        last = [part[:, packed.unsorted_indices] for part in last]
    if cell == "sigmoid":
        outputs, last = (1 + outputs) / 2, [(1 + g) / 2 for g in last]
    return outputs, last


def sigmoid_as_tanh(weights: Weights) -> Weights:
    """Weights with which a tanh cell computes g = 2h - 1, where a sigmoid cell with the given ones computes h.

    Because σ(z) = (1 + tanh(z/2)) / 2, and h = (1 + g) / 2 in z = Wh + Ux + b. So sigmoid needs no kernel of its own.
    """
    U, W, b_U, b_W = weights
    return Weights(U / 2, W / 4, b_U / 2 + W.sum(1) / 4, b_W / 2)


def flatten_weights(weights: list[Tensor]) -> list[Tensor]:
    """cuDNN needs all matrices and then all biases in one chunk of memory. Where they are not, copies that are."""
    order = sorted(range(len(weights)), key=lambda place: -weights[place].dim())    # a stable sort: matrices first
    arranged = [weights[place] for place in order]
    if _are_one_chunk(arranged):
        return weights
    pieces = torch.cat([part.flatten() for part in arranged]).split_with_sizes([part.numel() for part in arranged])
    found = {place: piece.view_as(weights[place]) for place, piece in zip(order, pieces)}
    return [found[place] for place in range(len(weights))]


def _are_one_chunk(parts: list[Tensor]) -> bool:
    """In one storage, one after the other: adjacent addresses in two storages are not enough for cuDNN."""
    alone = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return alone and all(after.data_ptr() == before.data_ptr() + before.nbytes for before, after in pairwise(parts))


def _one_or_pair(state: Sequence[Tensor]) -> Any:
    return tuple(state) if len(state) > 1 else state[0]


def _unpack(packed: PackedSequence, data: Tensor, length: int, padding: float) -> Tensor:
    whole = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    outputs, _ = pad_packed_sequence(whole, batch_first=True, padding_value=padding, total_length=length)
    return outputs


# Padding to sizes that the tensor cores need

def should_pad(x: Tensor, hidden: int) -> bool:
    half = torch.is_autocast_enabled(x.device.type) or x.dtype != torch.float32
    aligned = x.shape[-1] % MULTIPLE == 0 and hidden % MULTIPLE == 0
    return x.is_cuda and half and not aligned and torch.is_grad_enabled()


def run_padded(
    cell: str, x: Tensor, initial: list[Tensor], weights: list[Weights], lengths: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """As `run_fused`, with inputs and hidden units padded to multiples of 8."""
    hidden, padded = weights[0].W.shape[1], [pad_weights(one) for one in weights]
    outputs, last = run_fused(cell, pad_units(x), [pad_units(part) for part in initial], padded, lengths)
    return unpad_units(outputs, hidden, len(weights)), [unpad_units(part, hidden) for part in last]


def pad_units(vectors: Tensor) -> Tensor:
    """Appends zeros to the last axis."""
    return pad(vectors, (0, -vectors.shape[-1] % MULTIPLE))


def pad_weights(weights: Weights) -> Weights:
    """The same for inputs and hidden units, gate by gate."""
    hidden = weights.W.shape[1]
    more = -hidden % MULTIPLE
    U, W = (pad(part.view(-1, hidden, part.shape[1]), (0, -part.shape[1] % MULTIPLE, 0, more)) for part in weights[:2])
    b_U, b_W = (pad_units(part.view(-1, hidden)) for part in weights[2:])
    return Weights(U.flatten(0, 1), W.flatten(0, 1), b_U.flatten(), b_W.flatten())


def unpad_units(vectors: Tensor, hidden: int, directions: int = 1) -> Tensor:
    """(…, K·H padded) -> (…, K·H)"""
    by_direction = vectors.view(*vectors.shape[:-1], directions, -1)
    return by_direction[..., :hidden].flatten(-2)
