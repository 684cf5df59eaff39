"""What the weights of a network are for: matrices of hidden layers, the matrices of its answers, and the rest.

In every kind a linear map that gives answers is called `output`. A network without one compares with its `embeddings`.
"""

from torch import nn

MATRIX_MODULES = (nn.Linear, nn.RNNBase, nn.RNNCellBase)

Named = list[tuple[str, nn.Parameter]]


def sort_parameters(model: nn.Module) -> tuple[Named, Named, Named]:
    """Of those that learn: matrices of hidden layers, those of the output, and the rest: embeddings, norms, biases."""
    hidden: Named = []
    output: Named = []
    rest: Named = []
    sorts: dict[int, Named] = {}
    for path, module in model.named_modules():
        if isinstance(module, MATRIX_MODULES):
            sort = output if path.rpartition(".")[2] == "output" else hidden
            sorts |= {id(weight): sort for weight in module.parameters(recurse=False) if weight.dim() == 2}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            sorts.get(id(weight), rest).append((name, weight))
    return hidden, output, rest
