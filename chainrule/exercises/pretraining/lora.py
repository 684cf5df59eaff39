"""Exercise lora: fine-tuning a linear layer by a low-rank adapter (Hu et al. 2022).

    y = W x + c + (alpha / r) · B A x        W and the bias c are frozen; B starts at zero, A is random

Shapes: I inputs, O outputs, r rank; W (O, I), A (r, I), B (O, r).
"""

from torch import Tensor, nn


class LoRALinear(nn.Module):
    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        """Keeps `linear`, whose weights must not be trained any more, and makes the parameters `A` and `B`.

        Before training the layer computes what `linear` computes.
        """
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) -> (…, O), by the formula above."""
        raise NotImplementedError

    def merged(self) -> nn.Linear:
        """A plain linear layer that computes the same: its weight is W + (alpha / r) · B A. `linear` stays as it is."""
        raise NotImplementedError
