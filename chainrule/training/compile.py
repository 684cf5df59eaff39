"""How steps are run: as written, through torch.compile, or as one CUDA graph. The same sums, more or less quickly.

torch.compile takes half a minute to begin with, so `auto` first measures how long training will be. A CUDA graph
repeats a step with a single launch, so `auto` takes it where a step is so short that launching its kernels is the work;
batches of another shape need a graph of their own. Both are for GPUs; on a CPU a step is run as written unless
compile=true. Of several ranks `auto` captures none: what they do together would have to be captured together. Where
training lasts longer than a moment, a GPU does parts of a Transformer's step together, by kernels of our own
(layers/norm.py).
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from chainrule import kernels
from chainrule.device import undisturbed
from chainrule.errors import UserError
from chainrule.kernels.compiling import compiled
from chainrule.model import Batch, State, map_state, tensors
from chainrule.progress import say
from chainrule.recipe import Gradient
from chainrule.training.step import Step

WARM = 12               # steps before anything is decided
AGAIN = 3               # steps between compiling and capturing, so that what is captured is warm
LONG = 300.0            # seconds of training that repay torch.compile
REPAID = 20.0           # and those that repay kernels of our own
SHORT = 0.05            # seconds of a step that a graph may shorten
LIKE = 3.0              # times that gradients of the same batch may differ in length
MOST = 64               # graphs, each of another shape of batch
AHEAD = 4               # steps that may wait on the GPU, so that the clock here is the clock there


class Engine:
    def __init__(self, step: Step, settings: Gradient, seconds_left: Callable[[float], float]):
        self.step, self.settings = step, settings
        self.seconds_left = seconds_left                   # of training, if a step takes so many seconds
        self.on_gpu = step.totals.is_cuda
        self.taken, self.began, self.capture_at = 0, 0.0, math.inf
        self.graphs: dict[Shapes, Graph] = {}
        self.waiting: deque[Any] = deque()
        if settings.graph == "true" and not self.on_gpu:
            say("train.graph=true: CUDA graphs are for GPUs; on this device steps are run as written.")

    def take(self, batch: Batch, state: State) -> State:
        """One step, as `Step.take`."""
        if self.taken == 0 and self.settings.compile == "true":
            self._join()
            self._compile(batch, state)
        if self.on_gpu and self.taken <= WARM:
            self._decide(batch, state)
        graph = self._graph(batch, state)
        state = self.step.take(batch, state) if graph is None else graph.take(batch, state)
        self.taken += 1
        if self.on_gpu:
            self._wait_a_little()
        return state

    def _decide(self, batch: Batch, state: State) -> None:
        if self.taken == 2:
            torch.cuda.synchronize()
            self.began = time.monotonic()
        if self.taken == WARM:
            torch.cuda.synchronize()
            (seconds,), _ = self.step.ranks.agree([(time.monotonic() - self.began) / (WARM - 2)])
            if self.seconds_left(seconds) > REPAID:
                self._join()
            if self.settings.compile == "auto" and self.step.model.compiles and self.seconds_left(seconds) > LONG:
                self._compile(batch, state)
            short = seconds < SHORT and not self.step.ranks.together
            if self.settings.graph == "true" or (self.settings.graph == "auto" and short):
                self.capture_at = self.taken + AGAIN

    def _join(self) -> None:
        """From here on parts of a step are done together, where there are kernels for it."""
        self.step.joined = self.on_gpu and kernels.work()

    def _graph(self, batch: Batch, state: State) -> "Graph | None":
        """The graph of this step, if it is to be one."""
        fresh = state is None and self.step.carries        # the beginning of a text: a graph goes on from a state
        if self.taken < self.capture_at or fresh:
            return None
        shapes = shapes_of(batch)
        if shapes not in self.graphs and len(self.graphs) < MOST:
            self._capture(batch, state)
        return self.graphs.get(shapes)

    def _compile(self, batch: Batch, state: State) -> None:
        """A trial shows whether it works, and whether a gradient comes back that is about as long as without."""
        say("compiling the model, which takes half a minute (train.compile=false goes without)")
        wanted = self.step.length_of_gradient(batch, state)
        self.step.loss = compiled(self.step.model.loss)
        try:
            length = self.step.length_of_gradient(batch, state)
            if not wanted / LIKE <= length <= wanted * LIKE:    # dropout makes them differ
                raise RuntimeError(f"the length of its gradient is {length:.3g}, and should be about {wanted:.3g}")
        except Exception as error:
            if self.settings.compile == "true":
                raise UserError(f"train.compile=true: torch.compile cannot do this: {_reason(error)}") from error
            say(f"torch.compile cannot do this model here, so it runs as written: {_reason(error)}")
            self.step.loss = self.step.model.loss

    def _capture(self, batch: Batch, state: State) -> None:
        first = next(iter(self.graphs.values()), None)
        try:
            self.graphs[shapes_of(batch)] = Graph(self.step, batch, state, first)
            if first is None:
                say("steps are short, so from here on each is one CUDA graph (train.graph=false goes without)")
        except RuntimeError as error:
            self.capture_at = math.inf
            if self.settings.graph == "true":
                raise UserError(f"train.graph=true: this model cannot be captured: {_reason(error)}") from error
            say(f"no CUDA graph for this model, so its steps run as written: {_reason(error)}")

    def _wait_a_little(self) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.waiting.append(event)
        if len(self.waiting) > AHEAD:
            self.waiting.popleft().synchronize()


Shapes: TypeAlias = tuple[tuple[str, torch.Size], ...]


def shapes_of(batch: Batch) -> Shapes:
    return tuple((name, tensor.shape) for name, tensor in batch.tensors().items())


class Graph:
    """A step as one CUDA graph: what it reads lies in fixed places, and the state it leaves goes back to its own.

    Graphs run one after another, so that they can share the memory in which they work.
    """

    def __init__(self, step: Step, batch: Batch, state: State, other: "Graph | None" = None):
        self.step, self.batch = step, batch.map(Tensor.clone)
        self.state = map_state(state, lambda tensor: tensor.detach().clone()) if step.carries else None
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        pool = other.graph.pool() if other else None
        with undisturbed(), torch.cuda.graph(self.graph, pool=pool):
            totals, after = step.accumulate(self.batch, self.state)
            step.change(totals)
            self._keep(after)

    def take(self, batch: Batch, state: State) -> State:
        for kept, new in zip(self.batch.tensors().values(), batch.tensors().values(), strict=True):
            kept.copy_(new)
        if state is not self.state:                        # it comes from a step outside the graph
            self._keep(state)
        self.graph.replay()
        return self.state

    def _keep(self, state: State) -> None:
        if self.step.carries:
            for kept, new in zip(tensors(self.state), tensors(state), strict=True):
                kept.copy_(new)


def _reason(error: Exception) -> str:
    """In one line: the first that does not only announce the next."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)
