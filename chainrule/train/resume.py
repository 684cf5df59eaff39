"""All that decides the next step, into a checkpoint and back: weights, optimizer, streams, chance, best weights.

Streams are those of all ranks, so that any number of ranks can go on from them; chance is each rank's own.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chainrule.model import changed, tensors
from chainrule.train.checkpoint import Checkpoint
from chainrule.train.meter import Told
from chainrule.train.validation import Seen

if TYPE_CHECKING:
    from chainrule.train.gradient import Training

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
    return changed(training.model.start(1), lambda _: next(values))


def _chance(device: torch.device) -> dict[str, Tensor]:
    chance = {"cpu": torch.get_rng_state()}
    return chance | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_chance(chance: dict[str, Tensor], rank: int, device: torch.device) -> None:
    """A rank that was not there when the checkpoint was written keeps its own."""
    if rank < len(chance["cpu"]):
        torch.set_rng_state(chance["cpu"][rank].clone())    # torch reads from where the storage begins
        if "cuda" in chance and device.type == "cuda":
            torch.cuda.set_rng_state(chance["cuda"][rank].clone(), device)
