"""The forward-backward algorithm of hidden Markov models (Rabiner 1989): α, β, the posteriors γ and ξ, expected counts.

Texts run side by side, longest first, so that a time step is one matrix product over the texts that still run, without
padding. α is scaled to sum to one at every step; the scales c_t = p(x_t | x_1 … x_{t-1}) carry the likelihood, so
there is no logarithm inside the loops and no underflow. Everything is float64. The second-order HMM, where a tag
depends on the two before it, runs over pairs of tags.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states, V vocabulary; second
order: P positions of words in the batch, G tags, the last of which is the boundary; messages are (n, G, G).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from chainrule.model import BOUNDARY

MESSAGES = 1 << 25      # numbers kept for one block of texts: 256 MB of float64
STEP = 1 << 17          # numbers of one time step of a block: 1 MB, so that they stay in the cache
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class PackedTexts:
    """Texts side by side: the first tokens of all of them, then the second tokens of those that have one, and so on."""

    tokens: Tensor      # (M,)
    firsts: Tensor      # (N,) where each text begins in the batch: row · T + column; the longest text first
    lengths: Tensor     # (N,) tokens of each text
    widths: list[int]   # number of texts that reach each time step; it never rises

    @cached_property
    def texts(self) -> Tensor:
        """(M,) which of the N texts each token belongs to."""
        numbers = torch.arange(len(self.firsts), device=self.firsts.device)
        return torch.cat([numbers[:width] for width in self.widths])

    @cached_property
    def positions(self) -> Tensor:
        """(M,) where each token was in the batch: row · T + column."""
        return _positions(self.firsts, self.widths)

    @property
    def steps(self) -> list[slice]:
        """Where each time step lies among the M tokens."""
        return [slice(end - width, end) for end, width in zip(accumulate(self.widths), self.widths)]

    def columns(self, numbers: Tensor, states: int) -> list[Tensor]:
        """`numbers` (M · S or more) as (S, n) for each time step: a row for each state, a column for each text."""
        sizes = [states * width for width in self.widths]
        return [piece.view(states, -1) for piece in torch.split(numbers[: states * len(self.tokens)], sizes)]

    def unpack(self, values: Tensor, batch: Tensor) -> None:
        """Write values (M,) to the places in the batch (B, T) that the tokens came from."""
        if (rectangle := _rectangle(batch.view(-1), self.firsts, self.widths)) is not None:
            rectangle.copy_(values.view(rectangle.T.shape).T.contiguous())
        else:
            batch.view(-1)[self.positions] = values.to(batch.dtype)


def new_numbers(numbers: int, like: Tensor) -> Tensor:
    """On a CPU from numpy, which asks Linux for huge pages: memory that is new costs a third as much to write."""
    if like.device.type != "cpu":
        return like.new_empty(numbers)
    return torch.from_numpy(np.empty(numbers, like[:0].numpy().dtype))


def text_starts(tokens: Tensor, real: Tensor) -> Tensor:
    """(B, T): true where a text begins: at the first real token of a row, and after each boundary."""
    begins = real.clone()
    begins[:, 1:] &= ~real[:, :-1] | (tokens[:, :-1] == BOUNDARY)
    return begins


def pack_texts(tokens: Tensor, real: Tensor, states: int, step: int = STEP) -> Iterator[PackedTexts]:
    """The texts among the real tokens of (B, T), in blocks whose messages for so many states fit in memory."""
    return pack_extents(tokens, *text_extents(tokens, real), states, step)


def pack_extents(
    tokens: Tensor, firsts: Tensor, lengths: Tensor, states: int, step: int = STEP
) -> Iterator[PackedTexts]:
    """The same, where it is known at which row · T + column each text begins, and how long it is."""
    for block in _blocks(lengths.tolist(), MESSAGES // states, max(1, step // states)):
        yield _side_by_side(tokens.flatten(), firsts[block], lengths[block])


def text_extents(tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) where each text begins in the batch, row · T + column; and its length."""
    if tokens.numel() and _whole_rows(tokens, real):
        firsts = torch.arange(0, tokens.numel(), tokens.shape[1], device=tokens.device)
        return firsts, torch.full_like(firsts, tokens.shape[1])
    begins, ends = text_starts(tokens, real), real.clone()
    ends[:, :-1] &= begins[:, 1:] | ~real[:, 1:]
    firsts, lasts = begins.flatten().nonzero()[:, 0], ends.flatten().nonzero()[:, 0]
    return firsts, lasts - firsts + 1


def _whole_rows(tokens: Tensor, real: Tensor) -> bool:
    """Whether each row is one text, which saves looking for where texts begin."""
    return bool(real.all()) and bool((tokens != BOUNDARY).all())


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


def _side_by_side(flat: Tensor, firsts: Tensor, lengths: Tensor) -> PackedTexts:
    order = lengths.argsort(descending=True, stable=True)
    firsts, lengths = firsts[order], lengths[order]
    widths = (len(lengths) - lengths.bincount().cumsum(0))[:-1].tolist()
    rectangle = _rectangle(flat, firsts, widths)
    if rectangle is None:
        return PackedTexts(flat[_positions(firsts, widths)], firsts, lengths, widths)
    tokens = new_numbers(rectangle.numel(), flat)
    tokens.view(rectangle.T.shape).copy_(rectangle.T)
    return PackedTexts(tokens, firsts, lengths, widths)


def _positions(firsts: Tensor, widths: list[int]) -> Tensor:
    return torch.cat([firsts[:width] + time for time, width in enumerate(widths)])


def _rectangle(flat: Tensor, firsts: Tensor, widths: list[int]) -> Tensor | None:
    """A view (N, T) of texts of one length at equal distances, as whole rows are; to transpose it is cheap."""
    if flat.device.type != "cpu" or len(firsts) < 2 or widths[-1] < len(firsts):
        return None
    distances = firsts.diff()
    if int(distances[0]) < len(widths) or bool((distances != distances[0]).any()):
        return None
    first, distance, step = int(firsts[0]), int(distances[0]), flat.stride(0)
    return flat.as_strided((len(firsts), len(widths)), (distance * step, step), flat.storage_offset() + first * step)


def emission_rows(tokens: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """A table of rows b(·, o), and the row of each token: one for each symbol, or for each token if those are fewer."""
    if tokens.numel() < emission.shape[1]:
        rows = emission.index_select(1, tokens.flatten()).T.contiguous()
        return rows, torch.arange(len(rows), device=tokens.device).view_as(tokens)
    return emission.T.contiguous(), tokens


def select_columns(table: Tensor, numbers: Tensor, out: Tensor | None = None) -> Tensor:
    """table[:, numbers] (S, n), by a gather: several times as fast as index_select in float64."""
    return torch.gather(table, 1, numbers.expand(len(table), -1), out=out)


def forward(packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """α (M, S): p(state | tokens so far); scales c (M,): p(token | tokens before). `initial`, π, is (S,) or (N, S).

        α_s(1) = π_s b_{s,x1} / c_1        α_s(t) = b_{s,xt} Σ_{s'} α_{s'}(t-1) a_{s',s} / c_t

    A token that no state can emit has c = 0 and is ignored: α is then the prediction from the tokens before it.
    """
    symbols, tokens = emission_rows(packed.tokens, emission)
    predicted = initial.expand(packed.widths[0], -1).contiguous().clone()       # Σ_{s'} α_{s'}(t-1) a_{s',s}
    alphas, scales = symbols.new_empty(len(tokens), len(transition)), symbols.new_empty(len(tokens))
    for here, following in zip(packed.steps, [*packed.widths[1:], 0]):
        alpha, scale = alphas[here], scales[here]
        torch.index_select(symbols, 0, tokens[here], out=alpha)                 # b_{s,xt}
        alpha.mul_(predicted[: len(alpha)])
        torch.sum(alpha, 1, out=scale)                                          # c_t
        if bool(scale.amin() < TINY):
            _ignore_impossible_tokens(alpha, scale, predicted)
        alpha.mul_(_inverse(scale))
        torch.mm(alpha[:following], transition, out=predicted[:following])
    return alphas, scales


def _ignore_impossible_tokens(alpha: Tensor, scale: Tensor, predicted: Tensor) -> None:
    impossible = (scale < TINY).nonzero()[:, 0]
    alpha[impossible] = predicted[impossible]
    scale[impossible] = 0


def _inverse(scales: Tensor) -> Tensor:
    """(n, 1): 1 / scale, and 1 for a scale of 0."""
    return (scales + (scales == 0)).reciprocal_()[:, None]


def log_likelihoods(packed: PackedTexts, scales: Tensor) -> Tensor:
    """(N,): log p of each text, Σ_t log c_t."""
    return scales.new_zeros(packed.widths[0]).index_add_(0, packed.texts, scales.log())


def backward(
    packed: PackedTexts, scales: Tensor, transition: Tensor, emission: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """From the last time step to the first: where it lies, and for each text that reaches it (n, S)

        β_s(t) = Σ_{s'} a_{s,s'} b_{s',x(t+1)} β_{s'}(t+1) / c_{t+1}     so that γ(t) = α(t) · β(t)
        b_{s,xt} β_s(t) / c_t                                            so that ξ(t) = α(t-1) · a · this

    Both are buffers that the next step overwrites. They are zero in impossible texts, which so add to no count.
    """
    symbols, tokens = emission_rows(packed.tokens, emission)
    possible = log_likelihoods(packed, scales) > -torch.inf
    betas = possible.to(scales.dtype)[:, None].expand(-1, len(transition)).contiguous()
    emitted_betas = torch.empty_like(betas)
    for here, width in zip(reversed(packed.steps), reversed(packed.widths)):
        beta, emitted_beta = betas[:width], emitted_betas[:width]
        torch.index_select(symbols, 0, tokens[here], out=emitted_beta)
        emitted_beta.mul_(beta).mul_(_inverse(scales[here]))
        yield here, beta, emitted_beta
        torch.mm(emitted_beta, transition.T, out=beta)


def posteriors(packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
    """γ (M, S): p(state | the whole text) = α · β; zeros where the text is impossible."""
    gammas, scales = forward(packed, initial, transition, emission)
    for here, beta, _ in backward(packed, scales, transition, emission):
        gammas[here].mul_(beta)
    return gammas


def expected_counts(
    packed: PackedTexts, initial: Tensor, transition: Tensor, emission: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Σ γ(1) (S,), Σ_t ξ(t) (S, S), Σ_{t: x_t = o} γ(t) (S, V), and log p of each text (N,).

    ξ is never stored: a does not depend on t, so Σ_t ξ(t) = a ∘ Σ_t α(t-1)ᵀ [b β / c](t).
    """
    alphas, scales = forward(packed, initial, transition, emission)
    products, emissions = torch.zeros_like(transition), emission.new_zeros(emission.T.shape)
    earlier = [None, *packed.steps[:-1]]
    for here, beta, emitted_beta in backward(packed, scales, transition, emission):
        if (before := earlier.pop()) is not None:
            products.addmm_(alphas[before][: len(emitted_beta)].T, emitted_beta)
        gamma = alphas[here].mul_(beta)                                         # α(t) is no longer needed
        emissions.index_add_(0, packed.tokens[here], gamma)
    return alphas[packed.steps[0]].sum(0), products.mul_(transition), emissions.T, log_likelihoods(packed, scales)


# Second order: what is multiplied along a path is given as `Potentials`. A message, for the last tag and the one before
# it, is scaled to a maximum of one, so that it does not underflow, and no logarithms are needed.


@dataclass(frozen=True)
class Potentials:
    transitions: Tensor   # (blocks, G, G): to c after a, as [a, c], for one b and its word
    first: Tensor         # (G,) the block for each b before the first word of a text
    blocks: Tensor        # (P, G) the block for each tag b of the word at a position
    emissions: Tensor     # (kinds, G, G): of a kind of word by c after b, as [b, c]; 0 for the boundary
    kinds: Tensor         # (P,) the kind of word at a position

    @property
    def ends(self) -> Tensor:
        """(blocks, G): transitions to the boundary after a."""
        return self.transitions[:, :, -1]


def second_order_forward(packed: PackedTexts, given: Potentials, best: bool = False) -> Tensor:
    """(M, G, G): α, the sum over all paths to a pair of tags; or δ, that of the best path."""
    size = given.transitions.shape[-1]
    message = given.transitions.new_zeros(packed.widths[0], size, size)
    message[:, -1, -1] = 1
    blocks = given.first.expand(len(message), -1)
    messages = message.new_empty(len(packed.positions), size, size)
    for here, width in zip(packed.steps, packed.widths):
        transitions = given.transitions[blocks[:width]]                # (n, G, G, G): b, a, c
        if best:
            arrived = transitions.mul_(message[:width, :, :, None]).amax(2)
        else:
            arrived = (message[:width, :, None] @ transitions)[:, :, 0]   # (n, G, G): b, c
        positions = packed.positions[here]
        message = messages[here] = _scaled(arrived.mul_(given.emissions[given.kinds[positions]])).mT
        blocks = given.blocks[positions]
    return messages


def second_order_posteriors(packed: PackedTexts, given: Potentials) -> Tensor:
    """γ (M, G): p(tag | the whole text) = α · β, summed over the tag before it."""
    gamma = given.emissions.new_empty(len(packed.positions), given.emissions.shape[-1])
    for here, product in _alpha_beta(packed, given):
        gamma[here] = product.sum(2)
    return gamma.div_(gamma.sum(1, keepdim=True))


def second_order_pairs(packed: PackedTexts, given: Potentials) -> Tensor:
    """ξ (M, G, G): p(tag, the tag before it | the whole text)."""
    pairs = torch.cat([product for _, product in reversed(list(_alpha_beta(packed, given)))])
    return pairs / pairs.sum((1, 2), keepdim=True)


def _alpha_beta(packed: PackedTexts, given: Potentials) -> Iterator[tuple[slice, Tensor]]:
    """From the last time step to the first: where it lies, and α · β (n, G, G) of a tag and the one before it."""
    alphas = second_order_forward(packed, given)
    emitted_beta = alphas[:0]
    for here in reversed(packed.steps):
        positions = packed.positions[here]
        blocks = given.blocks[positions]
        beta = given.ends[blocks]                                      # (n, G, G): b, a; of the texts that end here
        goes_on = len(emitted_beta)
        beta[:goes_on] = (given.transitions[blocks[:goes_on]] @ emitted_beta[..., None])[..., 0]
        yield here, alphas[here] * _scaled(beta)
        emitted_beta = given.emissions[given.kinds[positions]] * beta.mT    # (n, G, G): b, c


def second_order_viterbi(packed: PackedTexts, given: Potentials) -> Tensor:
    """(M,): the tags of the best path, found from the last word to the first."""
    deltas = second_order_forward(packed, given, best=True)
    chosen = torch.empty_like(packed.positions)
    tags = following = chosen[:0]
    for here in reversed(packed.steps):
        blocks, delta = given.blocks[packed.positions[here]], deltas[here]
        ending = slice(len(tags), len(delta))
        lasts = (delta[ending] * given.ends[blocks[ending]]).amax(2).argmax(1)
        tags = chosen[here] = torch.cat([tags, lasts])
        following = torch.cat([following, torch.full_like(lasts, deltas.shape[-1] - 1)])
        texts = torch.arange(len(tags), device=tags.device)
        before = delta[texts, tags] * given.transitions[blocks[texts, tags], :, following]   # (n, G): a
        tags, following = before.argmax(1), tags
    return chosen


def _scaled(message: Tensor) -> Tensor:
    return message.div_(message.amax((1, 2), keepdim=True))
