"""The two phases of a request: prefill, which reads its prompt a few tokens at a time, and decoding, one by one.

A step of a group is launched, and what it chose is reported later: on a GPU after the next step was launched, so that
the GPU never waits for the host.

Shapes: R rows, W tokens, V vocabulary.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.model import BOUNDARY, State
from chainrule.serve.batching.prefix_cache import Key
from chainrule.serve.batching.row_groups import RowGroup, RowStates, to_pinned
from chainrule.serve.batching.row_sampling import (
    SAMPLED,
    Chosen,
    DeviceSamplers,
    LogProbs,
    RowSamplers,
    aligned,
    log_probs_of,
)
from chainrule.serve.batching.uniform_numbers import row_uniforms
from chainrule.serve.requests import Generation, Request, Token

UNIFORMS = 256    # random numbers of a row that are made at once


@dataclass(eq=False)
class Row:
    """A request that is being answered."""

    request: Request
    generation: Generation
    tokens: NDArray[np.int64]          # the boundary and the prompt
    added: int                         # 1: the boundary was added, and is not reported
    to_read: int                       # how many of the tokens
    limit: int                         # tokens that may be sampled
    plan: deque[int]                   # widths of the prefill calls that are left
    keys: deque[Key]                   # of the prefix cache, after these calls
    bytes: int                         # that its state may need
    state: State = None                # while it is in no group
    held: int = 0                      # tokens that the state holds
    sampled: int = 0
    numbers: deque[float] = field(default_factory=deque)    # random ones, for the next samples
    done: bool = False
    group: "PrefillGroup | DecodeGroup | None" = None
    slot: int = 0

    def next_token(self) -> int:
        """The token of the prompt after those that are held; SAMPLED: there is none."""
        return int(self.tokens[self.held]) if self.held < len(self.tokens) else SAMPLED

    def uniform(self) -> float:
        """The random number of the next sample."""
        sampling = self.request.sampling
        if sampling.temperature == 0:
            return 0.0
        if not self.numbers:
            count = min(UNIFORMS, self.limit - self.sampled)
            self.numbers.extend(row_uniforms(sampling.seed, self.request.row, self.sampled, count))
        return self.numbers.popleft()

    def token(self, place: int, id: int, number: tuple[float | None, Sequence[tuple[int, float]]]) -> Token:
        """What is reported of a token of the prompt or of the answer, at this place of the text."""
        prompt, count = place < len(self.tokens), self.request.logprobs
        if count is None and not prompt:
            return Token(id)
        if prompt and place == self.added:
            return Token(id, prompt=True)
        logprob, top = number
        same = tuple((one, p if logprob is None or one != id else logprob) for one, p in top[: count or 0])
        return Token(id, logprob, same, prompt)


class PrefillGroup(RowGroup):
    """Rows that read W tokens of their prompts in each step."""

    def __init__(self, states: RowStates, rows: int, width: int, capacity: int | None, static: bool = False):
        super().__init__(states, rows, width, capacity, static)
        self.members: dict[int, Row] = {}
        self.waited = 0                # calls of other groups since the last of this one

    def enter(self, row: Row) -> None:
        row.slot, row.group, row.state = self.put(row.state, row.held), self, None
        self.members[row.slot] = row

    def leave(self, row: Row) -> None:
        del self.members[row.slot]
        self.release(row.slot)
        row.group = None

    def read(self) -> dict[Row, LogProbs]:
        """Every row reads its next tokens; the log-probabilities of those that follow, where they are wanted."""
        tokens = np.zeros((self.rows, self.width), np.int64)
        for slot, row in self.members.items():
            tokens[slot] = row.tokens[row.held : row.held + self.width]
        self.tokens.copy_(to_pinned(tokens), non_blocking=True)
        wanted = [row for row in self.members.values() if row.request.prompt_logprobs]
        logits = self.step(bool(wanted))
        found = {row: self._log_probs(row, logits[row.slot]) for row in wanted if logits is not None}
        for row in self.members.values():
            row.held += self.width
        return found

    def _log_probs(self, row: Row, logits: Tensor) -> LogProbs:
        """(W, V): of the tokens that follow each of those that were read."""
        targets = torch.from_numpy(row.tokens[row.held + 1 : row.held + 1 + self.width]).to(logits.device)
        return log_probs_of(aligned(logits), targets, logits.shape[-1])


@dataclass(frozen=True)
class Launched:
    """A step that was launched: which rows it moved, and what it chose."""

    rows: list[tuple[int, Row, int]]   # slot, row, and the place in its text of the token that was chosen
    chosen: Chosen                     # in the host's memory, once `ready` has happened
    ready: torch.cuda.Event | None

    def wait(self) -> tuple[list[int], list[tuple[float, tuple[tuple[int, float], ...]]] | None]:
        if self.ready is not None:
            self.ready.synchronize()
        log_probs = self.chosen.log_probs
        return self.chosen.tokens.tolist(), None if log_probs is None else log_probs.numbers()


class DecodeGroup(RowGroup):
    """Rows that read one token in each step, and choose the next."""

    def __init__(self, states: RowStates, rows: int, capacity: int | None, vocab: int, static: bool = False):
        super().__init__(states, rows, 1, capacity, static)
        self.members: dict[int, Row] = {}
        self.samplers: RowSamplers | DeviceSamplers
        if static:
            captured = self.graphs.get(True) is not None
            self.samplers = DeviceSamplers(rows, vocab, self.tokens.device, captured)
        else:
            self.samplers = RowSamplers(rows)

    def enter(self, row: Row, token: int) -> None:
        """`token`: what the row reads next."""
        row.slot, row.group, row.state = self.put(row.state, row.held), self, None
        self.members[row.slot] = row
        self.tokens[row.slot].fill_(token)
        self.samplers.put(row.slot, row.request)

    def leave(self, row: Row) -> None:
        del self.members[row.slot]
        self.samplers.release(row.slot)
        self.release(row.slot)
        row.group = None

    def launch(self) -> Launched:
        """Every row reads a token, and the next is chosen."""
        given, uniform, log_probs = [BOUNDARY] * self.rows, [0.0] * self.rows, False
        rows = []
        for slot, row in self.members.items():
            row.held += 1
            given[slot] = row.next_token()
            if given[slot] != SAMPLED:
                log_probs |= row.request.prompt_logprobs
            else:
                uniform[slot] = row.uniform()
                row.sampled += 1
                log_probs |= row.request.logprobs is not None
            rows.append((slot, row, row.held))
        logits = self.step()
        assert logits is not None
        chosen = self.samplers.choose(logits[:, 0], given, uniform, log_probs, self.tokens).to_host()
        ready = None
        if self.tokens.is_cuda:
            ready = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            ready.record()
        return Launched(rows, chosen, ready)
