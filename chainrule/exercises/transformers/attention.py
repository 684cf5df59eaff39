"""Exercise attention: scaled dot-product attention in matrix form, the causal mask, many heads (Vaswani et al. 2017).

    X' = softmax(Q Kᵀ / √d_k + M) V,        Q = X W_Q,  K = X W_K,  V = X W_V        softmax by rows

Shapes: B rows, T tokens, D = d_model, h heads, d_k = D / h.
"""

from torch import Tensor


def causal_mask(T: int) -> Tensor:
    """M (T, T): 0 where a token (row) may attend to a token (column), at its own place or before; -inf elsewhere."""
    raise NotImplementedError


def attention(Q: Tensor, K: Tensor, V: Tensor, M: Tensor) -> tuple[Tensor, Tensor]:
    """Q, K, V (…, T, d_k), M (T, T) -> X' (…, T, d_k), and the weights softmax(Q Kᵀ / √d_k + M), (…, T, T)."""
    raise NotImplementedError


def multi_head_attention(
    X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, heads: int, M: Tensor
) -> Tensor:
    """X (B, T, D), each W (D, D) -> (B, T, D).

    Head j uses columns j·d_k to (j + 1)·d_k of X W_Q, X W_K and X W_V. The outputs of the heads are concatenated in
    order, (B, T, D), and multiplied by W_O.
    """
    raise NotImplementedError
