"""torch.compile and CUDA graphs: a training step is run eagerly, compiled, or replayed as one graph, with equal sums.

torch.compile takes half a minute at first, so `auto` measures how long training will be. A CUDA graph repeats a step
with a single launch, so `auto` uses it where a step is so short that launching its kernels takes most of the time; each
shape of batch needs its own graph. Both are for GPUs: on a CPU a step runs eagerly unless train.compile=true. With
several ranks `auto` captures no graph, since their communication would have to be captured too. On a GPU, fused kernels
(chainrule/kernels) are used where training lasts long enough to repay compiling them.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from chainrule import kernels
from chainrule.device import CudaGraph
from chainrule.errors import UserError
from chainrule.kernels.ops import compiled
from chainrule.model import Batch, State, map_state, tensors
from chainrule.progress import say
from chainrule.recipe import Gradient
from chainrule.training.step import Step

WARMUP = 12             # steps before anything is decided
REWARM = 3              # steps between compiling and capturing, so that what is captured is warm
LONG = 300.0            # seconds of training that repay torch.compile
REPAID = 20.0           # seconds of training that repay our own kernels
SHORT = 0.05            # seconds: a step shorter than this may become a graph
TOLERANCE = 3.0         # factor by which gradient norms of one batch may differ, since dropout is random
MAX_GRAPHS = 64         # one for each shape of batch
AHEAD = 4               # steps that may be queued on the GPU, so that the host's clock agrees with its progress


class StepRunner:
    """Runs each step in the fastest way that is known to work for the model and the device."""

    def __init__(self, step: Step, settings: Gradient, seconds_left: Callable[[float], float]):
        self.step, self.settings = step, settings
        self.seconds_left = seconds_left                   # of training, if a step takes so many seconds
        self.on_gpu = step.totals.is_cuda
        self.taken, self.began, self.capture_at = 0, 0.0, math.inf
        self.graphs: dict[Shapes, StepGraph] = {}
        self.waiting: deque[Any] = deque()
        if settings.graph == "true" and not self.on_gpu:
            say("train.graph=true: CUDA graphs are for GPUs; on this device steps run eagerly.")

    def take(self, batch: Batch, state: State) -> State:
        """One step, as `Step.take`."""
        if self.taken == 0 and self.settings.compile == "true":
            self._use_kernels()
            self._compile(batch, state)
        if self.on_gpu and self.taken <= WARMUP:
            self._decide(batch, state)
        graph = self._graph(batch, state)
        state = self.step.take(batch, state) if graph is None else graph.take(batch, state)
        self.taken += 1
        if self.on_gpu:
            self._limit_queue()
        return state

    def _decide(self, batch: Batch, state: State) -> None:
        if self.taken == 2:
            torch.cuda.synchronize()
            self.began = time.monotonic()
        if self.taken == WARMUP:
            torch.cuda.synchronize()
            (seconds,), _ = self.step.ranks.agree([(time.monotonic() - self.began) / (WARMUP - 2)])
            if self.seconds_left(seconds) > REPAID:
                self._use_kernels()
            if self.settings.compile == "auto" and self.step.model.compiles and self.seconds_left(seconds) > LONG:
                self._compile(batch, state)
            short = seconds < SHORT and not self.step.ranks.distributed
            if self.settings.graph == "true" or (self.settings.graph == "auto" and short):
                self.capture_at = self.taken + REWARM

    def _use_kernels(self) -> None:
        """From here on the fused kernels are used, where they work."""
        self.step.fused = self.on_gpu and kernels.available()

    def _graph(self, batch: Batch, state: State) -> "StepGraph | None":
        """The graph of this step, if there is or should be one."""
        reset = state is None and self.step.carries        # the beginning of the streams: a graph goes on from a state
        if self.taken < self.capture_at or reset:
            return None
        shapes = shapes_of(batch)
        if shapes not in self.graphs and len(self.graphs) < MAX_GRAPHS:
            self._capture(batch, state)
        return self.graphs.get(shapes)

    def _compile(self, batch: Batch, state: State) -> None:
        """A trial shows whether it works, and whether the gradient norm is about that of the eager model."""
        say("compiling the model, which takes half a minute (train.compile=false turns this off)")
        expected = self.step.gradient_norm(batch, state)
        self.step.loss = compiled(self.step.model.loss)
        try:
            norm = self.step.gradient_norm(batch, state)
            if not expected / TOLERANCE <= norm <= expected * TOLERANCE:
                raise RuntimeError(f"its gradient norm is {norm:.3g}, and should be about {expected:.3g}")
        except Exception as error:
            if self.settings.compile == "true":
                raise UserError(f"train.compile=true: torch.compile fails on this model: {_reason(error)}") from error
            say(f"torch.compile fails on this model, so it runs eagerly: {_reason(error)}")
            self.step.loss = self.step.model.loss

    def _capture(self, batch: Batch, state: State) -> None:
        first = next(iter(self.graphs.values()), None)
        try:
            self.graphs[shapes_of(batch)] = StepGraph(self.step, batch, state, first)
            if first is None:
                say("steps are short, so from here on each is one CUDA graph (train.graph=false turns this off)")
        except RuntimeError as error:
            self.capture_at = math.inf
            if self.settings.graph == "true":
                raise UserError(f"train.graph=true: this model cannot be captured: {_reason(error)}") from error
            say(f"no CUDA graph for this model, so its steps run eagerly: {_reason(error)}")

    def _limit_queue(self) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.waiting.append(event)
        if len(self.waiting) > AHEAD:
            self.waiting.popleft().synchronize()


Shapes: TypeAlias = tuple[tuple[str, torch.Size], ...]


def shapes_of(batch: Batch) -> Shapes:
    return tuple((name, tensor.shape) for name, tensor in batch.tensors().items())


class StepGraph:
    """A training step as a CUDA graph: it copies the batch in, and the state of the streams stays in its memory."""

    def __init__(self, step: Step, batch: Batch, state: State, other: "StepGraph | None" = None):
        self.step, self.batch = step, batch.map(Tensor.clone)
        self.state = map_state(state, lambda tensor: tensor.detach().clone()) if step.carries else None
        share, inputs = other.graph if other else None, self.batch.tensors().values()
        self.graph: CudaGraph = CudaGraph(self._run, inputs, self._tensors(self.state), share=share)

    def take(self, batch: Batch, state: State) -> State:
        if state is not self.state:                        # it comes from a step outside the graph
            self.graph.set_state(self._tensors(state))
        self.graph.replay(batch.tensors().values())
        return self.state

    def _run(self) -> Iterable[Tensor]:
        totals, after = self.step.accumulate(self.batch, self.state)
        self.step.update(totals)
        return self._tensors(after)

    def _tensors(self, state: State) -> Iterable[Tensor]:
        return tensors(state) if self.step.carries else ()


def _reason(error: Exception) -> str:
    """The error in one line: the first that does not end with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)
