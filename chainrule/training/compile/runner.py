"""Runs each training step in the fastest way: eagerly, by torch.compile, or as a CUDA graph; chosen by measurement.

A CUDA graph repeats a step with a single launch, which helps where launching its kernels takes longer than they run;
each shape of batch needs its own, so batches of examples are padded to a few shapes. torch.compile takes half a minute
for each shape, so it is tried only where training will be long. `auto` times a pass over one batch each way (trial.py)
and takes the fastest; an eager step would not be padded, so as much is taken off its time. Both are for GPUs: on a CPU
a step runs eagerly unless train.compile=true. With several ranks `auto` captures no graph, since their communication
would have to be captured too. On a GPU, fused kernels (chainrule/kernels) are used where training is long enough; on a
CPU that is known before the first step (cpu_kernels.py).
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from chainrule import kernels
from chainrule.errors import UserError, out_of_memory
from chainrule.kernels.ops import compiled
from chainrule.model import Batch, State
from chainrule.progress import say
from chainrule.recipe import Gradient
from chainrule.training.compile.step_graph import Shapes, StepGraph, shapes_of
from chainrule.training.compile.trial import pass_seconds
from chainrule.training.step import Step

WARMUP = 12             # steps before anything is decided
LONG = 300.0            # seconds of training that repay torch.compile
REPAID = 5.0            # seconds of training that repay our own kernels, which take one or two to compile
SHORT = 0.25            # seconds: for a longer step no graph is tried, since launching is a small part of it
FASTER = 0.97           # of the time of the way before: what is not faster than that is not taken
MOST_COMPILED = 2       # shapes of batch; with more of them torch.compile would compile too often
TOLERANCE = 3.0         # factor by which gradient norms of one batch may differ, since dropout is random
MAX_GRAPHS = 32         # one for each shape of batch
AHEAD = 4               # steps that may be queued on the GPU, so that the host's clock agrees with its progress


class PaddingLoader(Protocol):
    """A loader that pads batches to a few shapes for CUDA graphs (batch_shapes.py), for as long as any may be used."""

    @property
    def graph_padding(self) -> float: ...      # factor by which the tokens of a batch become more, on average

    def unpad(self) -> None: ...


class StepRunner:
    """Runs each step in the fastest way that is known to work for the model and the device."""

    def __init__(self, step: Step, settings: Gradient, seconds_left: Callable[[float], float], loader: PaddingLoader):
        self.step, self.settings, self.loader = step, settings, loader
        self.seconds_left = seconds_left                   # of training, if a step takes so many seconds
        self.on_gpu = step.totals.is_cuda
        self.taken, self.began = 0, 0.0
        self.decided = self.captures = False               # whether steps become graphs
        self.met: set[Shapes] = set()                      # shapes of steps that ran eagerly, as they will run
        self.graphs: dict[Shapes, StepGraph] = {}
        self.most_graphs = MAX_GRAPHS
        self.waiting: deque[Any] = deque()
        if settings.graph == "true" and not self.on_gpu:
            say("train.graph=true: CUDA graphs are for GPUs; on this device steps run eagerly.")

    def take(self, batch: Batch, state: State) -> State:
        """One step, as `Step.take`."""
        if self.taken == 0 and self.settings.compile == "true":
            self._use_kernels()
            self._compile(batch, state)
        if self.on_gpu and not self.decided:
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
        if self.taken >= WARMUP and not self._resets(state):
            torch.cuda.synchronize()
            (seconds,), _ = self.step.ranks.agree([(time.monotonic() - self.began) / (self.taken - 2)])
            self._choose(batch, state, seconds)
            if not self.captures:
                self.loader.unpad()
            self.decided = True
            self.met.clear()

    def _choose(self, batch: Batch, state: State, seconds: float) -> None:
        """Times the ways that may pay, where a step took so many seconds, and takes the fastest."""
        self.captures = self.settings.graph == "true"
        began, times = time.monotonic(), dict[str, float]()
        if self.settings.graph == "auto" and seconds < SHORT and not self.step.ranks.distributed:
            seconds *= self._try_graph(batch, state, times)
        if self.seconds_left(seconds) > REPAID:
            self._use_kernels()
        compiles = self.settings.compile == "auto" and self.step.model.compiles and len(self.met) <= MOST_COMPILED
        if compiles and self.seconds_left(seconds) > LONG:
            self._try_compiled(batch, state, times)
        if times:
            self._say_choice(times, time.monotonic() - began)

    def _try_graph(self, batch: Batch, state: State, times: dict[str, float]) -> float:
        """Takes graphs where they are faster; the factor by which the time of a step changes."""
        padded = self._seconds(batch, state)
        times["eagerly"] = eager = padded / self.loader.graph_padding      # without graphs nothing is padded for them
        if (replayed := self._graph_seconds(batch, state)) is not None:
            times["as a CUDA graph"], self.captures = replayed, replayed < FASTER * eager
        return min(times.values()) / padded

    def _try_compiled(self, batch: Batch, state: State, times: dict[str, float]) -> None:
        """Takes torch.compile where it is faster than what has been chosen, kernels included."""
        best = self._seconds(batch, state)
        times["as a CUDA graph" if self.captures else "eagerly"] = best
        if self._compile(batch, state):
            times["compiled"] = self._seconds(batch, state)
            if times["compiled"] >= FASTER * best:
                self.step.loss = self.step.eager_loss

    def _seconds(self, batch: Batch, state: State) -> float:
        (seconds,), _ = self.step.ranks.agree([pass_seconds(self.step, batch, state, self.captures)])
        return seconds

    def _graph_seconds(self, batch: Batch, state: State) -> float | None:
        try:
            return pass_seconds(self.step, batch, state, as_graph=True)
        except RuntimeError as error:
            if out_of_memory(error):
                torch.cuda.empty_cache()
                say("a CUDA graph of a step does not fit into the GPU's memory beside the model; steps run eagerly")
            else:
                say("this model waits for the GPU within a step, so no step can be a CUDA graph; steps run eagerly")
            return None

    def _say_choice(self, times: dict[str, float], seconds: float) -> None:
        measured = ", ".join(f"{1000 * each:.1f} ms {name}" for name, each in times.items())
        ways = ["compiled"] * (self.step.loss != self.step.eager_loss) + ["as CUDA graphs"] * self.captures
        say(f"one pass over a batch takes {measured}; steps run {' and '.join(ways) or 'eagerly'} from here on "
            f"(train.compile and train.graph choose without this trial, which took {seconds:.1f} s)")

    def _use_kernels(self) -> None:
        """From here on the fused kernels are used, where they work."""
        self.step.fused = self.on_gpu and kernels.available()

    def _resets(self, state: State) -> bool:
        """The beginning of the streams: a graph goes on from a state."""
        return state is None and self.step.carries

    def _graph(self, batch: Batch, state: State) -> "StepGraph | None":
        """The graph of this step, if there is or should be one: a shape is captured when it comes again."""
        shapes = shapes_of(batch)
        if not self.captures or self._resets(state) or shapes not in self.met:
            self.met.add(shapes)
            return None
        if shapes not in self.graphs and len(self.graphs) < self.most_graphs:
            self._capture(batch, state)
        return self.graphs.get(shapes)

    def _compile(self, batch: Batch, state: State) -> bool:
        """A trial shows whether it works, and whether the gradient norm is about that of the eager model."""
        say("compiling the model, which takes half a minute (train.compile=false turns this off)")
        expected = self.step.gradient_norm(batch, state)
        self.step.loss = compiled(self.step.eager_loss)
        try:
            norm = self.step.gradient_norm(batch, state)
            if not expected / TOLERANCE <= norm <= expected * TOLERANCE:
                raise RuntimeError(f"its gradient norm is {norm:.3g}, and should be about {expected:.3g}")
        except Exception as error:
            if self.settings.compile == "true":
                raise UserError(f"train.compile=true: torch.compile fails on this model: {_reason(error)}") from error
            say(f"torch.compile fails on this model, so it runs eagerly: {_reason(error)}")
            self.step.loss = self.step.eager_loss
            return False
        return True

    def _capture(self, batch: Batch, state: State) -> None:
        first = next(iter(self.graphs.values()), None)
        try:
            self.graphs[shapes_of(batch)] = StepGraph(self.step, batch, state, first)
            if first is None and self.settings.graph == "true":
                say("steps run as CUDA graphs from here on (train.graph=true)")
        except RuntimeError as error:
            self.most_graphs = len(self.graphs)            # those that there are go on
            if self.settings.graph == "true":
                raise UserError(f"train.graph=true: this model cannot be captured: {_reason(error)}") from error
            say(f"a step of {len(batch.tokens)} rows cannot be captured as a CUDA graph, so such steps run eagerly")

    def _limit_queue(self) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.waiting.append(event)
        if len(self.waiting) > AHEAD:
            self.waiting.popleft().synchronize()


def _reason(error: Exception) -> str:
    """The error in one line: the first that does not end with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)
