"""Fast Viterbi search on a CPU: δ as products in float32, with a proof that rounding did not change the path.

torch's fused max-times product computes max_{s'} a_{s',s} δ_{s'}(t-1) of all texts at once. On the way back each choice
must exceed the second best by more than all rounding so far. A choice in doubt is made in float64, along the paths back
to where they meet, or in a new search of the text; a difference below the rounding of float64 counts as a tie. The
paths are those of viterbi.py, up to such ties.

Shapes: B rows, T tokens, N texts, n texts at one time step, M tokens of all N texts, S states, V vocabulary.
"""

import math
import warnings
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.models.hmm.forward_backward import PackedTexts, new_numbers, pack_texts

MIN_STATES = 2              # from which it is faster than viterbi.py
STEP = 1 << 16              # numbers of one time step of a block of texts, at which the search is fastest
FEW = 1 << 12               # products of one time step, below which float64 is as fast as float32
SPREAD = 35.0               # nats between the largest and the smallest a_{s',s} that float32 can search
TOP, BOTTOM = 69.0, -87.0   # log of what the largest δ is scaled to, and of the smallest normal float32
LARGEST = 85.0              # log of the largest factor of a scaling; float32 ends at 88
SAFE = 1e-290               # π_s b_s below this is left to viterbi.py
PATIENCE = 2                # steps back for each time step of a block, as fast as a search in float64
ROUNDINGS = 4               # of a δ in each time step, at most eps / 2 each: a, b and two products


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
    paths: Tensor, tokens: Tensor, real: Tensor, initial: Tensor, transition: Tensor, emission: Tensor
) -> Tensor:
    """Writes the best states to `paths` (B, T); (B, T) true for the tokens of texts that are left to viterbi.py."""
    doubtful = real
    for dtype in (torch.float32, torch.float64):
        if not doubtful.any():
            break
        searched, doubtful = doubtful, torch.zeros_like(real)
        search = Search(initial, transition, emission, dtype)
        for packed in pack_texts(tokens, searched, len(initial), STEP):
            if dtype == torch.float32 and packed.widths[0] * transition.numel() < FEW:
                packed.mark(range(packed.widths[0]), doubtful)
                continue
            states = search(packed)
            packed.unpack(states, paths)
            if int(states.max()) == len(initial):
                packed.mark(packed.texts_of((states == len(initial)).nonzero()[:, 0]), doubtful)
    return doubtful


class Search:
    """A model's tables, scaled so that the largest entry of a, and of b for each token, is 1; and the search itself."""

    def __init__(self, initial: Tensor, transition: Tensor, emission: Tensor, dtype: torch.dtype) -> None:
        self.initial, self.transition, self.emission = initial, transition, emission
        self.dtype, self.states = dtype, len(initial)
        moves = transition / transition.max()
        self.spread = max(1.0, -math.log(float(moves.min())))
        self.into = _as_sparse(moves.T.to(dtype))
        self.moves = torch.cat([moves, torch.ones_like(moves[:, :1])], 1).to(dtype)     # the last: no state follows
        # From one time step to the next the largest δ falls by `spread` nats at most, and the smallest product that
        # is not zero lies 4 spreads below it: 2 for b (see _scaled), 1 for the a of δ, 1 for the next a.
        self.scaling = int(max(1, min(LARGEST / self.spread, (TOP - BOTTOM) / self.spread - 3)))     # steps between two
        self.order = torch.arange(self.states, 0, -1, dtype=dtype)[:, None]
        self.numbers, self.offset = torch.arange(self.states, 2 * self.states, dtype=dtype), self.order[:1, 0].neg()
        self.room = new_numbers(0, self.moves)

    def __call__(self, packed: PackedTexts) -> Tensor:
        """(M,) the states of the best path of each text; S where rounding could have changed the choice."""
        deltas = self._deltas(packed)
        states = packed.tokens.new_empty(len(packed.tokens), dtype=torch.int32)
        ties = _Ties(self, packed, deltas) if self.dtype == torch.float32 else None
        choose = self._certain if ties else self._first
        chosen, buffers = states[:0], _Buffers(deltas[0])
        for time, states_now in reversed(list(enumerate(torch.split(states, packed.widths)))):
            if len(states_now) > len(chosen):
                chosen = torch.cat([chosen, chosen.new_full((len(states_now) - len(chosen),), self.states)])
            scores = torch.index_select(self.moves, 1, chosen, out=buffers[len(chosen)]).mul_(deltas[time])
            states_now.copy_(choose(scores, time))
            if ties and int(states_now.amax()) == self.states:
                ties.settle(states_now, chosen, time)
            chosen = states_now
        return states

    def _deltas(self, packed: PackedTexts) -> list[Tensor]:
        """δ (S, n) of each time step, up to a factor for each text; zeros from an impossible token on."""
        (starts, emitted), tokens = self._tables(packed)
        if self.room.numel() < self.states * len(tokens):
            self.room = new_numbers(self.states * len(tokens), self.room)
        deltas, columns = packed.columns(self.room, self.states), torch.split(tokens, packed.widths)
        torch.index_select(starts, 1, columns[0], out=deltas[0])
        for time, (before, column, delta) in enumerate(zip(deltas, columns[1:], deltas[1:]), 1):
            if len(column) < before.shape[1]:
                before = before[:, : len(column)].contiguous()
            torch.index_select(emitted, 1, column, out=delta)
            delta.mul_(torch.sparse.mm(self.into, before, "amax"))          # max_{s'} a_{s',s} δ_{s'}(t-1)
            if time % self.scaling == 0:
                delta.mul_(math.exp(TOP) / delta.amax(0).clamp_min_(math.exp(TOP - LARGEST)))
        return deltas

    def _tables(self, packed: PackedTexts) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """π_s b_{s,o} and b_{s,o} (S, columns), and the column of each token: one for each o, or for each token."""
        if packed.tokens.numel() < self.emission.shape[1]:
            return self._scaled(self.emission[:, packed.tokens]), torch.arange(packed.tokens.numel())
        return self._whole_tables, packed.tokens

    @cached_property
    def log_tables(self) -> tuple[NDArray[np.float64], ...]:
        """log π, log a and log b."""
        return tuple(table.log().numpy() for table in (self.initial, self.transition, self.emission))

    @cached_property
    def _whole_tables(self) -> tuple[Tensor, Tensor]:
        return self._scaled(self.emission)

    def _scaled(self, emission: Tensor) -> tuple[Tensor, Tensor]:
        """Zero where it is 2 spreads or more below the best of its column, since the state is then on no best path."""
        starts = emission * self.initial[:, None]
        starts *= starts.amax(0) > SAFE                         # what float64 cannot represent goes to viterbi.py
        tables = (table / table.amax(0).clamp_min(SAFE) for table in (starts, emission))
        starts, emitted = (table.masked_fill_(table < math.exp(-2 * self.spread), 0) for table in tables)
        return (starts * math.exp(TOP)).to(self.dtype), emitted.to(self.dtype).contiguous()

    def certainty(self, time: int) -> float:
        """What is below this fraction of the largest of the scores at a time step is smaller than it in truth too."""
        roundings = ROUNDINGS * time + time // self.scaling + 6        # of the two together, in units of eps
        return 1 - roundings * torch.finfo(self.dtype).eps

    def _certain(self, scores: Tensor, time: int) -> Tensor:
        """(n,) the argmax over states, and S where the second best is as near as rounding; overwrites the scores."""
        near = scores.ge_(scores.amax(0).mul_(self.certainty(time)))
        chosen = torch.addmv(self.offset, near.T, self.numbers)          # s if it alone is near, otherwise S or more
        return chosen.clamp_(max=self.states)

    def _first(self, scores: Tensor, time: int) -> Tensor:
        """(n,) the argmax over states, the first of equal ones, and S where all are zero; overwrites the scores."""
        best = scores.amax(0)
        return self.states - scores.ge_(best).mul_(self.order).amax(0).masked_fill_(best == 0, 0)


class _Ties:
    """Choices in doubt are made by the paths back from each near state to where they meet, compared in float64."""

    def __init__(self, search: Search, packed: PackedTexts, deltas: list[Tensor]) -> None:
        self.search, self.deltas, self.moves = search, deltas, search.moves.numpy()
        self.tokens = torch.split(packed.tokens, packed.widths)
        self.log_initial, self.log_transition, self.log_emission = search.log_tables
        self.patience = PATIENCE * len(packed.widths)      # steps of paths, after which the rest is left to float64

    def settle(self, states: Tensor, following: Tensor, time: int) -> None:
        """Replace the S among the states (n,) at a time step, wherever float32 is certain of the paths back."""
        for text in (states == self.search.states).nonzero()[:, 0].tolist():
            if float(self.deltas[time][:, text].amax()) > 0:
                states[text] = self._best(text, int(following[text]), time)

    def _best(self, text: int, following: int, time: int) -> int:
        near = self._near(text, np.array([following]), time)[:, 0].nonzero()[0]
        log_p = self.log_transition[near, following] if following < self.search.states else np.zeros(len(near))
        states = near
        while self.patience > 0:
            self.patience -= 1
            log_p += self.log_emission[states, int(self.tokens[time][text])]
            if time == 0:
                log_p += self.log_initial[states]
            if time == 0 or (states == states[0]).all():
                return int(near[log_p.argmax()])
            time -= 1
            before = self._near(text, states, time)
            if before.sum() > len(states):
                break
            log_p += self.log_transition[before.argmax(0), states]
            states = before.argmax(0)
        return self.search.states

    def _near(self, text: int, following: NDArray[np.int64], time: int) -> NDArray[np.bool_]:
        """(S, states that follow): the states before each that may be the best as far as float32 knows."""
        scores = self.deltas[time].numpy()[:, text, None] * self.moves[:, following]
        return np.asarray(scores >= scores.max(0) * np.float32(self.search.certainty(time)))


class _Buffers(dict[int, Tensor]):
    """Room for (S, n) of any n, in one piece of memory, since allocating memory costs more than using it."""

    def __init__(self, widest: Tensor) -> None:
        self.numbers, self.states = torch.empty_like(widest).view(-1), len(widest)

    def __missing__(self, width: int) -> Tensor:
        self[width] = self.numbers[: self.states * width].view(self.states, width)
        return self[width]


def _as_sparse(matrix: Tensor) -> Tensor:
    """A dense matrix in the format that torch can multiply with max in place of the sum."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return matrix.contiguous().to_sparse_csr()
