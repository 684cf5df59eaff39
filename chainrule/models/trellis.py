"""Forward, backward and best-path recursions through the trellis of a hidden Markov model (Rabiner 1989).

Texts run side by side, longest first, so that a time step is one matrix product over the texts that still run, and
nothing is padded. Forward messages are scaled to sum to one; the scales are p(x_t | x_1 … x_{t-1}) and carry the
likelihood, so there is no logarithm inside the loops and no underflow. Everything is float64.

Shapes: B rows, T tokens, N texts, M tokens of all N texts, S states, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.model import BOUNDARY

MESSAGES = 1 << 25      # numbers kept for one block of texts: 256 MB of float64
STEP = 1 << 17          # numbers of one time step of a block: 1 MB, so that they stay in the cache
TINY = torch.finfo(torch.float64).tiny
CANDIDATES = (8, 32)    # predecessors tried before all of them are


@dataclass(frozen=True)
class Packed:
    """Texts side by side: the first tokens of all of them, then the second tokens of those that have one, and so on."""

    tokens: Tensor      # (M,)
    texts: Tensor       # (M,) which of the N texts it belongs to; 0 is the longest
    places: Tensor      # (M,) where it stood: row · T + column
    widths: list[int]   # texts that reach each time step; never rises

    @property
    def steps(self) -> list[slice]:
        """Where each time step lies among the M."""
        ends = torch.tensor(self.widths).cumsum(0).tolist()
        return [slice(end - width, end) for end, width in zip(ends, self.widths)]


def pack(tokens: Tensor, real: Tensor, states: int) -> Iterator[Packed]:
    """The `real` ones of tokens (B, T) in blocks of bounded size. A row begins a text, and so does what follows a boundary."""
    places = real.flatten().nonzero()[:, 0]
    flat = tokens.flatten()[places]
    rows = places // tokens.shape[1]
    begins = torch.ones_like(flat, dtype=torch.bool)
    begins[1:] = (rows[1:] != rows[:-1]) | (flat[:-1] == BOUNDARY)
    firsts = begins.nonzero()[:, 0].tolist()
    for block in _blocks([*firsts, len(flat)], MESSAGES // states, max(1, STEP // states)):
        yield _side_by_side(flat[block], places[block], begins[block])


def _blocks(edges: list[int], most_tokens: int, most_texts: int) -> Iterator[slice]:
    """Whole texts, as many as fit; the last edge is the end of the last text."""
    begin = 0
    for text in range(1, len(edges)):
        full = text - begin == most_texts or text == len(edges) - 1
        if full or edges[text + 1] - edges[begin] > most_tokens:
            yield slice(edges[begin], edges[text])
            begin = text


def _side_by_side(flat: Tensor, places: Tensor, begins: Tensor) -> Packed:
    text = begins.cumsum(0) - 1
    column = torch.arange(len(flat), device=flat.device) - begins.nonzero()[:, 0][text]
    rank = text.bincount().argsort(descending=True, stable=True).argsort()[text]
    widths = column.bincount()
    slots = (widths.cumsum(0) - widths)[column] + rank
    order = torch.empty_like(slots).scatter_(0, slots, torch.arange(len(slots), device=slots.device))
    return Packed(flat[order], rank[order], places[order], widths.tolist())


def forward(packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """Messages (M, S): p(state | tokens so far); scales (M,): p(token | tokens before). `initial` is (S,) or (N, S).

    A token that no state could have emitted has scale 0 and tells nothing: the message is then what was predicted.
    """
    symbols = emission.T.contiguous()
    predicted = initial.expand(packed.widths[0], -1).contiguous().clone()
    messages, scales = symbols.new_empty(len(packed.tokens), len(transition)), symbols.new_empty(len(packed.tokens))
    for here, following in zip(packed.steps, [*packed.widths[1:], 0]):
        message, scale = messages[here], scales[here]
        torch.index_select(symbols, 0, packed.tokens[here], out=message)
        message.mul_(predicted[: len(message)])
        torch.sum(message, 1, out=scale)
        if bool(scale.amin() < TINY):
            _ignore_the_impossible(message, scale, predicted)
        message.mul_((scale + (scale == 0)).reciprocal_()[:, None])
        torch.mm(message[:following], transition, out=predicted[:following])
    return messages, scales


def _ignore_the_impossible(message: Tensor, scale: Tensor, predicted: Tensor) -> None:
    impossible = (scale < TINY).nonzero()[:, 0]
    message[impossible] = predicted[impossible]
    scale[impossible] = 0


def log_likelihoods(packed: Packed, scales: Tensor) -> Tensor:
    """(N,): log p of each text."""
    return scales.new_zeros(packed.widths[0]).index_add_(0, packed.texts, scales.log())


def backward(
    packed: Packed, scales: Tensor, transition: Tensor, emission: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """From the last time step to the first: where it lies, and of each text that reaches it (n, S)

    after:    β̂(t) = p(tokens after t | state) / p(tokens after t | tokens to t), so that γ(t) = message(t) · after
    arriving: b(x_t) β̂(t) / scale(t), so that ξ(t) = message(t-1) · a · arriving

    Both are buffers that the next step overwrites. Impossible texts have zeros throughout, and so count for nothing.
    """
    symbols, back = emission.T.contiguous(), transition.T
    possible = log_likelihoods(packed, scales) > -torch.inf
    afters = possible.to(scales.dtype)[:, None].expand(-1, len(transition)).contiguous()
    arrivings = torch.empty_like(afters)
    inverse = (scales + (scales == 0)).reciprocal_()[:, None]
    for here, width in zip(reversed(packed.steps), reversed(packed.widths)):
        after, arriving = afters[:width], arrivings[:width]
        torch.index_select(symbols, 0, packed.tokens[here], out=arriving)
        arriving.mul_(after).mul_(inverse[here])
        yield here, after, arriving
        torch.mm(arriving, back, out=after)


def posteriors(packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """γ (M, S): p(state | the whole text); zeros where the text is impossible."""
    messages, scales = forward(packed, initial, transition, emission)
    for here, after, _ in backward(packed, scales, transition, emission):
        messages[here].mul_(after)
    return messages


def expected_counts(
    packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Σ γ(1) (S,), Σ_t ξ(t) (S, S), Σ_{t: x_t = o} γ(t) (S, V), and log p of each text (N,)."""
    messages, scales = forward(packed, initial, transition, emission)
    products, emits = torch.zeros_like(transition), torch.zeros_like(emission.T, memory_format=torch.contiguous_format)
    earlier = [None, *packed.steps[:-1]]
    for here, after, arriving in backward(packed, scales, transition, emission):
        if (before := earlier.pop()) is not None:
            products.addmm_(messages[before][: len(arriving)].T, arriving)
        gamma = messages[here].mul_(after)
        emits.index_add_(0, packed.tokens[here], gamma)
    return messages[packed.steps[0]].sum(0), products * transition, emits.T, log_likelihoods(packed, scales)


def best_paths(packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """Viterbi: the likeliest states (M,) and log p of each text with them (N,); impossible texts have -1 and -inf.

    δ is kept and Δ is not: the argmax is taken again on the way back, along the chosen path alone.
    """
    deltas = best_messages(packed, initial.log(), transition.log(), emission.log())
    into = transition.log().T.contiguous()
    paths = torch.empty_like(packed.tokens)
    best = deltas.new_full((packed.widths[0],), -torch.inf)
    chosen = paths.new_empty(0)
    for here, width in zip(reversed(packed.steps), reversed(packed.widths)):
        delta = deltas[here]
        ended, final = delta[len(chosen):].max(1)
        best[len(chosen): width] = ended
        chosen = torch.cat([(delta[: len(chosen)] + into[chosen]).argmax(1), final])
        paths[here] = chosen
    return paths.masked_fill_(best[packed.texts] == -torch.inf, -1), best


def best_messages(packed: Packed, log_initial: Tensor, log_transition: Tensor, log_emission: Tensor) -> Tensor:
    """log δ (M, S): the likeliest way to have read the tokens so far and to be in a state."""
    symbols = log_emission.T.contiguous()
    deltas = symbols.index_select(0, packed.tokens)
    deltas[packed.steps[0]] += log_initial
    for before, here in zip(packed.steps, packed.steps[1:]):
        deltas[here] += best_predecessors(deltas[before][: here.stop - here.start], log_transition)
    return deltas


def best_predecessors(delta: Tensor, log_transition: Tensor) -> Tensor:
    """max_{s'} δ(s') + log a(s', s) (n, S), exactly, though for most rows only the likeliest s' are tried.

    Those left out have at most the least δ tried, so where that δ plus the largest log a(·, s) does not beat what was
    found for any s, the row is done; the others try more.
    """
    most = log_transition.amax(0)
    best = torch.empty_like(delta)
    rows = torch.arange(len(delta), device=delta.device)
    for count in CANDIDATES:
        if count * 2 > delta.shape[1] or not len(rows):
            break
        top, states = delta[rows].topk(count, sorted=True)
        found = torch.full_like(top[:, :1], -torch.inf)
        for rank in range(count):
            found = torch.maximum(found, log_transition[states[:, rank]].add_(top[:, rank, None]))
        best[rows] = found
        rows = rows[(top[:, -1:] + most > found).any(1)]
    if len(rows):
        best[rows] = _every_predecessor(delta[rows], log_transition)
    return best


def _every_predecessor(delta: Tensor, log_transition: Tensor) -> Tensor:
    """The same by trying all, a tile of rows at a time."""
    tile = max(1, 4 * STEP // log_transition.numel())
    return torch.cat([(rows[:, :, None] + log_transition).amax(1) for rows in delta.split(tile)])
