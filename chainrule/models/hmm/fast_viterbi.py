"""Fast Viterbi search for many states on a CPU: float32, with a proof that rounding did not change the path.

δ is computed by torch's fused max-times product, scaled so that its maximum is 1 at every step. On the way back each
choice must exceed the second best by more than all rounding so far; a text with a choice in doubt is left to float64,
and ties to viterbi.py. The paths are those of viterbi.py, found about three times as fast with 64 states.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states.
"""

import math
import warnings

import torch
from torch import Tensor

from chainrule.models.hmm.forward_backward import TINY, PackedTexts, emission_rows, pack_texts, select_columns

MIN_STATES = 16              # from which it is faster than viterbi.py
STEP = 1 << 16               # numbers of one time step of a block of texts, at which the search is fastest
FEW = 1 << 18                # numbers compared in a time step, below which viterbi.py is as fast as float64 here
SPREAD = 35.0                # nats between the largest and the smallest a_{s',s} that float32 can search
ROUNDINGS = 5                # of a δ in each time step, at most eps / 2 each; a ratio of two δ has the errors of both


def can_search(transition: Tensor) -> bool:
    """Whether float32 can represent all that matters.

    From the best state every state can be reached at a cost of at most SPREAD nats more than on any other way, so a
    state that is further from the best than that is on no best path, and what float32 loses of it does no harm.
    """
    if transition.device.type != "cpu" or len(transition) < MIN_STATES:
        return False
    smallest, largest = (float(bound) for bound in transition.aminmax())
    return smallest > 0 and math.log(largest / smallest) < SPREAD


def certain_paths(
    tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> tuple[Tensor, Tensor]:
    """The best states (B, T), and (B, T) true for the tokens of texts whose path is still in doubt."""
    paths, doubtful = torch.zeros_like(tokens), real
    for dtype in (torch.float32, torch.float64):
        searched, doubtful = doubtful, torch.zeros_like(real)
        for packed in pack_texts(tokens, searched, len(initial), STEP):
            if dtype == torch.float64 and packed.widths[0] * transition.numel() < FEW:
                doubtful.view(-1)[packed.positions] = True
                continue
            states, doubts = search(packed, initial, transition, emission, dtype)
            paths.view(-1)[packed.positions] = states
            if doubts.any():
                doubtful.view(-1)[packed.positions[doubts[packed.texts]]] = True
    return paths, doubtful


def search(
    packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(M,) states by products in `dtype`, and (N,) true for texts with a choice that rounding could have changed."""
    deltas, moves = _scaled_deltas(packed, initial, transition, emission, dtype), transition.to(dtype)
    states, eps = len(moves), torch.finfo(dtype).eps
    moves, numbers = torch.cat([moves, moves], 1), torch.arange(states, 2 * states, dtype=dtype)
    totals, chosen = numbers.new_empty(len(packed.tokens)), packed.tokens[:0]
    buffers = _Buffers(deltas[0])
    for time, total in reversed(list(enumerate(torch.split(totals, packed.widths)))):
        delta = deltas.pop()
        if len(chosen):
            delta[:, : len(chosen)].mul_(select_columns(moves, chosen, buffers[len(chosen)]))
        bound = delta.amax(0).mul_(1 - ROUNDINGS * eps * (time + 2))
        near = torch.ge(delta, bound, out=buffers[len(total)])
        torch.mv(near.T, numbers, out=total)           # S + the best, if no other is near; else 2 S or more
        chosen = total.clamp(max=2 * states - 1).long()
    doubtful = torch.zeros(packed.widths[0], dtype=torch.bool)
    return totals.long().sub_(states), doubtful.index_fill_(0, packed.texts[totals >= 2 * states], True)


def _scaled_deltas(
    packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """δ (S, n) of each time step, every text scaled to a maximum of 1; zeros from an impossible token on."""
    table, symbols = emission_rows(packed.tokens, emission)
    emitted = (table / table.amax(1, keepdim=True).clamp_min(TINY)).T.to(dtype).contiguous()
    into = _as_sparse(transition.T.to(dtype))
    deltas = packed.columns(initial.to(dtype))
    arriving = initial.to(dtype)[:, None]
    for delta, column, following in zip(deltas, torch.split(symbols, packed.widths), [*packed.widths[1:], 0]):
        _scale(select_columns(emitted, column, out=delta).mul_(arriving))
        arriving = torch.sparse.mm(into, delta[:, :following].contiguous(), "amax")     # max_{s'} a_{s',s} δ_{s'}
    return deltas


def _scale(delta: Tensor) -> Tensor:
    """In place; tiny numbers become zero, since arithmetic on denormal numbers is slow."""
    return torch.threshold_(delta.mul_(delta.amax(0).clamp_min_(1e-37).reciprocal_()), 1e-30, 0.0)


class _Buffers(dict[int, Tensor]):
    """Room for (S, n) of any n, in one piece of memory, since allocating memory costs more than using it."""

    def __init__(self, widest: Tensor) -> None:
        self.numbers, self.states = torch.empty_like(widest).view(-1), len(widest)

    def __missing__(self, width: int) -> Tensor:
        self[width] = self.numbers[: self.states * width].view(self.states, width)
        return self[width]


def _as_sparse(matrix: Tensor) -> Tensor:
    """A dense matrix in the format that torch can multiply with max in place of the sum."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return matrix.contiguous().to_sparse_csr()
