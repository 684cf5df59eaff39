"""Learning by gradient: likelihood raised by automatic differentiation and mini-batch descent.

    between steps: look at the validation text if due, stop if asked, write a checkpoint if due; then one step; again

All that decides the next step is in every checkpoint, so after a kill the same command goes on as if nothing had
happened: on a CPU to the last bit, unless the budget is the clock. Ranks go by the first one's clock and stop as one.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chainrule.model import map_state, tensors
from chainrule.training.checkpoint import Checkpoint
from chainrule.training.log import Told
from chainrule.training.validation import Seen

if TYPE_CHECKING:
    pass
import math
import time
from dataclasses import dataclass

from chainrule.device import choose_precision
from chainrule.errors import UserError
from chainrule.inference.gradients import gradients_by_time
from chainrule.model import State
from chainrule.progress import bar, short
from chainrule.recipe import Gradient
from chainrule.run import Done
from chainrule.text.corpus import Corpus
from chainrule.training.checkpoint import Checkpoints
from chainrule.training.compile import StepRunner
from chainrule.training.data import feed_of
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.interrupt import Stop, listen
from chainrule.training.log import RECORDS, Board, Log, Meter, open_board
from chainrule.training.param_groups import Optimizers
from chainrule.training.schedule import LOOKS, make_budget, make_looks, rate
from chainrule.training.step import Step
from chainrule.training.validation import Validation

# All that decides the next step, into a checkpoint and back: weights, optimizer, streams, chance, best weights.
#
# Streams are those of all ranks, so that any number of ranks can go on from them; chance is each rank's own.

Parts = dict[str, Mapping[str, Tensor]]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and the buffers that are saved with them, each under its first name."""
    every = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(every.items())}
    return {name: tensor.detach() for name, tensor in every.items() if first[id(tensor)] == name}


def pack(training: "Training") -> tuple[dict[str, Any], Parts]:
    """Facts and tensors of a checkpoint."""
    facts = {
        "step": training.number,
        "seconds": training.now.seconds,
        "rows": training.step.rows,
        "seen": asdict(training.validation.seen),
        "told": asdict(training.meter.told),
        "log": training.log.records,
    }
    rows, ranks = training.feed.rows, training.ranks
    state = [] if training.state is None else list(tensors(training.state))
    return facts, {
        "model": training.weights,
        "optimizer": training.optimizers.tensors(),
        "state": {str(place): ranks.gather(tensor, rows) for place, tensor in enumerate(state)},
        "best": training.validation.best,
        "sums": {"totals": training.step.totals},
        "chance": {name: ranks.gather(own[None], ranks.size) for name, own in _chance(training.device).items()},
    }


@torch.no_grad()
def unpack(training: "Training", checkpoint: Checkpoint) -> None:
    """Puts `training` where it was when the checkpoint was packed."""
    facts, device = checkpoint.facts, training.device
    training.number = training.kept = facts["step"]
    training.earlier, training.step.rows = facts["seconds"], min(facts["rows"], training.step.rows)
    training.validation.seen, training.meter.told = Seen(**facts["seen"]), Told(**facts["told"])
    training.log.records[:] = facts["log"]
    for name, tensor in checkpoint.part("model").items():
        training.weights[name].copy_(tensor)
    training.optimizers.load(checkpoint.part("optimizer"))
    training.validation.best = {name: tensor.to(device) for name, tensor in checkpoint.part("best").items()}
    training.step.start_from(training.number, checkpoint.part("sums")["totals"])
    training.state = _state(training, checkpoint.part("state"))
    _set_chance(checkpoint.part("chance"), training.ranks.rank, device)


def _state(training: "Training", parts: dict[str, Tensor]) -> Any:
    """The state of this rank's streams, which has the form of any other."""
    if not parts:
        return None
    mine = torch.from_numpy(training.feed.mine)
    values = (parts[str(place)][mine].to(training.device) for place in range(len(parts)))
    return map_state(training.model.start(1), lambda _: next(values))


def _chance(device: torch.device) -> dict[str, Tensor]:
    chance = {"cpu": torch.get_rng_state()}
    return chance | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_chance(chance: dict[str, Tensor], rank: int, device: torch.device) -> None:
    """A rank that was not there when the checkpoint was written keeps its own."""
    if rank < len(chance["cpu"]):
        torch.set_rng_state(chance["cpu"][rank].clone())    # torch reads from where the storage begins
        if "cuda" in chance and device.type == "cuda":
            torch.cuda.set_rng_state(chance["cuda"][rank].clone(), device)


PROBED = 8
"""Rows by which gradients are followed through time."""


class Diverged(UserError):
    """A gradient was not finite. The model is back at its last checkpoint, which `done` names, if there is one."""

    def __init__(self, line: str, done: Done):
        super().__init__(line)
        self.done = done


def descend(
    model: Any, corpus: Corpus, settings: Gradient, log: Log, done: Done, checkpoints: Checkpoints | None = None,
    ranks: Ranks = ALONE,
) -> Done:
    """Steps until the budget is spent or patience ends. Asked to stop, it keeps where it is and says it is not done."""
    training = Training(model, corpus, settings, log, checkpoints, ranks)
    training.begin()
    with listen() as stop:
        finished = training.run(stop) and training.look_at_the_end(stop)
    if finished:
        training.validation.settle()
    model.eval()
    return Done(training.number, finished, None if math.isnan(training.meter.nats) else training.meter.nats)


@dataclass(frozen=True)
class Moment:
    """What all ranks go by between two meetings."""

    seconds: float = 0.0      # of training, those of earlier sittings included
    tell: bool = False        # it is time to renew the bar's note
    keep: bool = False        # it is time for a checkpoint
    stop: bool = False        # somebody was asked to


class Training:
    def __init__(
        self, model: Any, corpus: Corpus, settings: Gradient, log: Log, checkpoints: Checkpoints | None = None,
        ranks: Ranks = ALONE,
    ):
        self.model, self.settings, self.log, self.checkpoints, self.ranks = model, settings, log, checkpoints, ranks
        self.weights = weights_of(model)
        self.device = next(iter(self.weights.values())).device
        self.feed = feed_of(corpus, settings, model.context, self.device, ranks)
        self.budget = make_budget(settings, self.feed.order.epoch, self.feed.targets)
        self.precision = choose_precision(settings.precision, self.device)
        self.optimizers = Optimizers(model, settings)
        rows = min(settings.micro_batch or len(self.feed.mine), len(self.feed.mine))
        carries = settings.batching == "streams"
        self.step = Step(model, self.optimizers, self.precision, settings.clip, rows, carries, ranks)
        self.runner = StepRunner(self.step, settings, self._seconds_left)
        looks = make_looks(settings, self.budget)
        self.validation = Validation(model, self.weights, corpus, settings, looks, self.precision, log, ranks)
        self.meter = Meter(model, corpus, log, self.device, self.precision.dtype, ranks.size)
        self.board: Board | None = None
        self.number = 0                                    # steps that are behind
        self.state: State = None                           # of the streams
        self.earlier, self.sat = 0.0, time.monotonic()     # seconds of earlier sittings, and when this one began
        self.kept, self.kept_at = 0, self.sat              # step and time of the last checkpoint
        self.news = True                                   # has anything happened since?
        self.now = Moment()

    def begin(self) -> None:
        """At the last checkpoint, or at the first step."""
        torch.manual_seed(self.ranks.seed(self.settings.seed))
        self.model.train()
        if self.settings.tensorboard and self.ranks.first:
            self.board = open_board(self.checkpoints.out if self.checkpoints else None)
        checkpoint = self.checkpoints.last(self.weights) if self.checkpoints else None
        if checkpoint is not None:
            unpack(self, checkpoint)
            self.news = False
            self.log("resume", f"going on from step {self.number}", step=self.number)
        else:
            self._introduce()
        self.ranks.refuse_unlike("last checkpoint", str(self.number))
        self.meter.start(self.step.read().targets)

    def run(self, stop: Stop) -> bool:
        """Whether it came to its end."""
        steps = self.budget.steps
        total = None if steps is None else (steps - self.number) * self.feed.targets
        with bar("training", total, f"{self.meter.target}s") as advance:
            self.meet(stop)
            while not self._over():
                if not self.now.stop and self.validation.due(self.number, self._share()):
                    self._read()
                    self._look(self._share(), stop)
                    self.meter.start(self.meter.targets)
                elif self.now.stop:
                    if self.news:
                        self.keep()
                    return False
                elif self.number > self.kept and self.now.keep:
                    self.keep()
                else:
                    self.one_step()
                    advance(self.feed.targets, self.meter.note + self._clock())
                self.meet(stop)
        self._read()
        return True

    def look_at_the_end(self, stop: Stop) -> bool:
        """The last weights may be the best. False: asked to stop meanwhile."""
        if not self.validation.best or self.validation.seen.step == self.number:
            return True
        self._look(1.0, stop)
        self.meet(stop)
        if self.now.stop:
            self.keep()
        return not self.now.stop

    def _look(self, share: float, stop: Stop) -> None:
        self.news = True
        self.validation.look(self.number, share, stop)

    def meet(self, stop: Stop) -> None:
        """Between steps: what all ranks go by until they meet again."""
        now = time.monotonic()
        mine = self.earlier + now - self.sat, self.meter.pulse(), now - self.kept_at >= self.settings.checkpoint
        (seconds, tell, keep), asked = self.ranks.agree(mine, stop.asked)
        self.now = Moment(seconds, bool(tell), bool(keep), asked)

    def one_step(self) -> None:
        before = self.state if self.feed.goes_on(self.number) else None
        self.optimizers.set_rate(self._rate())
        self.state = self.runner.take(self.feed.batch(self.number), before)
        self.number, self.news = self.number + 1, True
        if self.now.tell or self.meter.record_due(self._share()):
            self._read()

    def keep(self) -> None:
        """Write a checkpoint, unless a gradient has gone wrong since the last."""
        self._read()
        if self.checkpoints is not None:
            self.checkpoints.write(self.number, *pack(self))
        self.kept, self.kept_at, self.news = self.number, time.monotonic(), False
        self.meter.start(self.meter.targets)

    def _read(self) -> None:
        """Ask the device how the last steps went, and tell."""
        reading = self.step.read()
        if reading.trouble is not None:
            raise self._diverged(*reading.trouble)
        facts = self.meter.tell(reading, self.number, self._share(), self.settings.lr * self.optimizers.factor)
        if facts and self.board:
            self.board.add(facts)
        if facts and self.settings.gradients and self.meter.told.records % (RECORDS // LOOKS) == 0:
            by_layer = dict(zip(self.step.names, self.step.norms.tolist(), strict=True))
            by_time = gradients_by_time(self.model, self.feed.batch(self.number).rows(slice(PROBED)), self.precision)
            self.log("gradients", step=self.number, by_layer=by_layer, by_time=by_time)

    def _diverged(self, step: int, layer: str) -> Diverged:
        checkpoint = self.checkpoints.last(self.weights) if self.checkpoints else None
        where, again = "there is no checkpoint before it", ""
        if checkpoint is not None:
            unpack(self, checkpoint)
            where, again = f"the model is back at the checkpoint of step {self.number}", ", with --overwrite"
        return Diverged(
            f"step {step}: the gradient of {layer} is not finite; {where}. "
            f"A lower train.lr (it is {self.settings.lr:g}) or a lower train.clip helps{again}.",
            Done(self.number if checkpoint is not None else 0),
        )

    def _share(self) -> float:
        return self.budget.share(self.number, self.now.seconds)

    def _rate(self) -> float:
        """That of the step that comes next, taken at its middle."""
        return rate(self.settings, self.budget.share(self.number + 0.5, self.now.seconds))

    def _over(self) -> bool:
        return self._share() >= 1 or self.validation.gives_up()

    def _seconds_left(self, step: float) -> float:
        """If a step takes so many seconds."""
        if self.budget.steps is not None:
            return (self.budget.steps - self.number) * step
        return (self.budget.seconds or 0) - self.now.seconds

    def _clock(self) -> str:
        return "" if self.budget.seconds is None else f", {max(0, self._seconds_left(0)):.0f} s left"

    def _introduce(self) -> None:
        feed, steps = self.feed, self.budget.steps
        parameters = sum(parameter.numel() for parameter in self.step.parameters)
        until = f"{short(self.budget.seconds or 0)} s" if steps is None else f"{steps:,} steps"
        line = f"{short(parameters)} parameters, {until}, {feed.rows} rows of {feed.length} tokens, {self.precision}"
        self.log("descent", line, parameters=parameters, steps=steps, seconds=self.budget.seconds, rows=feed.rows,
                 length=feed.length, epoch=self.budget.epoch, precision=str(self.precision))
