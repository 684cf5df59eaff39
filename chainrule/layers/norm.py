"""Parts of a Transformer's step that a GPU does together while it learns: each moves much memory and computes little.

    total = stream + found;  normed = norm(total)        what a part found is added, and the sum is normed
    q, k = turned(norm(q, k))                            queries and keys are normed, and turned to their place

Wherever they are not joined (`kernels.use_in_training`) each is done by itself, as written.

Shapes: B rows, T tokens, D width, H heads of queries, G heads of keys, d numbers in a head.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from chainrule import kernels
from chainrule.device import working_dtype
from chainrule.kernels import ops
from chainrule.layers.positions import Rope


class Sum(NamedTuple):
    """stream + found, which is not made before it is normed."""

    stream: Tensor               # (…, D)
    found: Tensor | None = None  # (…, D)

    def made(self) -> Tensor:
        return self.stream if self.found is None else self.stream + self.found

    def normed(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """(…, D) the sum, and (…, D) the same normed."""
        if self.found is None or not kernels.use_in_training(self.stream):
            total = self.made()
            return total, norm(total)
        how: Any = norm
        shift, centred = getattr(how, "bias", None), isinstance(norm, nn.LayerNorm)
        total, normed, *_ = ops.add_norm(*self, how.weight, shift, how.eps, centred, working_dtype(self.stream))
        return total, normed


def joins_heads(product: Tensor, size: int, norms: nn.ModuleList, rope: Rope | None) -> bool:
    """Is there something to join, and a kernel for it: norms without weights, heads whose halves are powers of 2?"""
    halves = size > 1 and size & (size - 1) == 0
    plain = next(norms.parameters(), None) is None
    return kernels.use_in_training(product) and halves and bool(norms or rope) and plain


def heads(
    product: Tensor, queries: int, keys: int, norms: nn.ModuleList, rope: Rope | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, (H + 2G)d) -> queries (B, T, H, d), keys and values (B, T, G, d)"""
    norm: Any = norms[0] if norms else None               # that of keys is its like
    kind = None if norm is None else "layer" if isinstance(norm, nn.LayerNorm) else "rms"
    spin = (None, None) if rope is None else rope
    return ops.heads(product, *spin, queries, keys, 0.0 if norm is None else norm.eps, kind)
