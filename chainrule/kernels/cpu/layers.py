"""Fused operators for training (kernels/ops.py) on the CPU, in C++ (layers.cpp): what is done to each number by itself.

In a small network RMSNorm, RoPE and ReLU² take as long as half of the matrix products, since torch reads and writes
every number several times. The functions are those of add_norm.py, bias_act.py and qk_norm_rope.py, with the same
arguments, and dropout; numbers are float32, or bfloat16 where autocast multiplies in it. LayerNorm and other
activations are not here: torch computes each at once (ops.FUSED).

Shapes: N rows, D width, T tokens, H query heads, G key/value heads, d numbers in a head; P threads.
"""

from collections.abc import Callable, Sequence
from ctypes import Structure, addressof, c_bool, c_float, c_int32, c_int64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule.kernels.cpu.compiled import FLAGS, Library, in_threads
from chainrule.kernels.cpu.dropout import LEVELS

BFLOAT16 = {torch.float32: False, torch.bfloat16: True}    # the dtypes that there are functions for
PER_THREAD = 1 << 18    # numbers for which it pays to wake another thread

# Sums may be reordered where the code says so (omp simd), so that vectors of numbers are added.
SUMS = ("-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")
LIBRARY = Library(Path(__file__).with_suffix(".cpp"), (*FLAGS, *SUMS))

TYPE, ROWS = c_bool, [c_int64] * 2
SIGNATURES: dict[str, list[Any]] = {
    "add_norm": [TYPE, TYPE, *ROWS, *[c_void_p] * 6, c_int64, c_float],
    "add_norm_backward": [TYPE, TYPE, *ROWS, *[c_void_p] * 8, c_int64],
    "relu2": [TYPE, *ROWS, *[c_void_p] * 3, c_int64],
    "relu2_backward": [TYPE, *ROWS, *[c_void_p] * 5, c_int64],
    "qk_norm_rope": [TYPE, *ROWS, *[c_void_p] * 5],
    "qk_norm_rope_backward": [TYPE, *ROWS, *[c_void_p] * 6],
    "dropout": [TYPE, *ROWS, *[c_void_p] * 2, c_int64, c_int32, c_float],
}


def available() -> bool:
    """Whether they are compiled, or can be: that takes a few seconds."""
    return LIBRARY.functions is not None


class Heads(Structure):
    """As in layers.cpp."""

    _fields_ = (
        ("queries", c_int64), ("keys", c_int64), ("half", c_int64), ("tokens", c_int64), ("epsilon", c_float),
        ("norm", c_bool), ("cos", c_void_p), ("sin", c_void_p),
    )


def add_norm_forward(
    x: Tensor, delta: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, subtract_mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(…, D) the sum, and its RMSNorm in this dtype; for the backward pass, rstd (N,), and a mean of 0 (N,)."""
    _check(not subtract_mean)
    x, delta, weight, width = x.contiguous(), delta.to(dtype).contiguous(), _float(weight), x.shape[-1]
    total, out = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    rstd = x.new_empty(x.numel() // width, dtype=torch.float32)
    numbers = _pointers(x, delta, weight, total, out, rstd)
    function = partial(_function("add_norm"), BFLOAT16[x.dtype], BFLOAT16[dtype])
    _run(x, lambda first, end: function(first, end, *numbers, width, epsilon))
    return total, out, rstd, torch.zeros_like(rstd)


def add_norm_backward(
    grad_total: Tensor | None, grad_normed: Tensor, total: Tensor, rstd: Tensor, mean: Tensor, weight: Tensor | None,
    subtract_mean: bool, dtype: torch.dtype, has_parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: (…, D) for x, and for delta in this dtype (empty where the dtype is that of x); (1, D) for the weight,
    empty without one."""
    grad_total = None if grad_total is None else grad_total.to(total.dtype).contiguous()
    grad_normed, weight, width = grad_normed.to(dtype).contiguous(), _float(weight), total.shape[-1]
    grad_x, grad_delta = torch.empty_like(total), None
    if dtype != total.dtype:
        grad_delta = torch.empty_like(total, dtype=dtype)
    numbers = _pointers(grad_total, grad_normed, total, rstd, weight, grad_x, grad_delta)
    function = partial(_function("add_norm_backward"), BFLOAT16[total.dtype], BFLOAT16[dtype])
    sums = _run_and_sum(
        total, [1, width] if has_parameters else [],
        lambda first, end, sums: function(first, end, sums, *numbers, width),
    )
    return grad_x, total.new_empty(0) if grad_delta is None else grad_delta, sums


def norm_forward(x: Tensor, weight: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """(…, D) RMSNorm without a sum, and rstd (N,) for the backward pass."""
    x, weight, width = x.contiguous(), _float(weight), x.shape[-1]
    out, rstd = torch.empty_like(x), x.new_empty(x.numel() // width, dtype=torch.float32)
    numbers = _pointers(x, None, weight, None, out, rstd)
    function = partial(_function("add_norm"), BFLOAT16[x.dtype], BFLOAT16[x.dtype])
    _run(x, lambda first, end: function(first, end, *numbers, width, epsilon))
    return out, rstd


def norm_backward(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients: (…, D) for x; (1, D) for the weight, empty without one."""
    no_mean = rstd
    grad_x, _, columns = add_norm_backward(
        None, grad, x.contiguous(), rstd, no_mean, weight, False, x.dtype, weight is not None
    )
    return grad_x, columns


def bias_act_forward(product: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """(…, D), (D,) -> (…, D)"""
    _check(activation == "relu2")
    product, bias, width = product.contiguous(), _float(bias), product.shape[-1]
    out = torch.empty_like(product)
    numbers = _pointers(product, bias, out)
    function = partial(_function("relu2"), BFLOAT16[product.dtype])
    _run(product, lambda first, end: function(first, end, *numbers, width))
    return out


def bias_act_backward(
    grad_out: Tensor, product: Tensor, bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """(…, D), (…, D), (D,) -> gradients (…, D) of the product and (D,) of the bias; empty without a bias."""
    product, grad_out, bias = product.contiguous(), grad_out.to(product.dtype).contiguous(), _float(bias)
    width, grad_product = product.shape[-1], torch.empty_like(product)
    numbers = _pointers(grad_out, product, bias, grad_product)
    function = partial(_function("relu2_backward"), BFLOAT16[product.dtype])
    sums = _run_and_sum(
        product, [] if bias is None else [width],
        lambda first, end, sums: function(first, end, sums, *numbers, width),
    )
    return grad_product, sums


def qk_norm_rope_forward(
    packed: Tensor, cos: Tensor | None, sin: Tensor | None, queries: int, keys: int, epsilon: float, norm: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, (H + 2G)d), (B or 1, T, 1, d) -> (B, T, H, d), (B, T, G, d), (B, T, G, d)"""
    _check(norm in (None, "rms"))
    packed, tables = packed.contiguous(), [_float(cos), _float(sin)]
    size = packed.shape[-1] // (queries + 2 * keys)
    outs = [packed.new_empty(*packed.shape[:-1], count, size) for count in (queries, keys, keys)]
    how = _heads(packed, tables, queries, keys, epsilon, norm)
    numbers = [*_pointers(packed, *outs), addressof(how)]
    function = partial(_function("qk_norm_rope"), BFLOAT16[packed.dtype])
    _run(packed, lambda first, end: function(first, end, *numbers))
    return outs[0], outs[1], outs[2]


def qk_norm_rope_backward(
    grad_queries: Tensor, grad_keys: Tensor, grad_values: Tensor, packed: Tensor,
    cos: Tensor | None, sin: Tensor | None, epsilon: float, norm: str | None,
) -> Tensor:
    """(B, T, H, d), (B, T, G, d), (B, T, G, d) -> (B, T, (H + 2G)d): the gradient of the packed product."""
    inputs = [part.to(packed.dtype).contiguous() for part in (grad_queries, grad_keys, grad_values, packed)]
    tables, grad_packed = [_float(cos), _float(sin)], torch.empty_like(inputs[3])
    how = _heads(packed, tables, grad_queries.shape[2], grad_keys.shape[2], epsilon, norm)
    numbers = [*_pointers(*inputs, grad_packed), addressof(how)]
    function = partial(_function("qk_norm_rope_backward"), BFLOAT16[packed.dtype])
    _run(packed, lambda first, end: function(first, end, *numbers))
    return grad_packed


def dropout(x: Tensor, p: float, key: int) -> Tensor:
    """Drops with the probability p, as the key determines. The gradient is dropped with the same key."""
    x = x.contiguous()
    out, numbers = torch.empty_like(x), x.view(-1, 1)
    function = partial(_function("dropout"), BFLOAT16[x.dtype])
    pointers, lowest, scale = _pointers(x, out), round(p * LEVELS), 1 / (1 - p)
    _run(numbers, lambda first, end: function(first, end, *pointers, key, lowest, scale))
    return out


def _heads(
    packed: Tensor, tables: Sequence[Tensor | None], queries: int, keys: int, epsilon: float, norm: str | None
) -> Heads:
    """Without tables nothing is rotated. They hold T tokens if all rows of the batch have the same positions."""
    size, cos = packed.shape[-1] // (queries + 2 * keys), tables[0]
    tokens = 1 if cos is None else cos.numel() // size
    return Heads(queries, keys, size // 2, tokens, epsilon, norm is not None, *_pointers(*tables))


def _check(there_is_a_kernel: bool) -> None:
    if not there_is_a_kernel:
        raise NotImplementedError("On a CPU there are kernels for RMSNorm and ReLU² only (ops.FUSED).")


def _function(name: str) -> Any:
    function = getattr(LIBRARY.functions, name)
    function.argtypes, function.restype = SIGNATURES[name], None
    return function


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float().contiguous()


def _pointers(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _run(x: Tensor, function: Callable[[int, int], None]) -> None:
    """Calls the function for the rows of x, in several threads where they are many."""
    in_threads(lambda part: function(*part), _parts(x))


def _run_and_sum(x: Tensor, shape: list[int], function: Callable[[int, int, int | None], None]) -> Tensor:
    """The same for a function that adds up columns: a sum of this shape for each thread, and then that of all."""
    parts = _parts(x)
    if not shape:
        in_threads(lambda part: function(*part, None), parts)
        return torch.empty(0)
    sums = torch.zeros(len(parts), *shape)
    in_threads(lambda each: function(*each[0], each[1].data_ptr()), list(zip(parts, sums, strict=True)))
    return sums.sum(0)


def _parts(x: Tensor) -> list[tuple[int, int]]:
    """The first row and the end of each thread's rows."""
    rows = x.numel() // x.shape[-1]
    count = max(1, min(torch.get_num_threads(), x.numel() // PER_THREAD))
    size = -(-rows // count) or 1
    return [(first, min(rows, first + size)) for first in range(0, rows, size)]
