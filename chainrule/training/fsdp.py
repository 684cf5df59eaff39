"""FSDP2: each rank holds a share of every weight, of its gradient, and of what the optimizer remembers of it.

It is put on from outside (`train.shard=true`), layer by layer: a layer is whole only while it is at work. On the way
back gradients are added over ranks and shared out, micro-batch by micro-batch, so that nothing whole is kept.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from chainrule.layers.attention import CrossAttention

if TYPE_CHECKING:    # importing them takes a second, which runs without shards need not spend
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

CALLED = ("loss", "start", "step", "score")
"""What others call of a model. Each of them finds the weights outside its layers whole."""


def shard(model: nn.Module, device: torch.device) -> nn.Module:
    """The same model on all ranks, as one of which each has a share."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    warnings.filterwarnings("ignore", "FSDP2-wrapped module")    # of outputs that are changed in place; nobody does
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, CrossAttention):             # it reads the source before its layer is at work, so what
            fully_shard(module.memory, mesh=mesh)          # reads must be made whole by itself
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for layer in (layer for layers in reversed(lists) for layer in layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for part in _parts(model):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        part.unshard()                                     # its memory, were it made while evaluating, could not learn
        part.reshard()
    for name in CALLED:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)
    return model


def forget_whole(model: nn.Module) -> None:
    """Weights that are still whole from the last answer are gathered anew for the next."""
    for part in _parts(model):
        part.reshard()


def _parts(model: nn.Module) -> "Iterator[FSDPModule]":
    return (module for module in model.modules() if hasattr(module, "reshard"))  # type: ignore[misc]


def is_shared(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Does this rank hold only a share of it?"""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The share that this rank holds; of a tensor that is not shared, all."""
    return tensor.to_local() if is_shared(tensor) else tensor


def whole(share: Tensor, like: Any) -> Tensor:
    """All of which each rank gives a share, cut as `like` is."""
    from torch.distributed.tensor import DTensor

    together = DTensor.from_local(share, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
    full: Tensor = together.full_tensor()
    return full


def share_of(full: Tensor, like: Any) -> Tensor:
    """This rank's share of what all have in full, cut as `like` is."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = DTensor.from_local(full, like.device_mesh, [Replicate()])
    return local(everywhere.redistribute(placements=like.placements))


def whole_weights(model: nn.Module, wanted: bool) -> dict[str, Any]:
    """The model's state on the host, one tensor after another. All ranks call this; those that want it have it."""
    weights = {}
    for name, tensor in model.state_dict().items():
        full = tensor.full_tensor() if is_shared(tensor) else tensor
        if wanted:
            weights[name] = full.cpu()
    return weights
