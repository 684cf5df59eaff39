"""The Viterbi algorithm (Viterbi 1967): the most probable sequence of hidden states of a text.

    δ_s(1) = π_s b_{s,x1}        δ_s(t) = b_{s,xt} max_{s'} a_{s',s} δ_{s'}(t-1)        Δ_s(t): the argmax

The path ends in argmax_s δ_s(T) and follows the backpointers Δ. Only δ is stored: Δ is needed along one path only,
where it is computed again. Everything is in float64 logarithms; on a CPU fast_viterbi.py finds the same paths.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states, V vocabulary.
"""

import torch
from torch import Tensor

from chainrule.models.hmm import fast_viterbi
from chainrule.models.hmm.forward_backward import (
    PackedTexts,
    emission_rows,
    new_numbers,
    pack_texts,
    select_columns,
    text_starts,
    whole_rows,
)

TILE = 1 << 19      # numbers compared at a time: 4 MB
CACHED = 1 << 15    # tokens whose log p is added up at a time


def viterbi_paths(
    tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> tuple[Tensor, Tensor]:
    """The best states (B, T) and log p of each row with them (B,); -1 where not real or the row is impossible."""
    whole = whole_rows(tokens, real)
    paths, doubtful = new_numbers(tokens.numel(), tokens).view(tokens.shape), real
    if not whole:
        paths.zero_()
    if fast_viterbi.can_search(transition):
        doubtful = fast_viterbi.certain_paths(paths, tokens, real, initial, transition, emission)
    for packed in pack_texts(tokens, doubtful, len(initial), TILE // len(initial)) if doubtful.any() else ():
        packed.unpack(_backtrack(packed, initial, transition, emission), paths)
    log_p = path_log_prob(paths, tokens, real, initial, transition, emission, whole)
    if not (whole and log_p.isfinite().all()):
        paths.masked_fill_(~real | (log_p == -torch.inf)[:, None], -1)
    return paths, log_p


def path_log_prob(
    states: Tensor, tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor,
    whole: bool = False,
) -> Tensor:  # fmt: skip
    """(B,): log p of each row together with its states. On a CPU some rows at a time, which fit in the cache.

    `whole`: whether each row is known to be one text (whole_rows).
    """
    moves, rows = torch.cat([transition, initial[None]]), len(tokens)
    joint = moves.numel() * emission.shape[1] < tokens.numel() // 4
    tables = [moves.log()[:, :, None] + emission.log()] if joint else [moves, emission]
    if tokens.device.type == "cpu":
        rows = max(1, CACHED // max(1, tokens.shape[1]))
    blocks = zip(*(torch.split(tensor, rows) for tensor in (states, tokens, real)))
    return torch.cat([_rows_log_prob(tables, whole, *block) for block in blocks])


def _rows_log_prob(tables: list[Tensor], whole: bool, states: Tensor, tokens: Tensor, real: Tensor) -> Tensor:
    previous = torch.nn.functional.pad(states[:, :-1], (1, 0), value=len(tables[0]) - 1)
    if not whole:
        previous.masked_fill_(text_starts(tokens, real), len(tables[0]) - 1)
    if len(tables) == 1:
        _, size, vocab = tables[0].shape
        log_p = tables[0].take(previous.mul_(size * vocab).add_(states, alpha=vocab).add_(tokens))
    else:
        log_p = _log_entries(tables[0], previous, states).add_(_log_entries(tables[1], states, tokens))
    return (log_p if whole else log_p.masked_fill_(~real, 0)).sum(1)


def _log_entries(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """log table[rows, columns], with as few logarithms as possible."""
    places = rows * table.shape[1] + columns
    return table.log().take(places) if table.numel() < places.numel() else table.take(places).log()


def log_deltas(packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor) -> list[Tensor]:
    """log δ (S, n) of each time step. States come first, so that a maximum is taken over whole rows of texts."""
    log_a, (symbols, tokens) = transition.log()[:, :, None], emission_rows(packed.tokens, emission)
    log_b = symbols.log().T.contiguous()
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


def _backtrack(packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """(M,) the states of the best path of each text, from its last token to its first."""
    deltas, log_a = log_deltas(packed, initial, transition, emission), transition.log()
    paths = torch.empty_like(packed.tokens)
    states = paths[:0]
    for here, delta in zip(reversed(packed.steps), reversed(deltas)):
        delta[:, : len(states)] += select_columns(log_a, states)                # texts that go on; the others end here
        states = paths[here] = _first_best(delta)
    return paths


def _first_best(delta: Tensor) -> Tensor:
    """(n,) the argmax over states, the first of equal ones; overwrites delta. Faster than argmax and max on a CPU."""
    order = torch.arange(len(delta), 0, -1, dtype=delta.dtype, device=delta.device)[:, None]
    return len(delta) - delta.ge_(delta.amax(0)).mul_(order).amax(0).long()
