"""Int8 weights: linear layers quantised to 8 bits, for decoding on a CPU, whose speed is that of reading the weights.

    w ≈ s · q        q a whole number of 8 bits, s one scale for each output (symmetric quantisation, after training)

Where torch has Arm's products of 8 and 4 bits (KleidiAI, on aarch64), a weight is two numbers of 4 bits: q = 16 high +
low. They lie side by side in one matrix, and the input stands before each; it is quantised to 8 bits too, with a scale
for each token. Elsewhere torch multiplies the int8 weights by inputs in float32.

Shapes: N inputs, I numbers in an input, O outputs.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MULTIPLE = 32           # the kernels read so many numbers of an input at a time
HALVES = (-136, 119)    # q as high and low, which are from -8 to 7 each
WHOLE = (-127, 127)
MANY = 16               # inputs from which a product in float32 is faster than one of int8 weights alone


class Int8Linear(nn.Module):
    """A linear layer whose weights are quantised. It is for inference: it has no gradient, and is not saved."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.halves = has_4_bit_products()
        q, self.scales = quantise(weight, *(HALVES if self.halves else WHOLE))
        self.packed = _pack_halves(q, self.scales) if self.halves else q.to(torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) -> (…, O)"""
        out = self._products(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    def _products(self, x: Tensor) -> Tensor:
        """(N, I) -> (N, O)"""
        if self.halves:
            size, twice = self.in_features, torch.cat([x, x], 1)
            out: Tensor = torch.ops.aten._dyn_quant_matmul_4bit(twice, self.packed, size, 2 * size, self.out_features)
            return out
        if len(x) >= MANY:
            return linear(x, self.packed.to(x.dtype) * self.scales[:, None])
        return torch._weight_int8pack_mm(x, self.packed, self.scales)


def quantise(weight: Tensor, lowest: int, highest: int) -> tuple[Tensor, Tensor]:
    """(O, I) -> whole numbers, still as floats, and (O,) scales, which bfloat16 can hold."""
    weight = weight.detach()
    scales = (weight.abs().amax(1) / highest).clamp(min=1e-30).bfloat16().float()
    return (weight / scales[:, None]).round_().clamp_(lowest, highest), scales


def _pack_halves(q: Tensor, scales: Tensor) -> Tensor:
    """The two halves of a byte q + 136 are high + 8 and low + 8; a packed byte has those of two neighbours."""
    pair = (q - HALVES[0]).to(torch.uint8).view(torch.int16)              # (O, I/2): the first of two in the low byte
    high = (pair >> 4 & 0x0F) | (pair >> 8 & 0xF0)
    low = (pair & 0x0F) | (pair >> 4 & 0xF0)
    both, each = torch.cat([high, low], 1).to(torch.uint8), torch.stack([16 * scales, scales], 1).bfloat16()
    outputs, size = q.shape
    packed: Tensor = torch.ops.aten._dyn_quant_pack_4bit_weight(both, each, None, size, 2 * size, outputs)
    return packed


@cache
def has_4_bit_products() -> bool:
    """Whether torch has fast kernels for them on this machine: for these alone it packs weights in bytes."""
    try:
        nibbles, scales = torch.zeros(32, MULTIPLE, dtype=torch.uint8), torch.ones(32, 2, dtype=torch.bfloat16)
        packed = torch.ops.aten._dyn_quant_pack_4bit_weight(nibbles, scales, None, MULTIPLE, 2 * MULTIPLE, 32)
    except (AttributeError, RuntimeError):
        return False
    return bool(packed.dtype == torch.uint8)


def fits(weight: Tensor) -> bool:
    """Whether there are kernels for a matrix of this shape."""
    return weight.shape[1] % MULTIPLE == 0


def quantise_linears(model: nn.Module) -> None:
    """Replaces the linear layers in a model, except those with a parametrization (LoRA) or of another shape."""
    found = [(module, name, child) for module in model.modules() for name, child in module.named_children()
             if isinstance(child, nn.Linear) and not hasattr(child, "parametrizations") and fits(child.weight)]
    for module, name, child in found:
        setattr(module, name, Int8Linear(child.weight, child.bias))
