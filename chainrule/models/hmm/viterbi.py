"""The likeliest states behind a text (Viterbi 1967).

    δ_s(1) = π_s b_{s,x1}        δ_s(t) = b_{s,xt} max_{s'} a_{s',s} δ_{s'}(t-1)        Δ_s(t) = the s' that won

Only δ is kept: Δ is found again on the way back, along the chosen path alone. `best_paths` searches with torch's fused
max-times product in float32 and proves each choice by its margin over the second best, which must exceed all rounding
so far. Texts with a choice in doubt are searched in float64; ties, and models float32 cannot hold, in logarithms.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states, V vocabulary.
"""

import math
import warnings

import torch
from torch import Tensor

from chainrule.models.hmm.forward_backward import TINY, Packed, beginnings, emissions_of, pack

STEP = 1 << 16              # numbers of one time step of a block of texts: what the float32 search is fastest with
TILE = 1 << 19               # numbers of a tile of the float64 search: 4 MB
SPREAD = 35.0                # nats between the largest and the least a_{s',s} that float32 can search, see `_fits`
ROUNDINGS = 5                # in a δ for each time step, each of at most eps / 2; a ratio of two has both their errors


def best_paths(
    tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> tuple[Tensor, Tensor]:
    """The likeliest states (B, T) and log p of each row with them (B,); -1 where not real or the row is impossible."""
    paths, doubtful = torch.zeros_like(tokens), real.clone()
    for dtype in (torch.float32, torch.float64) if _fits(transition) else ():
        for packed in pack(tokens, doubtful, len(initial), STEP):
            chosen, doubts = _quick_paths(packed, initial, transition, emission, dtype)
            paths.view(-1)[packed.places] = chosen
            doubtful.view(-1)[packed.places] = doubts[packed.texts]
    for packed in pack(tokens, doubtful, len(initial)):
        paths.view(-1)[packed.places] = _careful_paths(packed, initial, transition, emission)
    log_p = path_log_p(paths, tokens, real, initial, transition, emission)
    return paths.masked_fill_(~real | (log_p == -torch.inf)[:, None], -1), log_p


def path_log_p(
    states: Tensor, tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> Tensor:
    """(B,): log p of each row together with its states."""
    arrivals, begins = torch.ones_like(states, dtype=initial.dtype), beginnings(tokens, real)
    arrivals[:, 1:] = transition[states[:, :-1], states[:, 1:]]
    arrivals[begins] = initial[states[begins]]
    return (arrivals.log() + emission[states, tokens].log()).masked_fill(~real, 0).sum(1)


def best_messages(packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """log δ (M, S) in float64."""
    log_transition = transition.log()
    symbols, tokens = emissions_of(packed.tokens, emission)
    deltas = symbols.log().index_select(0, tokens)
    deltas[packed.steps[0]] += initial.log()
    tile = max(1, TILE // transition.numel())
    for before, here in zip(packed.steps, packed.steps[1:]):
        for arrived, left in zip(torch.split(deltas[here], tile), torch.split(deltas[before], tile)):
            arrived.add_((left[: len(arrived), :, None] + log_transition).amax(1))
    return deltas


def best_predecessors(deltas: Tensor, transition: Tensor) -> Tensor:
    """Δ (T - 1, S) from the log δ (T, S) of one text: the state before each state, of each token but the first."""
    predecessors = torch.empty_like(deltas[1:], dtype=torch.long)
    for delta, predecessor in zip(deltas, predecessors):
        torch.argmax(delta[:, None] + transition.log(), 0, out=predecessor)
    return predecessors


def _careful_paths(packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """(M,) by float64 logarithms."""
    deltas, into = best_messages(packed, initial, transition, emission), transition.log().T.contiguous()
    paths = torch.empty_like(packed.tokens)
    chosen = paths[:0]
    for here in reversed(packed.steps):
        delta = deltas[here]
        delta[: len(chosen)] += into[chosen]
        chosen = paths[here] = delta.argmax(1)
    return paths


def _fits(transition: Tensor) -> bool:
    """Whether float32 can hold all that matters.

    From the best state any state can be reached at a cost of at most SPREAD nats over any other way there, so a state
    further behind than that is on no best path, and whatever float32 loses of it does no harm.
    """
    least, most = (float(bound) for bound in transition.aminmax())
    return transition.device.type == "cpu" and least > 0 and math.log(most / least) < SPREAD


def _quick_paths(
    packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(M,) by products in `dtype`, and for which texts (N,) some choice was nearer than rounding can tell."""
    deltas, quick = _quick_messages(packed, initial, transition, emission, dtype), transition.to(dtype)
    states = len(quick)
    numbers = torch.arange(states, 2 * states, dtype=dtype)
    totals, chosen, room = numbers.new_empty(len(packed.tokens)), packed.tokens[:0], torch.empty_like(deltas[0])
    for time, here in reversed(list(enumerate(packed.steps))):
        delta = deltas.pop()
        delta[:, : len(chosen)].mul_(_columns(quick, chosen, room))
        bound = delta.amax(0).mul_(1 - ROUNDINGS * torch.finfo(dtype).eps * (time + 2))
        near = torch.ge(delta, bound, out=_shaped(room, delta.shape[1]))
        torch.mv(near.T, numbers, out=totals[here])    # the number of the best, if no other is near; else 2 S or more
        chosen = totals[here].long().sub_(states).clamp_(max=states - 1)
    doubtful = torch.zeros(packed.widths[0], dtype=torch.bool)
    return totals.long().sub_(states), doubtful.index_fill_(0, packed.texts[totals >= 2 * states], True)


def _quick_messages(
    packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """δ (S, n) of each time step, every text scaled to a maximum of one; zeros from an impossible token on."""
    table, tokens = emissions_of(packed.tokens, emission)
    symbols = (table / table.amax(1, keepdim=True).clamp_min(TINY)).T
    quick, into = symbols.to(dtype).contiguous(), _sparse(transition.T.to(dtype))
    deltas = [_scaled(initial[:, None] * symbols[:, tokens[packed.steps[0]]]).to(dtype)]
    room = torch.empty_like(deltas[0])
    for here, width in zip(packed.steps[1:], packed.widths[1:]):
        arrived = torch.sparse.mm(into, deltas[-1][:, :width].contiguous(), "amax")     # max_{s'} a_{s',s} δ_{s'}
        deltas.append(_scaled(arrived.mul_(_columns(quick, tokens[here], room))))
    return deltas


def _scaled(delta: Tensor) -> Tensor:
    """In place; what is too small to matter becomes zero, since arithmetic on denormal numbers is slow."""
    return torch.threshold_(delta.mul_(delta.amax(0).clamp_min_(1e-37).reciprocal_()), 1e-30, 0.0)


def _columns(table: Tensor, numbers: Tensor, room: Tensor) -> Tensor:
    """table[:, numbers], written into room (S, N), since fresh memory costs more than the copying."""
    return torch.index_select(table, 1, numbers, out=_shaped(room, len(numbers)))


def _shaped(room: Tensor, width: int) -> Tensor:
    return room.view(-1)[: len(room) * width].view(len(room), width)


def _sparse(matrix: Tensor) -> Tensor:
    """The form that torch multiplies with max for the sum, though nothing is left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return matrix.contiguous().to_sparse_csr()
