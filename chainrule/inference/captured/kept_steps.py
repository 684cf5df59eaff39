"""Captured steps that outlive a call: of each model the last one, for the next call that is alike.

A call of `sample` spends milliseconds on reserving a KV cache and on capturing a step. Where the next call has the same
model, shapes and settings, it goes on with the same graph and the same memory. A graph reads the weights where they
are; whether one was changed or moved since then is asked each time, and so is all else that a step depends on.
"""

import atexit
from collections.abc import Hashable
from itertools import chain
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from chainrule import kernels
from chainrule.inference.captured.captured_step import CapturedStep, Values, layout
from chainrule.model import LanguageModel, Tap, state_bytes

KEPT_BYTES = 1 << 28    # of the state and other values of a step that is kept
KEPT_ROWS = 64          # with more rows, a capture takes little time beside the steps
INTERNAL = vars(nn.Module()).keys()    # attributes that every module has
PLAIN = {bool, int, float, str, type(None)}

Key: TypeAlias = tuple[Hashable, ...]


class Kept(NamedTuple):
    step: CapturedStep
    key: Key
    layout: Hashable        # of its values


_KEPT: WeakKeyDictionary[LanguageModel, Kept] = WeakKeyDictionary()
forget_all = _KEPT.clear
atexit.register(forget_all)    # while the driver is still there


def key_of(model: LanguageModel, about: Hashable, inputs: Tensor, values: Values) -> Key | None:
    """All that a step depends on, beside the values from which it goes on; None: a step is not to be kept.

    `about`: the settings of its strategy.
    """
    if len(values["tokens"]) > KEPT_ROWS or state_bytes(values) > KEPT_BYTES:
        return None
    if torch.is_autocast_enabled(inputs.device.type):          # its copies of the weights do not outlive the context
        return None
    found = fingerprint(model)
    return None if found is None else (about, inputs.dtype, inputs.shape, _computation(inputs.device), found)


def fingerprint(model: nn.Module) -> Key | None:
    """What a module and its submodules are and hold: storages, versions, attributes; None: it cannot be said."""
    found: list[Hashable] = []
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks or (isinstance(module, Tap) and module.watched):
            return None
        found.append(id(module))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                if tensor.is_inference():                      # it has no version
                    return None
                found += (tensor.untyped_storage()._cdata, tensor.data_ptr(), tensor._version, tensor.dtype)
        own = vars(module)
        if len(own) > len(INTERNAL):
            found += [(name, value if type(value) in PLAIN else id(value))
                      for name, value in own.items() if name not in INTERNAL]  # fmt: skip
    return tuple(found)


def take(model: LanguageModel, key: Key, values: Values) -> CapturedStep | None:
    """The step that is kept, if it was captured for this key and such values. It is the caller's then: two calls at
    the same time never share one. Another one is dropped, since its memory may be needed."""
    kept = _KEPT.pop(model, None)
    return kept.step if kept is not None and (kept.key, kept.layout) == (key, layout(values)) else None


def keep(model: LanguageModel, key: Key, step: CapturedStep) -> None:
    _KEPT[model] = Kept(step, key, layout(step.values))


def weak_references(model: nn.Module) -> list[StorageWeakRef]:
    """To the storages of a key: while there is a reference, even a weak one, no other storage has its number."""
    parts = chain(model.parameters(), model.buffers())
    return [StorageWeakRef(part.untyped_storage()) for part in parts]  # type: ignore[no-untyped-call]


def _computation(device: torch.device) -> Hashable:
    """Switches of this process on which kernels depend, and the stream on which they run."""
    cuda: Any = torch.backends.cuda
    attention = [getattr(cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "cudnn", "math")]
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    precise = cuda.matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()
    return *attention, *precise, kernels.OVERLAP, stream
