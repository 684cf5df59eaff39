"""Parts of a Transformer's step that a GPU does together while it learns: each moves much memory and computes little.

    total = stream + found + bias;  normed = norm(total)        what a part found is added, and the sum is normed
    out = activation(product + bias)

Wherever they are not joined (`kernels.join`) each is done by itself, as written.

Shapes: D width.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule import kernels
from chainrule.models.joining import add_norm
from chainrule.models.precision import working_dtype


class Sum(NamedTuple):
    """stream + found + bias, which is not made before it is normed."""

    stream: Tensor               # (…, D)
    found: Tensor | None = None  # (…, D)
    bias: Tensor | None = None   # (D,)

    def made(self) -> Tensor:
        found = self.found if self.found is None or self.bias is None else self.found + self.bias
        return self.stream if found is None else self.stream + found

    def normed(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """(…, D) the sum, and (…, D) the same normed."""
        if self.found is None or not kernels.join(self.stream):
            total = self.made()
            return total, norm(total)
        how: Any = norm
        shift, centred = getattr(how, "bias", None), isinstance(norm, nn.LayerNorm)
        total, normed, *_ = add_norm(*self, how.weight, shift, how.eps, centred, working_dtype(self.stream))
        return total, normed


class Back(nn.Linear):
    """The last map of attention, back into the stream. Its bias `waits` for the sum, where that is joined.

    That is within the same block, as it must be: of a block that is shared by several GPUs no weight is there once it
    has been passed.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, *, waits: bool):
        super().__init__(inputs, outputs, bias)
        self.waits = waits

    def forward(self, x: Tensor) -> Tensor:
        """(…, D), without the bias if that is `waiting`."""
        return super().forward(x) if self.waiting(x) is None else linear(x, self.weight)

    def waiting(self, like: Tensor) -> Tensor | None:
        return self.bias if self.waits and kernels.join(like) else None
