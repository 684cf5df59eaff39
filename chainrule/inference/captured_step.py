"""A decoding step as a CUDA graph: replayed for a block of steps, and kept with its model for the next call.

The graph finds its step's inputs by a counter in the GPU's memory, and writes the tokens of all steps of a block there
too. So a step is one launch, and nothing is copied between two steps.

A call of `sample` spends milliseconds on reserving a KV cache and on capturing a step. Where the next call has the same
model, shapes and settings, it goes on with the same graph and the same memory. Weights are read where they are, but
whether any has moved or changed is asked each time, and so is everything else that a step depends on.

Shapes: B rows, T steps.
"""

import atexit
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef  # type: ignore[attr-defined]

from chainrule import kernels
from chainrule.device import CudaGraph
from chainrule.model import LanguageModel, State, Tap, state_bytes, tensors

KEPT_BYTES = 1 << 28    # of the state and other values of a step that is kept
KEPT_ROWS = 64          # with more rows, the time of a capture is small beside that of the steps
INTERNAL = vars(nn.Module()).keys()    # attributes of every module; its parameters, buffers and hooks are asked for
PLAIN = {bool, int, float, str, type(None)}

Values: TypeAlias = dict[str, Any]
Capture: TypeAlias = Callable[[Callable[[], Iterable[Tensor]], Iterable[Tensor], Iterable[Tensor]], CudaGraph | None]


class CapturedStep:
    """The graph of a step, and the fixed tensors that it reads and writes."""

    def __init__(self, graph: CudaGraph, values: Values, numbers: Tensor, place: Tensor, columns: Tensor):
        self.graph = graph
        self.values = values        # what the strategy and the model keep from step to step
        self.numbers = numbers      # (T, …) the inputs of a block of steps
        self.place = place          # (1,) the next step of the block
        self.columns = columns      # (T, B) the tokens that the steps chose

    def replay(self, inputs: Tensor) -> Tensor:
        """(N, …) inputs of as many steps, at most T -> (N, B) tokens."""
        count = len(inputs)
        self.numbers[:count] = inputs
        self.place.zero_()
        for _ in range(count):
            self.graph.replay(())
        return self.columns[:count].clone()

    def load(self, values: Values) -> None:
        """Goes on from these values, of the same layout."""
        self.graph.set_state(tensors(values))


def capture(
    step: Callable[[Tensor], Values], values: Values, inputs: Tensor, block: int, by: Capture
) -> CapturedStep | None:
    """`step`: inputs of one step -> the values after it, from `values`, which become those of the graph; `by` captures
    a function, and returns None where it cannot be captured."""
    tokens = values["tokens"]
    numbers = inputs.new_zeros((block, *inputs.shape))
    place = torch.zeros(1, dtype=torch.long, device=tokens.device)
    columns = tokens.new_zeros((block, *tokens.shape))

    def run() -> list[Tensor]:
        after = step(numbers.index_select(0, place)[0])
        columns.index_copy_(0, place, after["tokens"][None])
        place.add_(1)
        return list(tensors(after))

    graph = by(run, [], tensors(values))
    return None if graph is None else CapturedStep(graph, values, numbers, place, columns)


# Steps that are kept from one call to the next: the last one of each model

Key: TypeAlias = tuple[Hashable, ...]

_KEPT: WeakKeyDictionary[LanguageModel, tuple[Key, Hashable, CapturedStep, list[StorageWeakRef]]] = WeakKeyDictionary()
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


def layout(state: State) -> Hashable:
    """The names, shapes, dtypes and devices of the tensors of a state, in their order."""
    if isinstance(state, Tensor):
        return state.shape, state.dtype, state.device
    parts = state.items() if isinstance(state, dict) else enumerate(state)
    return tuple((name, layout(part)) for name, part in parts)


def take(model: LanguageModel, key: Key, values: Values) -> CapturedStep | None:
    """The step that is kept, if it was captured for this key and such values. It is the caller's then: two calls at
    the same time never share one. Another one is dropped, since its memory may be needed."""
    kept = _KEPT.pop(model, None)
    if kept is None:
        return None
    for_key, for_layout, step, _ = kept
    return step if (for_key, for_layout) == (key, layout(values)) else None


def keep(model: LanguageModel, key: Key, step: CapturedStep) -> None:
    # A storage's number is not given to another one as long as there is a reference to it, even a weak one.
    weak = [StorageWeakRef(tensor.untyped_storage()) for tensor in _tensors_of(model)]
    _KEPT[model] = key, layout(step.values), step, weak


def _tensors_of(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _computation(device: torch.device) -> Hashable:
    """Switches of this process on which kernels depend, and the stream on which they run."""
    cuda: Any = torch.backends.cuda
    attention = [getattr(cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "cudnn", "math")]
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    precise = cuda.matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()
    return *attention, *precise, kernels.OVERLAP, stream
