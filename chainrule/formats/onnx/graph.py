"""An ONNX graph, written node by node: operators by name, weights as initializers, values named by strings.

    graph = Graph("lstm")
    tokens = graph.input("input_ids", "int64", ("batch_size", "sequence_length"))
    x = graph.op("Gather", graph.weight("embedding.weight", matrix), tokens)

Dimensions that are words are open: a file has no fixed number of rows or tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.errors import UserError

if TYPE_CHECKING:
    import onnx

OPSET, IR = 20, 9                    # read by onnxruntime 1.17 and later
LARGEST = (1 << 31) - (1 << 24)      # bytes of one file; with more, the weights are in a second one
ROWS, TOKENS = "batch_size", "sequence_length"


def import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise UserError("ONNX files need the package onnx. Install it: pip install 'chainrule[exchange]'") from error
    return onnx


class Graph:
    def __init__(self, name: str):
        self.onnx, self.name = import_onnx(), name
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        self.inputs.append(self._info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: str, shape: Sequence[int | str]) -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._info(name, dtype, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, whose name is returned; an empty string is an input that is left out."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        names = [f"{self.name}_{kind}_{len(self.nodes)}" + f"_{number}" * (outputs > 1) for number in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, name=names[0], **attributes))
        return names

    def weight(self, name: str, tensor: Tensor) -> str:
        """A tensor of the model; one that is used twice is in the file once."""
        if name not in self.weights:
            numbers = tensor.detach().cpu().contiguous().numpy()
            self.weights[name] = self.onnx.numpy_helper.from_array(numbers, name)
        return name

    def ints(self, *values: int) -> str:
        return self.weight(f"ints_{'_'.join(map(str, values))}", torch.tensor(values, dtype=torch.int64))

    def number(self, value: float) -> str:
        return self.weight(f"number_{value!r}", torch.tensor(value, dtype=torch.float32))

    def whole(self, value: int) -> str:
        return self.weight(f"whole_{value}", torch.tensor(value, dtype=torch.int64))

    def linear(self, name: str, module: nn.Linear, x: str) -> str:
        """(…, I) -> (…, O)"""
        product = self.op("MatMul", x, self.weight(f"{name}.weight", module.weight.T))
        return product if module.bias is None else self.op("Add", product, self.weight(f"{name}.bias", module.bias))

    def reshape(self, x: str, *shape: int) -> str:
        """0: the size that this axis has; -1: what is left."""
        return self.op("Reshape", x, self.ints(*shape))

    def transpose(self, x: str, *axes: int) -> str:
        return self.op("Transpose", x, perm=list(axes))

    def size(self, x: str, axis: int) -> str:
        """(1,): the length of an axis."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def cut(self, x: str, start: str, end: str, axis: int) -> str:
        """From `start` up to `end`, (1,) each."""
        return self.op("Slice", x, start, end, self.ints(axis))

    def subgraph(self) -> Any:
        """As the body of a loop, which shares the weights of the graph around it."""
        return self.onnx.helper.make_graph(self.nodes, self.name, self.inputs, self.outputs)

    def model(self, metadata: Mapping[str, str]) -> "onnx.ModelProto":
        from chainrule import __version__

        helper, weights = self.onnx.helper, list(self.weights.values())
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, weights)
        made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR,
                                 producer_name="chainrule", producer_version=__version__)
        helper.set_model_props(made, dict(metadata))
        return made

    def _info(self, name: str, dtype: str, shape: Sequence[int | str]) -> Any:
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.onnx.helper.make_tensor_value_info(name, kind, list(shape))


def write_model(model: "onnx.ModelProto", path: Path) -> None:
    """One file, or beside it a second one with the weights: a file of this format ends at 2 GB."""
    size = sum(len(weight.raw_data) for weight in model.graph.initializer)
    import_onnx().save_model(model, path, save_as_external_data=size > LARGEST, location=f"{path.name}_data")
