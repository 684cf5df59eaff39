"""Batches: shuffled windows, streams for truncated BPTT, and texts. A batch is a function of tokens, seed and step.

For networks `Windows` (shuffled) and `Streams` (in order, with a state that is carried on); for evaluation `stream`,
the whole text in order, and `InOrder`, the same by windows; for models that reset at each text, `texts`.

Shapes: B rows, T tokens. Rows lie in one int64 tensor (B, T + 1): `tokens` is all but its last column, `targets` all
but its first (teacher forcing).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, Batch

Tokens: TypeAlias = NDArray[np.unsignedinteger]
Places: TypeAlias = NDArray[np.int64]

BLOCK = 1 << 22        # tokens searched for boundaries at a time


class Windows:
    """Windows of the stream, shuffled: each epoch visits every window once, in a new order.

    The few tokens that fill no window are left out at one end or the other, at random in each epoch.
    """

    def __init__(self, tokens: Tokens, rows: int, length: int, seed: int, packed: bool = False):
        _refuse_short(tokens, length)
        self.tokens, self.rows, self.length, self.seed = tokens, rows, length, seed
        self.packed = packed                               # whether batches say which document each token is of
        self.windows, self.spare = divmod(len(tokens) - 1, length)
        self.targets = rows * length                       # of a step
        self.epoch = self.windows / rows                   # steps of one epoch
        self._epoch = -1
        self._starts = np.empty(0, np.int64)

    def at(self, step: int) -> Batch:
        batch = _batch(_gather(self.tokens, self.starts(step)[:, None] + np.arange(self.length + 1)))
        return replace(batch, documents=document_numbers(batch.tokens)) if self.packed else batch

    def starts(self, step: int) -> NDArray[np.int64]:
        """(B,) where the rows of a step begin."""
        return self.window_starts(np.arange(step * self.rows, (step + 1) * self.rows))

    def window_starts(self, numbers: Places) -> Places:
        """Where windows begin, by their numbers, which ascend: the first of the first epoch is 0."""
        epochs, places = np.divmod(numbers, self.windows)
        return np.concatenate([np.empty(0, np.int64),
                               *(self._order(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs))])

    def goes_on(self, step: int) -> bool:
        """Does each row go on where the step before ended?"""
        return False

    def _order(self, epoch: int) -> Places:
        """Where the windows of an epoch begin, in the order in which they are visited."""
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            offset = random.integers(self.spare + 1)
            self._epoch, self._starts = epoch, random.permutation(self.windows) * self.length + offset
        return self._starts


def document_numbers(tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T): the document of each token of a row; each boundary begins the next."""
    return (tokens == BOUNDARY).cumsum(1)


class Unpacked:
    """The windows of `Windows` with each document, or part of one, as a row of its own: padded, never mixed."""

    def __init__(self, windows: Windows):
        self.order = windows
        self.length, self.targets, self.epoch = windows.length, windows.targets, windows.epoch
        self.rows = windows.rows                           # at least; those of a batch are as many as its documents

    def at(self, step: int) -> Batch:
        tokens, length = self.order.tokens, self.length
        starts = self.order.starts(step)
        inside = starts[:, None] + np.arange(length)                                    # (B, T) what is read
        begins = tokens[inside] == BOUNDARY
        begins[:, 0] = True
        first = inside[begins]
        ends = np.append(first[1:], 0)
        last = np.append(np.diff(np.nonzero(begins)[0]) > 0, True)                      # the last of its window
        ends[last] = starts + length
        return _padded(tokens, first + 1, ends - first, tokens[first])

    def goes_on(self, step: int) -> bool:
        return False


class Streams:
    """`rows` contiguous streams, for truncated BPTT: each row goes on at step s + 1 where step s ended.

    After `steps` steps they start again. Tokens that fill no step are left out at the end in even epochs, at the
    beginning in odd ones. A share `reset` of the rows of each step starts with a new state instead, as a text does:
    otherwise the model would see the beginning of a text only as often as texts begin, which may be once.
    """

    def __init__(self, tokens: Tokens, rows: int, length: int, reset: float = 0.0):
        _refuse_short(tokens, rows * length)
        self.tokens, self.rows, self.length, self.share = tokens, rows, length, reset
        self.steps, self.spare = divmod(len(tokens) - 1, rows * length)
        self.targets = rows * length
        self.epoch = float(self.steps)

    def at(self, step: int) -> Batch:
        rows = _gather(self.tokens, self.starts(step)[:, None] + np.arange(self.length + 1))
        if (reset := self.reset(step)) is None:
            return _batch(rows)
        rows[torch.from_numpy(reset), 0] = BOUNDARY
        return replace(_batch(rows), reset=torch.from_numpy(reset))

    def reset(self, step: int) -> NDArray[np.bool_] | None:
        """(B,) which rows reset their state and read the boundary instead of their first token."""
        return np.random.default_rng([self.rows, step]).random(self.rows) < self.share if self.share else None

    def starts(self, step: int) -> NDArray[np.int64]:
        """(B,) where the rows of a step begin."""
        epoch, place = divmod(step, self.steps)
        begin = (epoch % 2) * self.spare + place * self.length
        return begin + np.arange(self.rows, dtype=np.int64) * (self.steps * self.length)

    def goes_on(self, step: int) -> bool:
        """Does each row go on where the step before ended?"""
        return step % self.steps > 0


class InOrder:
    """Windows of the stream for evaluation: each token is in one of them, and each window in one batch.

    There are as few as hold the text, and their lengths differ by at most one token, so that none has much less
    context than the others. The windows of a batch have the same length; the longer ones come first.
    """

    def __init__(self, tokens: Tokens, rows: int, length: int):
        _refuse_short(tokens, 1)
        self.tokens = tokens
        windows = -(-(len(tokens) - 1) // length)
        self.length, self.longer = divmod(len(tokens) - 1, windows)    # this many windows have one token more
        self.cuts = [*range(0, self.longer, rows), *range(self.longer, windows, rows), windows]
        self.epoch = float(len(self.cuts) - 1)

    def at(self, step: int) -> Batch:
        windows = np.arange(*self.cuts[step : step + 2])
        starts = windows * self.length + windows.clip(max=self.longer)
        length = self.length + (windows[0] < self.longer)
        return _batch(_gather(self.tokens, starts[:, None] + np.arange(length + 1)))


def stream(tokens: Tokens, size: int, overlap: int = 0) -> Iterator[Batch]:
    """The whole stream in order as (1, size) pieces, the last maybe shorter.

    Each piece but the first begins `overlap` tokens earlier, for context; those targets are `context_only`.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap {overlap} must lie between 0 and {size - 1}")
    begin, done = 0, 0
    while done < len(tokens) - 1:
        end = min(begin + size, len(tokens) - 1)
        piece = torch.from_numpy(tokens[begin : end + 1].astype(np.int64))[None]
        yield _batch(piece, context_only=torch.tensor([done - begin]) if done > begin else None)
        done, begin = end, end - overlap


def texts(tokens: Tokens, length: int | None, limit: int) -> Iterator[Batch]:
    """Each text of a stream that begins with a boundary, as a row that begins with the boundary.

    A text of more than `length` targets is cut, and each piece starts with a new state. Rows of similar length share a
    batch of at most `limit` targets, padding included (except for a single longer row).
    """
    for starts, ends in _spans(tokens):
        starts, sizes = _cut(starts, ends, length)
        order = np.argsort(sizes, kind="stable")
        starts, sizes = starts[order], sizes[order]
        row = 0
        while row < len(sizes):
            rows = sizes[row : row + 1 + limit // sizes[row]]          # ascending, so the last is the width
            fitting = np.searchsorted(rows * np.arange(1, len(rows) + 1), limit, "right")
            last = row + max(int(fitting), 1)
            yield _padded(tokens, starts[row:last], sizes[row:last])
            row = last


def _spans(tokens: Tokens) -> Iterator[tuple[Places, Places]]:
    """Where the targets of the texts begin and end (the closing boundary included), some texts at a time."""
    begin = 1
    for block in range(1, len(tokens), BLOCK):
        ends = np.flatnonzero(tokens[block : block + BLOCK] == BOUNDARY) + block + 1
        if block + BLOCK >= len(tokens) and (len(ends) == 0 or ends[-1] < len(tokens)):
            ends = np.append(ends, len(tokens))
        if len(ends):
            yield np.concatenate([[begin], ends[:-1]]), ends
            begin = int(ends[-1])


def _cut(starts: Places, ends: Places, length: int | None) -> tuple[Places, Places]:
    """Starts and sizes of the pieces of at most `length` targets."""
    if length is None:
        return starts, ends - starts
    pieces = -(-(ends - starts) // length)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)    # of each piece within its text
    cuts = np.repeat(starts, pieces) + number * length
    return cuts, np.minimum(np.repeat(ends, pieces) - cuts, length)


def _padded(tokens: Tokens, starts: Places, sizes: Places, before: Tokens | None = None) -> Batch:
    """Rows of targets; each begins after the boundary, or after the token `before` it."""
    place = np.arange(sizes.max())
    real = place < sizes[:, None]                                       # (B, T)
    rows = np.full((len(sizes), len(place) + 1), BOUNDARY, np.int64)
    rows[:, 1:][real] = tokens[(starts[:, None] + place)[real]]
    if before is not None:
        rows[:, 0] = before
    return _batch(torch.from_numpy(rows), lengths=torch.from_numpy(sizes.astype(np.int64)))


def _gather(tokens: Tokens, places: Places) -> Tensor:
    return torch.from_numpy(tokens[places].astype(np.int64))


def _batch(rows: Tensor, lengths: Tensor | None = None, context_only: Tensor | None = None) -> Batch:
    return Batch(rows[:, :-1], rows[:, 1:], lengths, context_only)


def _refuse_short(tokens: Tokens, length: int) -> None:
    if len(tokens) <= length:
        raise UserError(
            f"the text is shorter than the context: {len(tokens) - 1} tokens to predict, and a batch needs {length}. "
            f"Use more text, a shorter context or fewer rows."
        )
