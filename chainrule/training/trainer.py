"""The gradient trainer: mini-batch gradient descent with evaluation, early stopping, checkpoints and exact resuming.

    between steps: evaluate if due, stop if requested, write a checkpoint if due; then one step; again

A batch is teacher-forced: the model reads the true text and predicts each next token. With train.batching=streams the
state goes on from step to step and the gradient is cut there (truncated BPTT). A checkpoint holds all that decides the
next step, so after a kill the same command goes on as if it had never stopped: on a CPU to the last bit, unless the
budget is the clock. All ranks follow the first one's clock and stop together.
"""

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.device import choose_precision, cudnn_attention, keep_freed_memory
from chainrule.errors import UserError
from chainrule.inference.analysis.gradients import gradients_by_time
from chainrule.model import Model, State, map_state, tensors
from chainrule.progress import bar, short
from chainrule.recipe import Gradient
from chainrule.run import Done
from chainrule.tasks.lm import LM
from chainrule.tasks.task import Task
from chainrule.text.corpus import Corpus
from chainrule.training.checkpoint import Checkpoint, Checkpoints
from chainrule.training.compile.cpu_kernels import use_cpu_kernels
from chainrule.training.compile.runner import StepRunner
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.interrupt import Stop, catch_signals
from chainrule.training.loader import TokenLoader, make_loader
from chainrule.training.log import RECORDS, Log, Logged, Meter, TensorBoard, log_findings, open_tensorboard
from chainrule.training.param_groups import Optimizers
from chainrule.training.schedule import MAX_EVALUATIONS, lr_factor, make_budget, make_evaluation_schedule
from chainrule.training.step import Step
from chainrule.training.validation import Evaluations, Validation

PROBED = 8
"""Rows of the batch by which gradients are followed back through time (train.gradients=true)."""


class Diverged(UserError):
    """A gradient was not finite. The model is back at its last checkpoint, which `done` names, if there is one."""

    def __init__(self, line: str, done: Done):
        super().__init__(line)
        self.done = done


def train_by_gradient(
    model: Model, corpus: Corpus, settings: Gradient, log: Log, done: Done, checkpoints: Checkpoints | None = None,
    ranks: Ranks = ALONE, task: Task = LM,
) -> Done:
    """Steps until the budget is spent or patience ends. If a stop is requested, it writes a checkpoint and returns."""
    trainer = Trainer(model, corpus, settings, log, checkpoints, ranks, task)
    if trainer.device.type == "cpu":
        keep_freed_memory()
    trainer.begin()
    with catch_signals() as stop, trainer.attention():
        finished = trainer.run(stop) and trainer.evaluate_at_the_end(stop)
    if finished:
        trainer.validation.restore_best()
        trainer.meter.log_experts(trainer.step.report())
        log_findings(log, ended=True)
    model.eval()
    return Done(trainer.number, finished, None if math.isnan(trainer.meter.nats) else trainer.meter.nats)


@dataclass(frozen=True)
class Agreement:
    """What all ranks have agreed on between two steps."""

    seconds: float = 0.0        # of training, those before a restart included
    refresh: bool = False       # it is time to refresh the progress bar's note
    checkpoint: bool = False    # it is time for a checkpoint
    stop: bool = False          # some rank was asked to stop


class Trainer:
    def __init__(
        self, model: Model, corpus: Corpus, settings: Gradient, log: Log, checkpoints: Checkpoints | None = None,
        ranks: Ranks = ALONE, task: Task = LM,
    ):
        self.model, self.settings, self.log, self.checkpoints, self.ranks = model, settings, log, checkpoints, ranks
        self.weights = weights_of(model)
        self.device = next(iter(self.weights.values())).device
        self.loader = make_loader(task, model, corpus, settings, self.device, ranks)
        self.budget = make_budget(settings, self.loader.order.epoch, self.loader.targets)
        self.precision = choose_precision(settings.precision, self.device)
        self.optimizers = Optimizers(model, settings)
        micro_batch = min(settings.micro_batch or len(self.loader.own), len(self.loader.own))
        carries = settings.batching == "streams"
        self.step = Step(
            model, self.optimizers, self.precision, settings.clip, micro_batch, carries, ranks, settings.r_drop
        )
        self.step.fused = use_cpu_kernels(model, settings, self.budget, self.loader.targets)
        self.runner = StepRunner(self.step, settings, self._seconds_left, self.loader)
        schedule = make_evaluation_schedule(settings, self.budget)
        self.validation = Validation(model, self.weights, corpus, settings, schedule, self.precision, log, ranks, task)
        self.meter = Meter(
            model, corpus, log, self.device, self.precision.dtype, self.loader.length, ranks.size, task
        )
        self.board: TensorBoard | None = None
        self.number = 0                                          # steps taken
        self.state: State = None                                 # of the streams, after the last step
        self.earlier, self.started = 0.0, time.monotonic()       # seconds before a restart; when this process began
        self.saved, self.saved_at = 0, self.started              # step and time of the last checkpoint
        self.dirty = True                                        # has anything happened since?
        self.now = Agreement()

    def begin(self) -> None:
        """At the last checkpoint, or at the first step."""
        torch.manual_seed(self.ranks.seed(self.settings.seed))
        self.model.train()
        if self.settings.tensorboard and self.ranks.first:
            self.board = open_tensorboard(self.checkpoints.out if self.checkpoints else None)
        checkpoint = self.checkpoints.last(self.weights) if self.checkpoints else None
        if checkpoint is not None:
            load_state(self, checkpoint)
            self.dirty = False
            self.log("resume", f"going on from step {self.number}", step=self.number)
        else:
            self._log_start()
        self.ranks.refuse_different("last checkpoint", str(self.number))
        self.meter.restart(self.step.report().targets)

    def attention(self) -> AbstractContextManager[None]:
        """Steps are taken inside: attention by cuDNN only where all batches have one shape."""
        return cudnn_attention(isinstance(self.loader, TokenLoader))

    def run(self, stop: Stop) -> bool:
        """The training loop; True: it came to its end."""
        steps = self.budget.steps
        total = None if steps is None else (steps - self.number) * self.loader.targets
        with bar("training", total, f"{self.meter.target}s") as advance:
            self.sync(stop)
            while not self._over():
                if not self.now.stop and self.validation.due(self.number, self._progress()):
                    self._report()
                    self._evaluate(self._progress(), stop)
                    self.meter.restart(self.meter.targets)
                elif self.now.stop:
                    if self.dirty:
                        self.checkpoint()
                    return False
                elif self.number > self.saved and self.now.checkpoint:
                    self.checkpoint()
                else:
                    self.one_step()
                    advance(self.loader.targets, self.meter.note + self._clock())
                self.sync(stop)
        self._report()
        return True

    def evaluate_at_the_end(self, stop: Stop) -> bool:
        """The last weights may be the best. False: a stop was requested meanwhile."""
        if not self.validation.best or self.validation.evaluations.step == self.number:
            return True
        self._evaluate(1.0, stop)
        self.sync(stop)
        if self.now.stop:
            self.checkpoint()
        return not self.now.stop

    def _evaluate(self, progress: float, stop: Stop) -> None:
        self.dirty = True
        self.validation.evaluate(self.number, progress, stop)

    def sync(self, stop: Stop) -> None:
        """Between steps: the ranks agree on the time and on what is due."""
        now = time.monotonic()
        own = (
            self.earlier + now - self.started, self.meter.note_due(), now - self.saved_at >= self.settings.checkpoint
        )
        (seconds, refresh, checkpoint), requested = self.ranks.agree(own, stop.requested)
        self.now = Agreement(seconds, bool(refresh), bool(checkpoint), requested)

    def one_step(self) -> None:
        before = self.state if self.loader.goes_on(self.number) else None
        self.optimizers.set_lr(self._lr_factor())
        self.state = self.runner.take(self.loader.batch(self.number), before)
        self.number, self.dirty = self.number + 1, True
        if self.now.refresh or self.meter.record_due(self._progress()):
            self._report()

    def checkpoint(self) -> None:
        """Writes a checkpoint, unless a gradient was not finite since the last."""
        self._report()
        if self.checkpoints is not None:
            self.checkpoints.write(self.number, *state_of(self))
        self.saved, self.saved_at, self.dirty = self.number, time.monotonic(), False
        self.meter.restart(self.meter.targets)

    def _report(self) -> None:
        """Reads the sums of the last steps from the device, and logs them where a record is due."""
        report = self.step.report()
        if report.not_finite is not None:
            raise self._diverged(*report.not_finite)
        facts = self.meter.update(report, self.number, self._progress(), self.settings.lr * self.optimizers.factor)
        if facts and self.board:
            self.board.add(facts)
        if facts:
            log_findings(self.log)
        if facts and self.settings.gradients and self.meter.logged.records % (RECORDS // MAX_EVALUATIONS) == 0:
            by_layer = dict(zip(self.step.names, self.step.norms.tolist(), strict=True))
            by_time = gradients_by_time(self.model, self.loader.batch(self.number).rows(slice(PROBED)), self.precision)
            self.log("gradients", step=self.number, by_layer=by_layer, by_time=by_time)

    def _diverged(self, step: int, layer: str) -> Diverged:
        checkpoint = self.checkpoints.last(self.weights) if self.checkpoints else None
        where, again = "there is no checkpoint before it", ""
        if checkpoint is not None:
            load_state(self, checkpoint)
            where, again = f"the model is back at the checkpoint of step {self.number}", ", with --overwrite"
        return Diverged(
            f"step {step}: the gradient of {layer} is not finite; {where}. "
            f"A lower train.lr (it is {self.settings.lr:g}) or a lower train.clip helps{again}.",
            Done(self.number if checkpoint is not None else 0),
        )

    def _progress(self) -> float:
        return self.budget.progress(self.number, self.now.seconds)

    def _lr_factor(self) -> float:
        """Of the next step, taken at its middle."""
        return lr_factor(self.settings, self.budget.progress(self.number + 0.5, self.now.seconds))

    def _over(self) -> bool:
        return self._progress() >= 1 or self.validation.out_of_patience()

    def _seconds_left(self, step: float) -> float:
        """If each step takes `step` seconds."""
        if self.budget.steps is not None:
            return (self.budget.steps - self.number) * step
        return (self.budget.seconds or 0) - self.now.seconds

    def _clock(self) -> str:
        return "" if self.budget.seconds is None else f", {max(0, self._seconds_left(0)):.0f} s left"

    def _log_start(self) -> None:
        loader, steps = self.loader, self.budget.steps
        parameters = sum(parameter.numel() for parameter in self.step.parameters)
        until = f"{short(self.budget.seconds or 0)} s" if steps is None else f"{steps:,} steps"
        line = f"{short(parameters)} parameters, {until}, {loader.rows} rows of {loader.length} tokens"
        self.log("descent", f"{line}, {self.precision}", parameters=parameters, steps=steps,
                 seconds=self.budget.seconds, rows=loader.rows, length=loader.length, epoch=self.budget.epoch,
                 precision=str(self.precision))


# Resuming: all that decides the next step goes into a checkpoint and back. The streams' state is that of all ranks, so
# that any number of ranks can go on from it; the state of the random generator is each rank's own.

Parts = dict[str, Mapping[str, Tensor]]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and the buffers that are saved with them, each under its first name."""
    every = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(every.items())}
    return {name: tensor.detach() for name, tensor in every.items() if first[id(tensor)] == name}


def state_of(trainer: Trainer) -> tuple[dict[str, Any], Parts]:
    """The facts and tensors of a checkpoint."""
    facts = {
        "step": trainer.number,
        "seconds": trainer.now.seconds,
        "micro_batch": trainer.step.micro_batch,
        "evaluations": asdict(trainer.validation.evaluations),
        "logged": asdict(trainer.meter.logged),
        "log": trainer.log.records,
    }
    rows, ranks = trainer.loader.rows, trainer.ranks
    state = [] if trainer.state is None else list(tensors(trainer.state))
    return facts, {
        "model": trainer.weights,
        "optimizer": trainer.optimizers.tensors(),
        "state": {str(place): ranks.gather(tensor, rows) for place, tensor in enumerate(state)},
        "best": trainer.validation.best,
        "sums": trainer.step.sums(),
        "order": trainer.loader.state(),
        "rng": {name: ranks.gather(own[None], ranks.size) for name, own in _rng_state(trainer.device).items()},
    }


@torch.no_grad()
def load_state(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Puts the trainer where it was when `state_of` was called."""
    facts, device = checkpoint.facts, trainer.device
    trainer.number = trainer.saved = facts["step"]
    trainer.earlier = facts["seconds"]
    trainer.step.micro_batch = min(facts["micro_batch"], trainer.step.micro_batch)
    trainer.validation.evaluations = Evaluations(**facts["evaluations"])
    trainer.meter.logged = Logged(**facts["logged"])
    trainer.log.records[:] = facts["log"]
    for name, tensor in checkpoint.part("model").items():
        trainer.weights[name].copy_(tensor)
    trainer.optimizers.load(checkpoint.part("optimizer"))
    trainer.validation.best = {name: tensor.to(device) for name, tensor in checkpoint.part("best").items()}
    trainer.step.start_from(trainer.number, checkpoint.part("sums"))
    trainer.loader.load(checkpoint.part("order"))
    trainer.state = _stream_state(trainer, checkpoint.part("state"))
    _set_rng_state(checkpoint.part("rng"), trainer.ranks.rank, device)


def _stream_state(trainer: Trainer, parts: dict[str, Tensor]) -> State:
    """The state of this rank's streams, in the form that `model.start` gives."""
    if not parts:
        return None
    own = torch.from_numpy(trainer.loader.own)
    values = (parts[str(place)][own].to(trainer.device) for place in range(len(parts)))
    model: Any = trainer.model                             # streams are for language models, which have a state
    return map_state(model.start(1), lambda _: next(values))


def _rng_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_rng_state(state: dict[str, Tensor], rank: int, device: torch.device) -> None:
    """A rank that did not exist when the checkpoint was written keeps its own."""
    if rank < len(state["cpu"]):
        torch.set_rng_state(state["cpu"][rank].clone())    # torch reads from where the storage begins
        if "cuda" in state and device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"][rank].clone(), device)
