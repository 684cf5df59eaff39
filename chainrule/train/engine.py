"""How steps are run: as written, through torch.compile, or as one CUDA graph. The same sums, more or less quickly.

torch.compile takes half a minute to begin with, so `auto` first measures how long training will be. A CUDA graph
repeats a step with a single launch, so `auto` takes it where a step is so short that launching its kernels is the work.
Both are for GPUs; on a CPU a step is run as written unless compile=true.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import State, changed, tensors
from chainrule.progress import say
from chainrule.recipe import Gradient
from chainrule.train.step import Step

WARM = 12               # steps before anything is decided
AGAIN = 3               # steps between compiling and capturing, so that what is captured is warm
LONG = 300.0            # seconds of training that repay torch.compile
SHORT = 0.05            # seconds of a step that a graph may shorten
AHEAD = 4               # steps that may wait on the GPU, so that the clock here is the clock there


class Engine:
    def __init__(self, step: Step, settings: Gradient, seconds_left: Callable[[float], float]):
        self.step, self.settings = step, settings
        self.seconds_left = seconds_left                   # of training, if a step takes so many seconds
        self.on_gpu = step.totals.is_cuda
        self.taken, self.began, self.capture_at = 0, 0.0, math.inf
        self.graph: Graph | None = None
        self.waiting: deque[Any] = deque()
        if settings.graph == "true" and not self.on_gpu:
            say("train.graph=true: CUDA graphs are for GPUs; on this device steps are run as written.")

    def take(self, rows: Tensor, state: State) -> State:
        """One step, as `Step.take`."""
        if self.taken == 0 and self.settings.compile == "true":
            self._compile(rows, state)
        if self.on_gpu and self.graph is None:
            self._decide(rows, state)
        fresh = state is None and self.step.carries        # the beginning of a text: a graph goes on from a state
        state = self.step.take(rows, state) if self.graph is None or fresh else self.graph.take(rows, state)
        self.taken += 1
        if self.on_gpu:
            self._wait_a_little()
        return state

    def _decide(self, rows: Tensor, state: State) -> None:
        if self.taken == 2:
            torch.cuda.synchronize()
            self.began = time.monotonic()
        if self.taken == WARM:
            torch.cuda.synchronize()
            seconds = (time.monotonic() - self.began) / (WARM - 2)
            if self.settings.compile == "auto" and self.seconds_left(seconds) > LONG:
                self._compile(rows, state)
            if self.settings.graph == "true" or (self.settings.graph == "auto" and seconds < SHORT):
                self.capture_at = self.taken + AGAIN
        if self.taken >= self.capture_at and (state is not None or not self.step.carries):
            self._capture(rows, state)

    def _compile(self, rows: Tensor, state: State) -> None:
        """A trial shows whether it works; its gradients are forgotten."""
        say("compiling the model, which takes half a minute (train.compile=false goes without)")
        self.step.nats = torch.compile(self.step.model.nats)
        try:
            self.step.accumulate(rows, state)
        except Exception as error:
            if self.settings.compile == "true":
                raise UserError(f"train.compile=true: torch.compile cannot do this: {_first_line(error)}") from error
            say(f"torch.compile cannot do this model here, so it runs as written: {_first_line(error)}")
            self.step.nats = self.step.model.nats

    def _capture(self, rows: Tensor, state: State) -> None:
        self.capture_at = math.inf
        chance = torch.cuda.get_rng_state(rows.device)
        try:
            self.graph = Graph(self.step, rows, state)
            say("steps are short, so from here on each is one CUDA graph (train.graph=false goes without)")
        except RuntimeError as error:
            if self.settings.graph == "true":
                raise UserError(f"train.graph=true: this model cannot be captured: {_first_line(error)}") from error
            say(f"no CUDA graph for this model, so its steps run as written: {_first_line(error)}")
            _leave_capture(rows.device, chance)

    def _wait_a_little(self) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.waiting.append(event)
        if len(self.waiting) > AHEAD:
            self.waiting.popleft().synchronize()


class Graph:
    """A step as one CUDA graph: what it reads lies in fixed places, and the state it leaves goes back to its own."""

    def __init__(self, step: Step, rows: Tensor, state: State):
        self.step, self.rows = step, rows.clone()
        self.state = changed(state, lambda tensor: tensor.detach().clone()) if step.carries else None
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with step.optimizers.capturable(), torch.cuda.graph(self.graph):
            totals, after = step.accumulate(self.rows, self.state)
            step.change(totals)
            self._keep(after)

    def take(self, rows: Tensor, state: State) -> State:
        self.rows.copy_(rows)
        if state is not self.state:                        # it comes from a step outside the graph
            self._keep(state)
        self.graph.replay()
        return self.state

    def _keep(self, state: State) -> None:
        if self.step.carries:
            for kept, new in zip(tensors(self.state), tensors(state), strict=True):
                kept.copy_(new)


def _leave_capture(device: torch.device, chance: Tensor) -> None:
    """A capture that fails leaves the generator of chance as if it went on; so take another, at the same place."""
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    torch.cuda.set_rng_state(chance, device)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
