"""Fully sharded data parallel (FSDP2): each rank holds a shard of every weight, of its gradient and optimizer state.

`train.shard=true` applies it from outside, layer by layer: a layer's weights are gathered only while it runs. In the
backward pass gradients are reduced and scattered micro-batch by micro-batch, so that no full gradient is stored.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from chainrule.layers.attention import CrossAttention

if TYPE_CHECKING:    # importing them takes a second, which only sharded runs should spend
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

CALLED = ("loss", "start", "step", "score")
"""The methods that are called on a model. Each of them needs the weights outside the layers gathered."""


def shard(model: nn.Module, device: torch.device) -> nn.Module:
    """Replaces the weights of a model, equal on all ranks, by each rank's shard of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    warnings.filterwarnings("ignore", "FSDP2-wrapped module")    # outputs changed in place; none are
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, CrossAttention):             # it reads the source before its layer runs, so what
            fully_shard(module.memory, mesh=mesh)          # reads it is a unit of its own
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for layer in (layer for layers in reversed(lists) for layer in layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for part in _parts(model):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        part.unshard()                                     # buffers made in inference mode could not be trained
        part.reshard()
    for name in CALLED:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)
    return model


def reshard(model: nn.Module) -> None:
    """Frees the weights that are still gathered from the last forward pass."""
    for part in _parts(model):
        part.reshard()


def _parts(model: nn.Module) -> "Iterator[FSDPModule]":
    return (module for module in model.modules() if hasattr(module, "reshard"))  # type: ignore[misc]


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this rank holds only a shard of the tensor."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """This rank's shard; of a tensor that is not sharded, all of it."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def full_tensor(shard: Tensor, like: Any) -> Tensor:
    """The full tensor of which each rank gives its shard, sharded as `like` is."""
    from torch.distributed.tensor import DTensor

    together = DTensor.from_local(shard, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
    full: Tensor = together.full_tensor()
    return full


def shard_of(full: Tensor, like: Any) -> Tensor:
    """This rank's shard of a tensor that all have in full, sharded as `like` is."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = DTensor.from_local(full, like.device_mesh, [Replicate()])
    return local(everywhere.redistribute(placements=like.placements))


def full_state_dict(model: nn.Module, wanted: bool) -> dict[str, Any]:
    """The model's full state dict in host memory, gathered tensor by tensor. All ranks call this; some want it."""
    weights = {}
    for name, tensor in model.state_dict().items():
        full = tensor.full_tensor() if is_sharded(tensor) else tensor
        if wanted:
            weights[name] = full.cpu()
    return weights
