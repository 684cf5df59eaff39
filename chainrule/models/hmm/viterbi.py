"""The Viterbi algorithm (Viterbi 1967): the most probable sequence of hidden states of a text.

    δ_s(1) = π_s b_{s,x1}        δ_s(t) = b_{s,xt} max_{s'} a_{s',s} δ_{s'}(t-1)        Δ_s(t): the argmax

The path ends in argmax_s δ_s(T) and follows the backpointers Δ. Only δ is stored: Δ is needed along one path only,
where it is computed again. Everything is in float64 logarithms. On a CPU a kernel in C++ (kernels/cpu/viterbi.py) finds
the same paths, wherever there is a compiler and the work repays it.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states, O symbols.
"""

import torch
from torch import Tensor

from chainrule.kernels.cpu import viterbi as kernel
from chainrule.model import BOUNDARY
from chainrule.models.hmm.forward_backward import (
    PackedTexts,
    emission_rows,
    new_numbers,
    pack_extents,
    select_columns,
    text_extents,
)

TILE = 1 << 19      # numbers compared at a time: 4 MB


def viterbi_paths(
    tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> tuple[Tensor, Tensor]:
    """The best states (B, T) and log p of each row with them (B,); -1 where not real or the row is impossible."""
    firsts, lengths = text_extents(tokens, real)
    symbols, numbers = emission_rows(tokens if real.all() else tokens.masked_fill(~real, BOUNDARY), emission)
    search = kernel.best_paths if kernel.pays(tokens, transition) else best_paths
    paths = torch.full(tokens.shape, -1, device=tokens.device)
    texts_log_p = search(numbers, firsts, lengths, initial, transition, symbols, paths)
    log_p = initial.new_zeros(len(tokens)).index_add_(0, firsts // max(1, tokens.shape[1]), texts_log_p)
    if not log_p.isfinite().all():
        paths.masked_fill_((log_p == -torch.inf)[:, None], -1)
    return paths, log_p


def best_paths(
    tokens: Tensor, firsts: Tensor, lengths: Tensor, initial: Tensor, transition: Tensor, symbols: Tensor, paths: Tensor
) -> Tensor:
    """Writes the states of the best path of each text to `paths` (B, T); log p of each text with it (N,).

    A token is the number of its row b(·, o) among the `symbols`.
    """
    log_p = initial.new_empty(len(firsts))
    for packed in pack_extents(tokens, firsts, lengths, len(initial), TILE // len(initial)):
        states, found = _backtrack(packed, initial, transition, symbols)
        packed.unpack(states, paths)
        log_p[torch.searchsorted(firsts, packed.firsts)] = found
    return log_p


def log_deltas(packed: PackedTexts, initial: Tensor, transition: Tensor, symbols: Tensor) -> list[Tensor]:
    """log δ (S, n) of each time step. States come first, so that a maximum is taken over whole rows of texts."""
    log_a, log_b, tokens = transition.log()[:, :, None], symbols.log().T.contiguous(), packed.tokens
    deltas = packed.columns(new_numbers(len(log_b) * len(packed.tokens), log_b), len(log_b))
    select_columns(log_b, tokens[packed.steps[0]], out=deltas[0]).add_(initial.log()[:, None])
    for before, delta, symbol in zip(deltas, deltas[1:], torch.split(tokens, packed.widths)[1:]):
        arriving = (before[:, None, : delta.shape[1]] + log_a).amax(0)                  # max over s' of (s', s, n)
        select_columns(log_b, symbol, out=delta).add_(arriving)
    return deltas


def backpointers(deltas: Tensor, transition: Tensor) -> Tensor:
    """Δ (T - 1, S) from the log δ (T, S) of one text: the best state before each state, of each token but the first."""
    best = torch.empty_like(deltas[1:], dtype=torch.long)
    for delta, state in zip(deltas, best):
        torch.argmax(delta[:, None] + transition.log(), 0, out=state)
    return best


def _backtrack(
    packed: PackedTexts, initial: Tensor, transition: Tensor, symbols: Tensor
) -> tuple[Tensor, Tensor]:
    """(M,) the states of the best path of each text, found from its last token to its first; log p of each (N,)."""
    deltas, log_a = log_deltas(packed, initial, transition, symbols), transition.log()
    paths, log_p = torch.empty_like(packed.tokens), initial.new_empty(packed.widths[0])
    states = paths[:0]
    for here, width, delta in zip(reversed(packed.steps), reversed(packed.widths), reversed(deltas)):
        goes_on = len(states)
        if goes_on < width:                                                     # the other texts end here
            log_p[goes_on:width] = delta[:, goes_on:].amax(0)
        delta[:, :goes_on] += select_columns(log_a, states)
        states = paths[here] = _first_best(delta)
    return paths, log_p


def _first_best(delta: Tensor) -> Tensor:
    """(n,) the argmax over states, the first of equal ones; overwrites delta. Faster than argmax and max on a CPU."""
    order = torch.arange(len(delta), 0, -1, dtype=delta.dtype, device=delta.device)[:, None]
    return len(delta) - delta.ge_(delta.amax(0)).mul_(order).amax(0).long()
