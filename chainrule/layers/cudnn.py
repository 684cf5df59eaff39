"""Fused recurrent kernels: all time steps of a layer in one call, by cuDNN on a GPU, oneDNN or ATen on a CPU.

The weights are arguments rather than a module's own, because weight dropout or adapters may have changed them.

On a GPU in half precision, sizes that are not a multiple of 8 miss the tensor cores. `run_padded` therefore pads a
layer of 650 or 1,500 units to 656 or 1,504 during training, with zero weights to and from the padding, so the result
is the same; 2 x 1,500 units train 1.5 times as fast. The layer's own weights keep their size.

Rows of different lengths are packed, for which their lengths must be on the CPU. In training on a GPU, where waiting
for them would rule out a CUDA graph, the kernels read the padding too, and `run_over_padding` undoes what that does.

Shapes: B rows, T tokens, D inputs, H hidden units, K directions, G gates, P tokens of all rows without padding.
"""

from collections.abc import Callable, Sequence
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
    if lengths is None:
        outputs, *last = _kernel(cell)(x, _one_or_pair(initial), *_how(x, weights), True)
    elif reads_padding(x):
        outputs, last = run_over_padding(cell, x, initial, weights, lengths)
        outputs = outputs.where(_real(lengths, x)[..., None], -1.0 if cell == "sigmoid" else 0.0)
    else:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        initial = [part[:, packed.sorted_indices] for part in initial]
        how = _one_or_pair(initial), *_how(x, weights)
        data, *last = _kernel(cell)(packed.data, packed.batch_sizes, *how)                        # (P, K·H)
        outputs = _unpack(packed, data, x.shape[1], padding=-1.0 if cell == "sigmoid" else 0.0)
        last = [part[:, packed.unsorted_indices] for part in last]
    if cell == "sigmoid":
        outputs, last = (1 + outputs) / 2, [(1 + g) / 2 for g in last]
    return outputs, last


def _kernel(cell: str) -> Callable[..., Any]:
    kernel = CELLS[cell].kernel
    assert kernel is not None, "a cell without a kernel runs unrolled"
    return kernel


def _how(x: Tensor, weights: list[Weights]) -> tuple[Any, ...]:
    """Biases, one layer, no dropout of its own; gradients may be needed in eval too, so cuDNN gets a flag."""
    every = [part for one in weights for part in one]
    return flatten_weights(every) if x.is_cuda else every, True, 1, 0.0, torch.is_grad_enabled(), len(weights) == 2


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


# Rows of different lengths without the host: padding is read, and what it does is undone

PADDED_DEVICES = {"cuda"}    # devices on which training reads padding instead of waiting for the lengths
MOST_JOINED = 1024           # units of both directions together that are read as one layer of twice the width
CLOSED = 1000.0              # what a gate is shifted by at padding: its sigmoid is then 0 or 1, whatever it reads


def reads_padding(x: Tensor) -> bool:
    return x.device.type in PADDED_DEVICES and torch.is_grad_enabled()


def run_over_padding(
    cell: str, x: Tensor, initial: list[Tensor], weights: list[Weights], lengths: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """As `run_fused`. For the second direction each row is turned round, so padding is always read last.

    The outputs at padding are not defined. The hidden state at the end of a row is its last real output. An LSTM's cell
    would go on changing, so at padding its input gate is shut and its forget gate open, by inputs of their own.
    """
    directions, hidden = len(weights), weights[0].W.shape[1]
    turned = _turned(lengths, x)                                                              # (B, T, 1)
    inputs = [x, *(_take(x, turned) for _ in weights[1:])]
    if cell == "lstm":
        closed = (~_real(lengths, x))[..., None].to(x.dtype).expand(-1, -1, MULTIPLE)
        inputs, weights = [torch.cat([one, closed], -1) for one in inputs], [_with_gates(one) for one in weights]
    if directions > 1 and directions * hidden <= MOST_JOINED:
        start = [part.transpose(0, 1).flatten(1)[None] for part in initial]                   # (1, B, K·H)
        outputs, *last = _kernel(cell)(
            torch.cat(inputs, -1), _one_or_pair(start), *_how(x, [joined_weights(weights)]), True
        )
    else:
        runs = [_kernel(cell)(one, _one_or_pair([part[at : at + 1].contiguous() for part in initial]),
                              *_how(x, [weights[at]]), True) for at, one in enumerate(inputs)]
        outputs, *last = (torch.cat(parts, -1) for parts in zip(*runs, strict=True))
    ends = outputs.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, outputs.shape[-1]))[:, 0]         # (B, K·H)
    states = [part.view(len(x), directions, hidden).transpose(0, 1) for part in (ends, *(each[0] for each in last[1:]))]
    forward, *backward = outputs.split(hidden, -1)
    return torch.cat([forward, *(_take(part, turned) for part in backward)], -1), states


def joined_weights(weights: list[Weights]) -> Weights:
    """Several directions as one layer that reads the inputs of all of them: the weights are blocks on the diagonal.

    A step of a small layer takes as long as one of half its width, so this takes half the time.
    """
    hidden = weights[0].W.shape[1]
    U, W = (_diagonal([one[part].view(-1, hidden, one[part].shape[1]) for one in weights]) for part in (0, 1))
    b_U, b_W = (torch.cat([one[part].view(-1, hidden) for one in weights], 1).flatten() for part in (2, 3))
    return Weights(U, W, b_U, b_W)


def _diagonal(blocks: list[Tensor]) -> Tensor:
    """(G, H, D) each -> (G·K·H, K·D)"""
    size, last = blocks[0].shape[2], len(blocks) - 1
    placed = [pad(block, (size * at, size * (last - at))) for at, block in enumerate(blocks)]
    return torch.cat(placed, 1).flatten(0, 1)


def _with_gates(weights: Weights) -> Weights:
    """An LSTM's, with inputs that are 1 at padding: they shut the input gate and open the forget gate."""
    hidden, share = weights.W.shape[1], CLOSED / MULTIPLE
    column = weights.U.new_zeros(4, hidden)
    column[0], column[1] = -share, share
    return weights._replace(U=torch.cat([weights.U, column.view(-1, 1).expand(-1, MULTIPLE)], 1))


def _real(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T): True at real tokens."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def _turned(lengths: Tensor, x: Tensor) -> Tensor:
    """(B, T, 1): which token stands where in rows that are read from their end; padding stays where it is."""
    place = torch.arange(x.shape[1], device=x.device)
    return (lengths[:, None] - 1 - place).where(_real(lengths, x), place)[..., None]


def _take(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places.expand(-1, -1, x.shape[-1]))


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
