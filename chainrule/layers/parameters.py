"""Parameter groups of a network: hidden matrices, the output matrix, the rest; and the depth of each parameter.

The groups decide which optimizer updates a parameter; the depth decides what is frozen and the layer-wise learning
rate. In every kind the linear layer that computes logits is called `output`; a model without one has tied weights.
"""

import re

from torch import nn

from chainrule.layers.experts import ExpertLinear
from chainrule.model import Model

MATRIX_MODULES = (nn.Linear, nn.RNNBase, nn.RNNCellBase, ExpertLinear)
LAYER = re.compile(r"(?:^|\.)(?:blocks|layers)\.(\d+)\.")
PARAMETRIZED = re.compile(r"(^|.*\.)parametrizations\.(\w+)\.(?:0\.)?(\w+)")    # module, parameter, part

Named = list[tuple[str, nn.Parameter]]


def group_parameters(model: nn.Module) -> tuple[Named, Named, Named]:
    """Trainable parameters: matrices of hidden layers, those of the output, the rest (embeddings, norms, biases)."""
    hidden: Named = []
    output: Named = []
    rest: Named = []
    groups: dict[int, Named] = {}
    for path, module in model.named_modules():
        if isinstance(module, MATRIX_MODULES):
            group = output if path.rpartition(".")[2] == "output" else hidden
            groups |= {id(weight): group for weight in module.parameters(recurse=False) if weight.dim() >= 2}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            groups.get(id(weight), rest).append((name, weight))
    return hidden, output, rest


def unparametrized(name: str) -> str:
    """The name of a parameter without torch's parametrizations; the part it has in one follows after a slash."""
    return PARAMETRIZED.sub(r"\1\2/\3", name)


def layer_count(model: Model) -> int:
    return max(_numbers(model).values(), default=0)


def parameter_depths(model: Model) -> dict[str, int]:
    """By name: 0 for embeddings, the number of the layer from 1, and one more than the last for all above the layers.

    Each of several stacks is counted from its own bottom, unless the class says `stacked_on`.
    """
    numbers, top = _numbers(model), 1 + layer_count(model)
    names = [name for name, _ in model.named_parameters()]
    return {name: numbers.get(name, 0 if _is_embedding(model, name) else top) for name in names}


def _is_embedding(model: Model, name: str) -> bool:
    parts = unparametrized(name).partition("/")[0]
    return any(f"{parts}.".startswith(f"{prefix}.") for prefix in model.embedding_parameters)


def _numbers(model: Model) -> dict[str, int]:
    """The layer number of each parameter that is in a layer."""
    numbers = {name: int(found[1]) + 1 for name, _ in model.named_parameters() if (found := LAYER.search(name))}
    for above, below in model.stacked_on.items():
        under = max((number for name, number in numbers.items() if name.startswith(f"{below}.")), default=0)
        numbers |= {name: number + under for name, number in numbers.items() if name.startswith(f"{above}.")}
    return numbers
