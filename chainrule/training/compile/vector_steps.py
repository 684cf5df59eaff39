"""Steps of word vectors (word2vec, GloVe) as CUDA graphs: launching their many small kernels takes longest on a GPU."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chainrule.device import CudaGraph
from chainrule.model import map_state, tensors
from chainrule.progress import say

OFTEN = 4         # a size is captured when it comes so often: a capture takes as long as a few steps
MOST = 16         # sizes


def graph_size(rows: int, most: int) -> int:
    """The number of rows of a step, rounded down to a power of two, so that a few graphs are enough; or `most`."""
    return most if rows >= most else 1 << rows.bit_length() - 1


class VectorSteps:
    """Runs each step: eagerly, or on a GPU as the CUDA graph of its size once that has come often."""

    def __init__(self, step: Callable[[Any, Any], None], device: torch.device):
        self.step, self.on_gpu = step, device.type == "cuda"
        self.lr = torch.zeros((), device=device)           # read by the graphs
        self.came: Counter[int] = Counter()                # steps of each size
        self.graphs: dict[int, CudaGraph] = {}
        self.most = MOST

    def take(self, examples: Any, lr: float) -> None:
        graph = self._graph(examples) if self.on_gpu else None
        if graph is None:
            self.step(examples, lr)
        else:
            self.lr.fill_(lr)
            graph.replay(tensors(examples))

    def _graph(self, examples: Any) -> CudaGraph | None:
        size = len(next(tensors(examples)))
        self.came[size] += 1
        if self.came[size] >= OFTEN and size not in self.graphs and len(self.graphs) < self.most:
            self._capture(size, examples)
        return self.graphs.get(size)

    def _capture(self, size: int, examples: Any) -> None:
        static, share = map_state(examples, Tensor.clone), next(iter(self.graphs.values()), None)

        def run() -> tuple[()]:
            self.step(static, self.lr)
            return ()

        try:
            self.graphs[size] = CudaGraph(run, tensors(static), share=share, tidy=False)
        except RuntimeError as error:
            self.most = len(self.graphs)                   # those that there are go on
            say(f"a step of word vectors cannot be captured as a CUDA graph, so steps run eagerly: {error}")
