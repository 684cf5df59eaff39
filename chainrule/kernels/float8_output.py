"""Float8 training of the output: the logits of a chunk of hidden vectors, and the products with their gradient.

    z = h Wᵀ        ∇h = g W        ∇W = gᵀ h        g = softmax(z) - one_hot(target) in e5m2, times GRAD_SCALE

layers/cross_entropy.py computes them chunk by chunk in the forward pass, so they are operators without a backward pass.

Shapes: N hidden vectors of a chunk, I width, V vocabulary.
"""

import torch
from torch import Tensor

from chainrule.kernels import float8_layers
from chainrule.kernels.float8 import (
    E4M3,
    MULTIPLE,
    cast,
    cast_like,
    cast_rows,
    exact_amax,
    float8_operator,
    largest,
    multiply,
    padded,
    transpose,
)

GRAD_SCALE = 2.0**15    # g is at most 1


def _cast_output(x: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(N, W) and (W, P) in e4m3, and the inverse scale; `exact`: by the largest number of all rows."""
    if not exact:
        return cast_rows(x.contiguous(), E4M3)[:3]
    return cast(x.contiguous(), None, None, None, exact_amax(largest(x)), E4M3)[:3]


cast_output = float8_operator(
    "float8_cast(Tensor x, bool exact) -> (Tensor, Tensor, Tensor)", _cast_output,
    lambda x, exact: (x.new_empty(x.shape, dtype=E4M3), *cast_like(x)),
)
product_output = float8_operator(
    "float8_product(Tensor a, Tensor b, Tensor a_inverse, Tensor b_inverse, ScalarType dtype, bool fast) -> Tensor",
    lambda a, b, a_inverse, b_inverse, dtype, fast: multiply(a, b, a_inverse, b_inverse, dtype, None, fast),
    lambda a, b, a_inverse, b_inverse, dtype, fast: a.new_empty(len(a), len(b), dtype=dtype),
)
transpose_output = float8_operator(
    "float8_transpose(Tensor x) -> Tensor", transpose, lambda x: x.new_empty(x.shape[1], padded(len(x)))
)


class Output:
    """The products of a chunked cross-entropy with the output matrix (V, I)."""

    def __init__(self, matrix: Tensor):
        self.matrix, self.matrix_t, self.inverse = cast_output(matrix, True)
        self.grad_inverse = self.inverse.new_full((), 1 / GRAD_SCALE)

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, I) -> (N, V)"""
        hidden8, _, inverse = cast_output(hidden, False)
        logits: Tensor = product_output(hidden8, self.matrix, inverse, self.inverse, hidden.dtype, True)
        return logits

    def grad_hidden(self, grad: Tensor, dtype: torch.dtype) -> Tensor:
        """(N, V) in e5m2, times GRAD_SCALE -> (N, I)"""
        result: Tensor = product_output(grad, self.matrix_t, self.grad_inverse, self.inverse, dtype, False)
        return result

    def grad_matrix(self, grad: Tensor, hidden: Tensor) -> Tensor:
        """(N, V), (N, I) -> (V, I)"""
        _, hidden8_t, inverse = cast_output(hidden, False)
        grad_t = transpose_output(grad)
        result: Tensor = product_output(grad_t, hidden8_t, self.grad_inverse, inverse, hidden.dtype, False)
        return result


def use_for_output(hidden: Tensor) -> bool:
    return float8_layers.is_on() and hidden.numel() > 0 and hidden.shape[-1] % MULTIPLE == 0
