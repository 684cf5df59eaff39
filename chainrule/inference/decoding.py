"""Texts under way. A turn reads the last token of each and rolls the die for the next.

Prompts are read alone and go on together. When a model with a context limit is full, the rows that are begin again from
the last half of what they held. On a GPU, turns that leave the shape of the state alone are one CUDA graph, so that a
small model is not held up by the launching of its kernels; where many turns come, these are kernels of our own.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule import kernels
from chainrule.device import undisturbed
from chainrule.errors import UserError
from chainrule.inference.evaluate import why_no_answer
from chainrule.inference.forward import on_device, read
from chainrule.inference.sampling import Sampling, sample_token
from chainrule.model import BOUNDARY, LanguageModel, State, join, pick, state_bytes, tensors

Tokens: TypeAlias = NDArray[np.integer]
Values: TypeAlias = dict[str, Any]    # what a turn changes: a state, as everything here that has rows

WORTH = 8             # turns that repay the recording of a graph
ROOM = 128, 512       # turns for which a state is given room at a time, least and most: torch reads the room of a cache
CELLS = 1 << 15       # rows times turns of it, between these
FREE = 0.25           # share of free memory that room may take where kernels read what is there and no more


class Writing:
    def __init__(self, model: LanguageModel, prompts: Sequence[Tokens], sampling: Sampling, ends: bool):
        self.model, self.sampling, self.ends = model, sampling, ends
        texts = begun(model, prompts)
        logits, state = read_each(model, texts)
        self.first: Tensor | None = logits                 # (B, V) what may follow the prompts, until something does
        self.values: Values = {"state": state} | self._before(prompts, logits)
        self.held = np.array([len(text) for text in texts])                               # (B,) tokens in the state
        self.keep = max(1, (model.context or 0) // 2)
        self.tail = [on_device(model, _flush_right([text[-self.keep :] for text in texts], self.keep))]
        self.graph: Graph | None = None
        self.recordable = logits.is_cuda
        self.quick = False                                 # are turns made by kernels of our own?

    def turn(self, uniform: Tensor, left: int) -> Tensor:
        """(B,) numbers from [0, 1) -> (B,): the next token of each row. With this one at most `left` turns come."""
        if self.graph is not None and self.graph.left:
            self.held += 1
            column = self.graph.turn(uniform)
        else:
            turns = self._turns_without_another_shape(left)
            if turns >= WORTH:
                self.graph = None                          # and with it the memory in which it worked
                self.values["state"] = self.model.reserve(self.values["state"], turns)
            with kernels.in_decoding(self.quick):
                column = self._as_written(uniform)         # which also warms up what is recorded
                if turns >= WORTH:
                    self._record(uniform, turns - 1)
        if self.model.context is not None:
            self.tail.append(column[:, None])
        return column

    def refuse_nothing(self) -> None:
        """Waits for the device."""
        if not self.values["possible"].all():
            impossible = "the model gives no token a probability here, so none can be drawn"
            raise UserError(f"{why_no_answer(self.model, impossible)}.")

    def _before(self, prompts: Sequence[Tokens], logits: Tensor) -> Values:
        """What there is before the first turn."""
        no = torch.zeros(len(prompts), dtype=torch.bool, device=logits.device)
        values: Values = {"ended": no, "possible": ~no, "column": no.long()}
        if self.sampling.repetition_penalty != 1:
            values["seen"] = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
            for row, prompt in zip(values["seen"], prompts):
                row[on_device(self.model, prompt)] = True
            values["seen"][:, BOUNDARY] = False            # it is no part of a text
        return values

    def _as_written(self, uniform: Tensor) -> Tensor:
        if self.first is not None:                         # the prompts have been read, and nothing behind them
            logits, state, self.first = self.first, self.values["state"], None
        else:
            full = np.zeros(len(self.held), bool) if self.model.context is None else self.held == self.model.context
            logits, state = self._begin_again(full) if full.any() else self._step(self.values)
            self.held = np.where(full, self.keep, self.held + 1)
        self.values = self._chosen(logits, state, self.values, uniform)
        column: Tensor = self.values["column"]
        return column

    def _turned(self, values: Values, uniform: Tensor) -> Values:
        return self._chosen(*self._step(values), values, uniform)

    def _step(self, values: Values) -> tuple[Tensor, State]:
        logits, state = self.model.step(values["column"][:, None], values["state"])
        return logits[:, -1], state

    def _chosen(self, logits: Tensor, state: State, values: Values, uniform: Tensor) -> Values:
        column, possible = sample_token(logits, self.sampling, uniform, values.get("seen"))
        ended = values["ended"]
        if self.ends:
            column = column.masked_fill(ended, BOUNDARY)
            ended = ended | (column == BOUNDARY)
        after = {"state": state, "ended": ended, "possible": values["possible"] & possible, "column": column}
        if "seen" in values:
            after["seen"] = values["seen"].scatter(1, column[:, None], (column != BOUNDARY)[:, None])
        return after

    def _begin_again(self, full: NDArray[np.bool_]) -> tuple[Tensor, State]:
        self.tail = [torch.cat(self.tail, 1)[:, -self.keep :]]
        again, others = torch.from_numpy(np.flatnonzero(full)), torch.from_numpy(np.flatnonzero(~full))
        answers = [read(self.model, pick(self.tail[0], again))]
        if len(others):
            answers.append(self._step(pick({name: self.values[name] for name in ("column", "state")}, others)))
        return together(answers, torch.cat([again, others]).argsort())

    def _turns_without_another_shape(self, left: int) -> int:
        self.quick = False
        if not self.recordable or self.first is not None:
            return 0
        turns = left if self.model.context is None else min(left, self.model.context - int(self.held.max()))
        self.quick = kernels.worthwhile(turns)
        return min(turns, self._room())

    def _room(self) -> int:
        """Turns for which there is room at a time."""
        least, most = ROOM
        if not self.quick:
            return min(most, max(least, CELLS // len(self.held)))
        free, _ = torch.cuda.mem_get_info(self.values["column"].device)
        added = state_bytes(self.values["state"]) / max(1, int(self.held.max()))    # by a turn, at most
        return max(least, int(FREE * free / added))

    def _record(self, uniform: Tensor, turns: int) -> None:
        """The turns that come as a graph; none where the model asks its device in the midst of a step."""
        try:
            self.graph = Graph(self._turned, self.values, uniform, turns)
            self.values = self.graph.values
        except RuntimeError:
            self.recordable = False


class Graph:
    """So many turns, each one launch. What they change lies in fixed places, where each leaves what it has made."""

    def __init__(self, turned: Callable[[Values, Tensor], Values], values: Values, uniform: Tensor, left: int):
        self.left = left
        self.values, self.uniform = {**values, "column": values["column"].clone()}, uniform.clone()
        self.graph = torch.cuda.CUDAGraph()
        with undisturbed(), _capture(self.graph):
            after = turned(self.values, self.uniform)
            for kept, new in zip(tensors(self.values), tensors(after), strict=True):
                if new.data_ptr() != kept.data_ptr():      # a cache is written in its place
                    kept.copy_(new)

    def turn(self, uniform: Tensor) -> Tensor:
        self.left -= 1
        self.uniform.copy_(uniform)
        self.graph.replay()
        column: Tensor = self.values["column"].clone()
        return column


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """As torch.cuda.graph, which also collects garbage and empties caches: that takes as long as writing a sentence."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            yield
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)


def begun(model: LanguageModel, prompts: Sequence[Tokens]) -> list[NDArray[np.int64]]:
    """The prompts behind a boundary, or as much of their ends as the model can hold."""
    return [np.append(BOUNDARY, prompt).astype(np.int64)[-(model.context or 0) :] for prompt in prompts]


def read_each(model: LanguageModel, texts: Sequence[NDArray[np.int64]]) -> tuple[Tensor, State]:
    """(B, V): what follows each text, and the states in which they can go on together. Equal texts are read once."""
    different = {text.tobytes(): text for text in texts}
    place = {key: index for index, key in enumerate(different)}
    answers = [read(model, on_device(model, text[None])) for text in different.values()]
    return together(answers, torch.tensor([place[text.tobytes()] for text in texts]))


def together(answers: Sequence[tuple[Tensor, State]], rows: Tensor) -> tuple[Tensor, State]:
    """Logits and states of several answers as those of one, in the order given."""
    return pick(torch.cat([logits for logits, _ in answers]), rows), pick(join([state for _, state in answers]), rows)


def _flush_right(texts: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    rows = np.zeros((len(texts), width), np.int64)
    for row, text in zip(rows, texts):
        row[width - len(text) :] = text
    return rows
