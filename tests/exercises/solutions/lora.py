import torch
from torch import Tensor, nn


class LoRALinear(nn.Module):
    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        outputs, inputs = linear.weight.shape
        self.A = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)

    def merged(self) -> nn.Linear:
        outputs, inputs = self.linear.weight.shape
        merged = nn.Linear(inputs, outputs)
        with torch.no_grad():
            merged.weight.copy_(self.linear.weight + self.scale * self.B @ self.A)
            merged.bias.copy_(self.linear.bias)
        return merged
