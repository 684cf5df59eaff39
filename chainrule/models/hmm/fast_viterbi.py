"""Fast Viterbi search for many states on a CPU: float32, with a proof that rounding did not change the path.

δ is computed by torch's fused max-times product, scaled so that its maximum is 1 at every step. On the way back each
choice must exceed the second best by more than all rounding so far; a text with a choice in doubt is left to float64,
and ties to viterbi.py. The paths are those of viterbi.py, from 1.8 times as fast (64 states, aarch64; docs/hmm.md).

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states.
"""

import math
import warnings

import torch
from torch import Tensor

from chainrule.models.hmm.forward_backward import TINY, PackedTexts, emission_rows, pack_texts

MIN_STATES = 32              # from which it is faster than viterbi.py
STEP = 1 << 16               # numbers of one time step of a block of texts, at which the search is fastest
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
    paths, doubtful = torch.zeros_like(tokens), real.clone()
    for dtype in (torch.float32, torch.float64):
        for packed in pack_texts(tokens, doubtful, len(initial), STEP):
            states, doubts = search(packed, initial, transition, emission, dtype)
            paths.view(-1)[packed.positions] = states
            doubtful.view(-1)[packed.positions] = doubts[packed.texts]
    return paths, doubtful


def search(
    packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(M,) states by products in `dtype`, and (N,) true for texts with a choice that rounding could have changed."""
    deltas, moves = _scaled_deltas(packed, initial, transition, emission, dtype), transition.to(dtype)
    states = len(moves)
    numbers = torch.arange(states, 2 * states, dtype=dtype)
    totals, chosen, buffer = numbers.new_empty(len(packed.tokens)), packed.tokens[:0], torch.empty_like(deltas[0])
    for time, here in reversed(list(enumerate(packed.steps))):
        delta = deltas.pop()
        delta[:, : len(chosen)].mul_(_columns(moves, chosen, buffer))
        bound = delta.amax(0).mul_(1 - ROUNDINGS * torch.finfo(dtype).eps * (time + 2))
        near = torch.ge(delta, bound, out=_reshaped(buffer, delta.shape[1]))
        torch.mv(near.T, numbers, out=totals[here])    # the number of the best, if no other is near; else 2 S or more
        chosen = totals[here].long().sub_(states).clamp_(max=states - 1)
    doubtful = torch.zeros(packed.widths[0], dtype=torch.bool)
    return totals.long().sub_(states), doubtful.index_fill_(0, packed.texts[totals >= 2 * states], True)


def _scaled_deltas(
    packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """δ (S, n) of each time step, every text scaled to a maximum of 1; zeros from an impossible token on."""
    table, tokens = emission_rows(packed.tokens, emission)
    symbols = (table / table.amax(1, keepdim=True).clamp_min(TINY)).T
    emitted, into = symbols.to(dtype).contiguous(), _as_sparse(transition.T.to(dtype))
    deltas = [_scaled(initial[:, None] * symbols[:, tokens[packed.steps[0]]]).to(dtype)]
    buffer = torch.empty_like(deltas[0])
    for here, width in zip(packed.steps[1:], packed.widths[1:]):
        best = torch.sparse.mm(into, deltas[-1][:, :width].contiguous(), "amax")        # max_{s'} a_{s',s} δ_{s'}
        deltas.append(_scaled(best.mul_(_columns(emitted, tokens[here], buffer))))
    return deltas


def _scaled(delta: Tensor) -> Tensor:
    """In place; tiny numbers become zero, since arithmetic on denormal numbers is slow."""
    return torch.threshold_(delta.mul_(delta.amax(0).clamp_min_(1e-37).reciprocal_()), 1e-30, 0.0)


def _columns(table: Tensor, numbers: Tensor, buffer: Tensor) -> Tensor:
    """table[:, numbers], written into the buffer (S, n), since allocating memory costs more than the copy."""
    return torch.index_select(table, 1, numbers, out=_reshaped(buffer, len(numbers)))


def _reshaped(buffer: Tensor, width: int) -> Tensor:
    return buffer.view(-1)[: len(buffer) * width].view(len(buffer), width)


def _as_sparse(matrix: Tensor) -> Tensor:
    """A dense matrix in the format that torch can multiply with max in place of the sum."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return matrix.contiguous().to_sparse_csr()
