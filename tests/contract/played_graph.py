"""CUDA graphs where there is no GPU: a class that runs the captured function again on the same fixed tensors."""

from collections.abc import Callable, Iterable

import pytest
from torch import Tensor

from chainrule.inference import decoding


class PlayedGraph:
    """As a CUDA graph: a replay reads inputs and state from fixed tensors, and leaves the state in them."""

    replays = 0

    def __init__(
        self, function: Callable[[], Iterable[Tensor]], inputs: Iterable[Tensor], state: Iterable[Tensor], *, tidy: bool
    ):
        self.function, self.inputs, self.state = function, list(inputs), list(state)
        assert not tidy                                            # a tidy capture takes as long as a sentence
        before = [tensor.clone() for tensor in self.state]
        shapes = [tensor.shape for tensor in function()]
        if shapes != [tensor.shape for tensor in before]:
            raise RuntimeError("a state that grows cannot be captured")
        for fixed, old in zip(self.state, before):                 # a capture runs no kernel
            fixed.copy_(old)

    def set_state(self, state: Iterable[Tensor]) -> None:
        for fixed, new in zip(self.state, state, strict=True):
            if new.data_ptr() != fixed.data_ptr():
                fixed.copy_(new)

    def replay(self, inputs: Iterable[Tensor]) -> None:
        PlayedGraph.replays += 1
        for fixed, new in zip(self.inputs, inputs, strict=True):
            fixed.copy_(new)
        for fixed, new in zip(self.state, self.function(), strict=True):
            fixed.copy_(new)


def play_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on steps are captured and replayed, and the host asks only now and then, as on a GPU."""
    monkeypatch.setattr(decoding, "CudaGraph", PlayedGraph)
    monkeypatch.setattr(decoding, "can_capture", lambda tensor: True)
    for module in ("generate", "beam", "mbr"):
        monkeypatch.setattr(f"chainrule.inference.{module}.sync_every", lambda device: 5)
    PlayedGraph.replays = 0
