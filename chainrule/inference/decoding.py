"""The decode loop of sampling, beam search and minimum Bayes risk: prefill, then one token of every row at a time.

A step feeds the last token of each row to the model, whose state (a KV cache, for a Transformer) holds all tokens
before it, and a decoding strategy chooses the next tokens from the logits. Prompts are prefilled one by one and
continue together. When the context of a row is full, the row is prefilled again with the last half of its tokens. On a
GPU, steps that leave the shape of the state alone are replayed as one CUDA graph (captured/), so that a small
model does not wait for the launches of its kernels; where many steps follow, Triton kernels compute them.

Shapes: B rows, T steps, V vocabulary.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule import kernels
from chainrule.device import CudaGraph
from chainrule.inference.captured import kept_steps
from chainrule.inference.captured.captured_step import Block, CapturedStep, run_and_capture
from chainrule.inference.forward import device_of, on_device, prefill
from chainrule.model import BOUNDARY, LanguageModel, State, join, pick, state_bytes, tensors
from chainrule.progress import say

Tokens: TypeAlias = NDArray[np.integer]
Values: TypeAlias = dict[str, Any]    # what a step changes: a state, like everything that has rows

MIN_STEPS = 8              # steps that repay the capture of a graph
RESERVED = 128, 512        # steps, least and most, for which a state is reserved at a time: torch reads all of it
RESERVED_CELLS = 1 << 15   # rows times steps, between these
RESERVED_REORDERED = 63    # and where each step copies the state: with the boundary 64, the unit of a KV cache
FREE_SHARE = 0.25          # of free memory that may be reserved where kernels read only what has been written
ALWAYS_RESERVED = 1 << 28  # bytes that are reserved without asking for free memory, which takes long
SYNC_EVERY = 16            # steps of a GPU between two questions of the host, such as whether all rows have ended


class Strategy(Protocol):
    """A decoding strategy: how the next token of each row is chosen from the logits."""

    reorders: bool         # whether rows continue other rows, as in beam search

    def begin(self, logits: Tensor) -> Values:
        """The values that the strategy keeps from step to step, before the first one."""

    def choose(self, logits: Tensor, values: Values, inputs: Tensor) -> Values:
        """(B, V): these values after a step. Their "tokens" (B,) are the next tokens.

        If the strategy reorders, their "parents" (B,) are the rows that the tokens continue. `inputs` are the step's
        own, such as random numbers. Under a CUDA graph this is called once, so it must not wait for the GPU.
        """

    def choose_in_place(self, logits: Tensor, values: Values, block: Block) -> bool:
        """The same for the next step of a block, where kernels can write into these values; False: they cannot."""


@dataclass(frozen=True)
class Prefilled:
    """Rows that are ready to be continued."""

    logits: Tensor                     # (B, V) of the token after each prompt
    state: State
    held: NDArray[np.int64]            # (B,) tokens that each state holds
    capacity: int | None               # tokens that a state can hold; None: no limit
    tail: Tensor | None = None         # (B, K) the last tokens, with which a row can be prefilled again

    def repeat(self, times: int) -> "Prefilled":
        """Each row `times` times, one after the other."""
        rows = torch.arange(len(self.logits), device=self.logits.device).repeat_interleave(times)
        tail = None if self.tail is None else pick(self.tail, rows)
        held = self.held.repeat(times)
        return Prefilled(pick(self.logits, rows), pick(self.state, rows), held, self.capacity, tail)


def prefill_prompts(model: LanguageModel, prompts: Sequence[Tokens], *, together: bool = False) -> Prefilled:
    """After a boundary and each prompt, or as much of its end as the context holds.

    `together`: prompts of one length are read in one call, which is faster; then the last digits of a row may depend
    on the others.
    """
    texts = [np.append(BOUNDARY, prompt).astype(np.int64)[-(model.context or 0) :] for prompt in prompts]
    logits, state = _prefill_each(model, texts, together)
    tail = None
    if model.context is not None:
        tail = on_device(model, _right_aligned([text[-_kept(model.context) :] for text in texts], _kept(model.context)))
    return Prefilled(logits, state, np.array([len(text) for text in texts]), model.context, tail)


def prefill_source(model: LanguageModel, source: Tensor, lengths: Tensor | None) -> Prefilled:
    """After each source and the boundary that begins its text."""
    device, rows = device_of(model), len(source)
    start = model.start(rows, source.to(device), None if lengths is None else lengths.to(device))
    logits, state = model.step(torch.full((rows, 1), BOUNDARY, device=device), start)
    return Prefilled(logits[:, -1], state, np.ones(rows, np.int64), model.max_tokens(source))


class DecodeLoop:
    """Texts that grow by one token in each step: the model's state, and the values that a strategy keeps.

    `settings`: all that the strategy's choice depends on beside its values and inputs. With them, a captured step is
    kept with the model when the loop is closed, and the next loop with the same settings goes on with it.
    """

    def __init__(self, model: LanguageModel, prefilled: Prefilled, strategy: Strategy, settings: Hashable = None):
        self.model, self.strategy, self.settings = model, strategy, settings
        self.logits: Tensor | None = prefilled.logits      # (B, V) until the first step has used them
        self.values: Values = {"state": prefilled.state, **strategy.begin(prefilled.logits)}
        self.held, self.capacity = prefilled.held.copy(), prefilled.capacity
        self.tail = None if prefilled.tail is None else [prefilled.tail]
        self.graph: CapturedStep | None = None
        self.key: kept_steps.Key | None = None          # under which the graph is kept
        self.replays = 0                                   # that the graph is still good for
        self.room = 0                                      # tokens that a row may have in its memory
        self.capturable = can_capture(prefilled.logits)
        self.use_kernels = False

    def next_tokens(self, inputs: Tensor, left: int) -> Tensor:
        """(T, …) inputs of as many steps -> (T, B) tokens. At most `left` steps follow, these included."""
        parts: list[Tensor] = []
        step = 0
        while step < len(inputs):
            if self.replaying:
                parts.append(self._replay(inputs[step : step + SYNC_EVERY]))
            else:
                parts.append(self._run(inputs[step], left - step)[None])
            step += len(parts[-1])
            if self.tail is not None:
                self.tail.append(parts[-1].T)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def next_token(self, inputs: Tensor, left: int) -> Tensor:
        """(B,): the next token of each row. At most `left` steps follow, this one included."""
        return self.next_tokens(inputs[None], left)[0]

    @property
    def replaying(self) -> bool:
        """Whether the next step is a replay of the graph."""
        return self.graph is not None and self.replays > 0 and self.logits is None

    def select(self, rows: Tensor) -> None:
        """Goes on with these rows only. The strategy must not reorder them."""
        self.values, self.held = pick(self.values, rows), self.held[rows.cpu().numpy()]
        self.tail = None if self.tail is None else [pick(part, rows) for part in self.tail]
        self.graph, self.replays = None, 0

    def restart(self, prefilled: Prefilled, strategy: Strategy) -> None:
        """Begins other texts, by the same rule. If they fit into the memory of these, the CUDA graph is used again,
        although the model's weights may have changed: it reads them where they are."""
        state, self.replays = prefilled.state, 0
        if self.graph is not None and _fits(state, self.graph.values["state"]):
            copy_into(self.graph.values["state"], state)
            state, self.replays = self.graph.values["state"], max(0, self.room - int(prefilled.held.max()))
        else:
            self.graph = None
        self.strategy, self.logits = strategy, prefilled.logits
        self.values = {"state": state, **strategy.begin(prefilled.logits)}
        self.held, self.capacity = prefilled.held.copy(), prefilled.capacity
        self.tail = None if prefilled.tail is None else [prefilled.tail]

    def close(self) -> None:
        """The loop is not used any more: its graph is kept for the next one."""
        if self.graph is not None and self.key is not None:
            kept_steps.keep(self.model, self.key, self.graph)
        self.graph, self.key, self.replays = None, None, 0

    def _run(self, inputs: Tensor, left: int) -> Tensor:
        """A step without a graph, and the capture of those that follow; or the first step of a graph that was kept."""
        steps = self._steps_of_one_shape(left)
        if steps >= MIN_STEPS:
            self.graph = None                              # and with it the memory in which it worked
            self.values["state"] = self.model.reserve(self.values["state"], steps)
            if self.settings is not None and self._take_kept(inputs, steps):
                return self._replay(inputs[None])[0]
        with kernels.in_decoding(self.use_kernels):
            return self._capture(inputs, steps) if steps >= MIN_STEPS else self._first_or_next(inputs)

    def _first_or_next(self, inputs: Tensor) -> Tensor:
        if self.logits is not None:                        # of the prefill
            logits, state, self.logits = self.logits, self.values["state"], None
        else:
            full = np.zeros(len(self.held), bool) if self.capacity is None else self.held == self.capacity
            logits, state = self._prefill_again(full) if full.any() else self._forward(self.values)
            self.held = np.where(full, _kept(self.capacity), self.held + 1)
        self.values = {"state": state, **self.strategy.choose(logits, self.values, inputs)}
        tokens: Tensor = self.values["tokens"]
        if self.graph is not None and self.replays:        # after a restart the graph goes on from here
            self.graph.load(self.values)
            self.values = self.graph.values
        return tokens

    def _forward(self, values: Values) -> tuple[Tensor, State]:
        """(B, V) logits after the last token of each row, and the state that holds it."""
        state = values["state"]
        if self.strategy.reorders:
            state = pick(state, values["parents"])
        logits, state = self.model.step(values["tokens"][:, None], state)
        return logits[:, -1], state

    def _prefill_again(self, full: NDArray[np.bool_]) -> tuple[Tensor, State]:
        """Rows whose context is full begin again with the last half of it; the others go on."""
        assert self.tail is not None                       # without one, the caller stops at the capacity
        self.tail = [torch.cat(self.tail, 1)[:, -_kept(self.capacity) :]]
        again, others = torch.from_numpy(np.flatnonzero(full)), torch.from_numpy(np.flatnonzero(~full))
        parts = [prefill(self.model, pick(self.tail[0], again))]
        if len(others):
            parts.append(self._forward(pick({name: self.values[name] for name in ("tokens", "state")}, others)))
        return _together(parts, torch.cat([again, others]).argsort())

    # CUDA graphs

    def _steps_of_one_shape(self, left: int) -> int:
        """How many steps can run, from this one on, without another shape of the state; 0: none are captured."""
        self.use_kernels = False
        if not self.capturable or self.logits is not None:
            return 0
        steps = left if self.capacity is None else min(left, self.capacity - int(self.held.max()))
        self.use_kernels = kernels.worthwhile(steps)
        if self.use_kernels and steps * self._step_bytes() <= ALWAYS_RESERVED and not self.strategy.reorders:
            return steps
        return min(steps, self._reserved())

    def _reserved(self) -> int:
        """Steps for which the state is reserved at a time."""
        if self.strategy.reorders:
            return RESERVED_REORDERED
        least, most = RESERVED
        if not self.use_kernels:
            return min(most, max(least, RESERVED_CELLS // len(self.held)))
        free, _ = torch.cuda.mem_get_info(self.values["tokens"].device)
        return max(least, int(FREE_SHARE * free / self._step_bytes()))

    def _step_bytes(self) -> float:
        """Bytes by which a step enlarges the state, at most."""
        return state_bytes(self.values["state"]) / max(1, int(self.held.max()))

    def _capture(self, inputs: Tensor, steps: int) -> Tensor:
        """The first of these steps, and the capture of the others."""
        values: Values = {**self.values, "tokens": self.values["tokens"].clone()}    # the caller has the others
        tokens, self.values, graph = run_and_capture(self._step, values, inputs, SYNC_EVERY, capture_step)
        self.held = self.held + 1
        if graph is None:
            self.capturable = False
        else:
            if self.key is not None:
                graph.storages = kept_steps.weak_references(self.model)
            self._go_on_with(graph, steps - 1)
        return tokens

    def _step(self, values: Values, block: Block) -> Values:
        logits, state = self._forward(values)
        if self.strategy.choose_in_place(logits, values, block):
            return {**values, "state": state}
        after = {"state": state, **self.strategy.choose(logits, values, block.inputs())}
        block.write(after["tokens"])
        return after

    def _take_kept(self, inputs: Tensor, steps: int) -> bool:
        """Whether a graph of an earlier loop goes on from here."""
        try:
            self.key = kept_steps.key_of(self.model, (self.settings, self.use_kernels), inputs, self.values)
            kept = None if self.key is None else kept_steps.take(self.model, self.key, self.values)
            if kept is not None:
                kept.load(self.values)
        except RuntimeError as error:
            say(f"the captured step of the last call is not used again: {' '.join(str(error).split())}")
            self.settings = self.key = None
            return False
        if kept is not None:
            self._go_on_with(kept, steps)
        return kept is not None

    def _go_on_with(self, graph: CapturedStep, steps: int) -> None:
        self.graph, self.values = graph, graph.values
        self.replays, self.room = steps, int(self.held.max()) + steps

    def _replay(self, inputs: Tensor) -> Tensor:
        """(T, …) -> (T, B), of as many steps as the graph is still good for."""
        assert self.graph is not None
        inputs = inputs[: self.replays]
        self.held += len(inputs)
        self.replays -= len(inputs)
        return self.graph.replay(inputs)


def can_capture(tensor: Tensor) -> bool:
    """Whether steps on the device of this tensor can be captured as CUDA graphs."""
    return tensor.is_cuda


def capture_step(
    step: Callable[[], Iterable[Tensor]], inputs: Iterable[Tensor], state: Iterable[Tensor]
) -> CudaGraph | None:
    """A graph of a step; None where the model waits for its device in the midst of a step."""
    try:
        return CudaGraph(step, inputs, state, tidy=False)
    except RuntimeError:
        return None


def _fits(state: State, into: State) -> bool:
    """Whether a state can be copied into another one: its tensors have as many rows and are at most as large."""
    pairs = list(zip(tensors(state), tensors(into), strict=True))
    return all(
        new.dim() == static.dim() and len(new) == len(static) and all(map(int.__le__, new.shape, static.shape))
        for new, static in pairs
    )


def copy_into(static: State, state: State) -> None:
    """Where a tensor is smaller, what comes after it keeps old values, which are masked as unused capacity is."""
    for old, new in zip(tensors(static), tensors(state), strict=True):
        old[tuple(slice(size) for size in new.shape)] = new


def sync_every(device: torch.device) -> int:
    """Steps between two questions of the host to the device: a GPU should not wait for the answer after each."""
    return 1 if device.type == "cpu" else SYNC_EVERY


def _kept(context: int | None) -> int:
    """Tokens with which a full row begins again."""
    return max(1, (context or 0) // 2)


def _prefill_each(
    model: LanguageModel, texts: Sequence[NDArray[np.int64]], together: bool = False
) -> tuple[Tensor, State]:
    """(B, V): what follows each text, and the states, in which they go on together. Equal texts are read once."""
    different = list({text.tobytes(): text for text in texts}.values())
    calls = [[text] for text in different]
    if together:
        calls = [list(same) for _, same in groupby(sorted(different, key=len), key=len)]
    parts = [prefill(model, on_device(model, np.stack(call))) for call in calls]
    if len(texts) == 1:
        return parts[0]
    place = {text.tobytes(): index for index, text in enumerate(chain.from_iterable(calls))}
    return _together(parts, torch.tensor([place[text.tobytes()] for text in texts]))


def _together(parts: Sequence[tuple[Tensor, State]], rows: Tensor) -> tuple[Tensor, State]:
    """Logits and states of several calls as those of one, with the rows in the order given."""
    return pick(torch.cat([logits for logits, _ in parts]), rows), pick(join([state for _, state in parts]), rows)


def _right_aligned(texts: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    rows = np.zeros((len(texts), width), np.int64)
    for row, text in zip(rows, texts):
        row[width - len(text) :] = text
    return rows
