"""Second-order HMM: forward-backward and Viterbi over pairs of tags, where a tag depends on the two before it.

What is multiplied along a path is given as `Potentials`: a transition to tag c after tags a and b, which may depend on
the word of tag b, and an emission, which may depend on b and c. Texts run side by side (see forward_backward.py). A
message is scaled to a maximum of one, so that it does not underflow, and no logarithms are needed.

Shapes: N texts, n texts at one time step, M words of all N texts, P positions of words in the batch (rows · columns),
G tags, the last of which is the boundary; messages are (n, G, G): the last tag, then the one before it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.models.hmm.forward_backward import PackedTexts


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
    alphas = second_order_forward(packed, given)
    gamma = alphas.new_empty(len(alphas), alphas.shape[-1])
    emitted_beta = alphas[:0]
    for here in reversed(packed.steps):
        positions = packed.positions[here]
        blocks = given.blocks[positions]
        beta = given.ends[blocks]                                      # (n, G, G): b, a; of the texts that end here
        goes_on = len(emitted_beta)
        beta[:goes_on] = (given.transitions[blocks[:goes_on]] @ emitted_beta[..., None])[..., 0]
        gamma[here] = (alphas[here] * _scaled(beta)).sum(2)
        emitted_beta = given.emissions[given.kinds[positions]] * beta.mT    # (n, G, G): b, c
    return gamma.div_(gamma.sum(1, keepdim=True))


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
