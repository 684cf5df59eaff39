"""Parts of a Transformer's step that a GPU does together while it learns: each moves much memory and computes little.

    total = stream + found;  normed = norm(total)        what a part found is added, and the sum is normed

Wherever they are not joined (`kernels.join`) each is done by itself, as written.

Shapes: D width.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from chainrule import kernels
from chainrule.models.joining import add_norm
from chainrule.models.precision import working_dtype


class Sum(NamedTuple):
    """stream + found, which is not made before it is normed."""

    stream: Tensor               # (…, D)
    found: Tensor | None = None  # (…, D)

    def made(self) -> Tensor:
        return self.stream if self.found is None else self.stream + self.found

    def normed(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """(…, D) the sum, and (…, D) the same normed."""
        if self.found is None or not kernels.join(self.stream):
            total = self.made()
            return total, norm(total)
        how: Any = norm
        shift, centred = getattr(how, "bias", None), isinstance(norm, nn.LayerNorm)
        total, normed, *_ = add_norm(*self, how.weight, shift, how.eps, centred, working_dtype(self.stream))
        return total, normed
