"""Whether the steps of a run on a CPU are computed by our kernels in C++ (kernels/cpu/layers.py).

Compiling them takes a few seconds, once on each machine. What is decided depends on the recipe and the model alone, and
on nothing that is measured: a run that was interrupted goes on with the same kernels, to the last bit.
"""

from chainrule.kernels.cpu import layers
from chainrule.layers.blocks import TransformerStack
from chainrule.model import Model
from chainrule.recipe import Gradient
from chainrule.training.schedule import TrainingBudget

REPAID = 10.0    # seconds of training that repay the compiler
FLOPS = 5e10     # a second, of a few cores at their best: where they are slower there is more to gain


def use_cpu_kernels(model: Model, settings: Gradient, budget: TrainingBudget, targets: int) -> bool:
    """For training with so many targets a step. They are for RMSNorm in a Transformer; torch.compile makes its own."""
    parameters = list(model.parameters())
    if parameters[0].device.type != "cpu" or settings.compile == "true":
        return False
    step = 6 * sum(parameter.numel() for parameter in parameters) * targets / FLOPS
    fusable = any(isinstance(each, TransformerStack) and each.settings.norm == "rms" for each in model.modules())
    return fusable and budget.total_seconds(step) >= REPAID and layers.available()
