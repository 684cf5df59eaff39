"""Forward and backward recursions through the trellis of a hidden Markov model (Rabiner 1989).

Texts run side by side, longest first, so that a time step is one matrix product over the texts that still run, and
nothing is padded. Forward messages are scaled to sum to one; the scales are p(x_t | x_1 … x_{t-1}) and carry the
likelihood, so there is no logarithm inside the loops and no underflow. Everything is float64.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from chainrule.model import BOUNDARY

MESSAGES = 1 << 25      # numbers kept for one block of texts: 256 MB of float64
STEP = 1 << 17          # numbers of one time step of a block: 1 MB, so that they stay in the cache
TINY = torch.finfo(torch.float64).tiny


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
        return [slice(end - width, end) for end, width in zip(accumulate(self.widths), self.widths)]


def beginnings(tokens: Tensor, real: Tensor) -> Tensor:
    """(B, T): where a text begins: at the first real token of a row, and after each boundary."""
    begins = real.clone()
    begins[:, 1:] &= ~real[:, :-1] | (tokens[:, :-1] == BOUNDARY)
    return begins


def pack(tokens: Tensor, real: Tensor, states: int, step: int = STEP) -> Iterator[Packed]:
    """The texts among the real ones of tokens (B, T), in blocks of which messages for so many states fit in memory."""
    begins, ends = beginnings(tokens, real), real.clone()
    ends[:, :-1] &= begins[:, 1:] | ~real[:, 1:]
    firsts, lasts = begins.flatten().nonzero()[:, 0], ends.flatten().nonzero()[:, 0]
    lengths = lasts - firsts + 1
    for block in _blocks(lengths.tolist(), MESSAGES // states, max(1, step // states)):
        yield _side_by_side(tokens.flatten(), firsts[block], lengths[block])


def _blocks(lengths: list[int], most_tokens: int, most_texts: int) -> Iterator[slice]:
    """As many texts at a time as fit, and at least one."""
    begin = size = 0
    for text, length in enumerate(lengths):
        if text > begin and (size + length > most_tokens or text - begin == most_texts):
            yield slice(begin, text)
            begin, size = text, 0
        size += length
    if lengths:
        yield slice(begin, len(lengths))


def _side_by_side(flat: Tensor, firsts: Tensor, lengths: Tensor) -> Packed:
    firsts = firsts[lengths.argsort(descending=True, stable=True)]
    widths = (len(lengths) - lengths.bincount().cumsum(0))[:-1].tolist()
    places = torch.cat([firsts[:width] + time for time, width in enumerate(widths)])
    numbers = torch.arange(len(firsts), device=flat.device)
    return Packed(flat[places], torch.cat([numbers[:width] for width in widths]), places, widths)


def emissions_of(tokens: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """A table of rows b(·, o) and the row of each token: one for each symbol, or for each token if those are fewer."""
    if tokens.numel() < emission.shape[1]:
        rows = emission.index_select(1, tokens.flatten()).T.contiguous()
        return rows, torch.arange(len(rows), device=tokens.device).view_as(tokens)
    return emission.T.contiguous(), tokens


def forward(packed: Packed, initial: Tensor, transition: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """Messages (M, S): p(state | tokens so far); scales (M,): p(token | tokens before). `initial` is (S,) or (N, S).

    A token that no state could have emitted has scale 0 and tells nothing: the message is then what was predicted.
    """
    symbols, tokens = emissions_of(packed.tokens, emission)
    predicted = initial.expand(packed.widths[0], -1).contiguous().clone()
    messages, scales = symbols.new_empty(len(tokens), len(transition)), symbols.new_empty(len(tokens))
    for here, following in zip(packed.steps, [*packed.widths[1:], 0]):
        message, scale = messages[here], scales[here]
        torch.index_select(symbols, 0, tokens[here], out=message)
        message.mul_(predicted[: len(message)])
        torch.sum(message, 1, out=scale)
        if bool(scale.amin() < TINY):
            _ignore_the_impossible(message, scale, predicted)
        message.mul_(_inverse(scale))
        torch.mm(message[:following], transition, out=predicted[:following])
    return messages, scales


def _ignore_the_impossible(message: Tensor, scale: Tensor, predicted: Tensor) -> None:
    impossible = (scale < TINY).nonzero()[:, 0]
    message[impossible] = predicted[impossible]
    scale[impossible] = 0


def _inverse(scales: Tensor) -> Tensor:
    """(n, 1): 1 / scale, and 1 for a scale of 0."""
    return (scales + (scales == 0)).reciprocal_()[:, None]


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
    symbols, tokens = emissions_of(packed.tokens, emission)
    possible = log_likelihoods(packed, scales) > -torch.inf
    afters = possible.to(scales.dtype)[:, None].expand(-1, len(transition)).contiguous()
    arrivings = torch.empty_like(afters)
    for here, width in zip(reversed(packed.steps), reversed(packed.widths)):
        after, arriving = afters[:width], arrivings[:width]
        torch.index_select(symbols, 0, tokens[here], out=arriving)
        arriving.mul_(after).mul_(_inverse(scales[here]))
        yield here, after, arriving
        torch.mm(arriving, transition.T, out=after)


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
    products, emits = torch.zeros_like(transition), emission.new_zeros(emission.T.shape)
    earlier = [None, *packed.steps[:-1]]
    for here, after, arriving in backward(packed, scales, transition, emission):
        if (before := earlier.pop()) is not None:
            products.addmm_(messages[before][: len(arriving)].T, arriving)
        emits.index_add_(0, packed.tokens[here], messages[here].mul_(after))
    return messages[packed.steps[0]].sum(0), products.mul_(transition), emits.T, log_likelihoods(packed, scales)
