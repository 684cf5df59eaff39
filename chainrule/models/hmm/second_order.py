"""Forward, backward and best paths through a trellis of pairs of tags, for tags that depend on the two before them.

What is multiplied along a path is given as `Potentials`: a move to tag c after tags a and b, which may depend on the
word that b stands on, and an emission, which may depend on b and c. Texts run side by side (see trellis.py). A message
is scaled to a maximum of one, so nothing underflows, and probabilities do for logarithms.

Shapes: N texts, n texts at one time step, M words of all N texts, P places (rows · columns) that words stand at,
G tags and, last among them, the boundary; messages are (n, G, G): the last tag, then the one before it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.models.hmm.forward_backward import Packed


@dataclass(frozen=True)
class Potentials:
    moves: Tensor      # (blocks, G, G): to c after a, as [a, c], for some b and the word it stands on
    first: Tensor      # (G,) which block holds for each b at the head of a text
    leaves: Tensor     # (P, G) which block holds for each b that stands at a place
    emits: Tensor      # (kinds, G, G): of a kind of word after b by c, as [b, c]; 0 for the boundary, which is no word
    kinds: Tensor      # (P,) which kind of word stands at a place

    @property
    def ends(self) -> Tensor:
        """(blocks, G): to the boundary after a."""
        return self.moves[:, :, -1]


def forward(packed: Packed, given: Potentials, best: bool = False) -> Tensor:
    """(M, G, G): all paths to a pair added up, or the best of them."""
    size = given.moves.shape[-1]
    message = given.moves.new_zeros(packed.widths[0], size, size)
    message[:, -1, -1] = 1
    blocks = given.first.expand(len(message), -1)
    messages = message.new_empty(len(packed.places), size, size)
    for here, width in zip(packed.steps, packed.widths):
        moves = given.moves[blocks[:width]]                            # (n, G, G, G): b, a, c
        if best:
            arrived = moves.mul_(message[:width, :, :, None]).amax(2)
        else:
            arrived = (message[:width, :, None] @ moves)[:, :, 0]      # (n, G, G): b, c
        places = packed.places[here]
        message = messages[here] = _scaled(arrived.mul_(given.emits[given.kinds[places]])).mT
        blocks = given.leaves[places]
    return messages


def posteriors(packed: Packed, given: Potentials) -> Tensor:
    """(M, G): p(tag | the whole text)."""
    messages, after = forward(packed, given), None
    gamma = messages.new_empty(len(messages), messages.shape[-1])
    arriving = messages[:0]
    for here in reversed(packed.steps):
        places = packed.places[here]
        blocks = given.leaves[places]
        after = given.ends[blocks]                                     # (n, G, G): b, a; of the texts that end here
        goes_on = len(arriving)
        after[:goes_on] = (given.moves[blocks[:goes_on]] @ arriving[..., None])[..., 0]
        gamma[here] = (messages[here] * _scaled(after)).sum(2)
        arriving = given.emits[given.kinds[places]] * after.mT         # (n, G, G): b, c
    return gamma.div_(gamma.sum(1, keepdim=True))


def best_paths(packed: Packed, given: Potentials) -> Tensor:
    """(M,): the tags of the best path."""
    messages = forward(packed, given, best=True)
    chosen = torch.empty_like(packed.places)
    tags = following = chosen[:0]
    for here in reversed(packed.steps):
        blocks, message = given.leaves[packed.places[here]], messages[here]
        ending = slice(len(tags), len(message))
        lasts = (message[ending] * given.ends[blocks[ending]]).amax(2).argmax(1)
        tags = chosen[here] = torch.cat([tags, lasts])
        following = torch.cat([following, torch.full_like(lasts, messages.shape[-1] - 1)])
        texts = torch.arange(len(tags), device=tags.device)
        before = message[texts, tags] * given.moves[blocks[texts, tags], :, following]   # (n, G): a
        tags, following = before.argmax(1), tags
    return chosen


def _scaled(message: Tensor) -> Tensor:
    return message.div_(message.amax((1, 2), keepdim=True))
