"""The Viterbi algorithm (Viterbi 1967): the most probable sequence of hidden states of a text.

    δ_s(1) = π_s b_{s,x1}        δ_s(t) = b_{s,xt} max_{s'} a_{s',s} δ_{s'}(t-1)        Δ_s(t): the argmax

The path ends in argmax_s δ_s(T) and follows the backpointers Δ. Only δ is stored: Δ is needed along one path only,
where it is computed again. Everything is in float64 logarithms; for many states fast_viterbi.py finds the same paths.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states, V vocabulary.
"""

import torch
from torch import Tensor

from chainrule.models.hmm import fast_viterbi
from chainrule.models.hmm.forward_backward import PackedTexts, emission_rows, pack_texts, text_starts

TILE = 1 << 19               # numbers compared at a time: 4 MB


def viterbi_paths(
    tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> tuple[Tensor, Tensor]:
    """The best states (B, T) and log p of each row with them (B,); -1 where not real or the row is impossible."""
    paths, doubtful = torch.zeros_like(tokens), real
    if fast_viterbi.can_search(transition):
        paths, doubtful = fast_viterbi.certain_paths(tokens, real, initial, transition, emission)
    for packed in pack_texts(tokens, doubtful, len(initial)):
        paths.view(-1)[packed.positions] = _backtrack(packed, initial, transition, emission)
    log_p = path_log_prob(paths, tokens, real, initial, transition, emission)
    return paths.masked_fill_(~real | (log_p == -torch.inf)[:, None], -1), log_p


def path_log_prob(
    states: Tensor, tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> Tensor:
    """(B,): log p of each row together with its states."""
    moves, begins = torch.ones_like(states, dtype=initial.dtype), text_starts(tokens, real)
    moves[:, 1:] = transition[states[:, :-1], states[:, 1:]]
    moves[begins] = initial[states[begins]]
    return (moves.log() + emission[states, tokens].log()).masked_fill(~real, 0).sum(1)


def log_deltas(packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """log δ (M, S)."""
    into = transition.log().T.contiguous()                      # [s, s']: max over the last axis is fast
    symbols, tokens = emission_rows(packed.tokens, emission)
    deltas = symbols.log().index_select(0, tokens)              # log b_{s,xt}
    deltas[packed.steps[0]] += initial.log()
    tile = max(1, TILE // transition.numel())
    for before, here in zip(packed.steps, packed.steps[1:]):
        for delta, earlier in zip(torch.split(deltas[here], tile), torch.split(deltas[before], tile)):
            delta.add_((earlier[: len(delta), None] + into).amax(2))
    return deltas


def backpointers(deltas: Tensor, transition: Tensor) -> Tensor:
    """Δ (T - 1, S) from the log δ (T, S) of one text: the best state before each state, of each token but the first."""
    best = torch.empty_like(deltas[1:], dtype=torch.long)
    for delta, state in zip(deltas, best):
        torch.argmax(delta[:, None] + transition.log(), 0, out=state)
    return best


def _backtrack(packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """(M,) the states of the best path of each text, from its last token to its first."""
    deltas, into = log_deltas(packed, initial, transition, emission), transition.log().T.contiguous()
    paths = torch.empty_like(packed.tokens)
    states = paths[:0]
    for here in reversed(packed.steps):
        delta = deltas[here]
        delta[: len(states)] += into[states]                    # texts that go on; the others end here
        states = paths[here] = delta.max(1).indices             # faster than argmax
    return paths
