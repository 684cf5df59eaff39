"""A model elsewhere than where it began: a projection of zero hides what is below, a bias of zero can be forgotten."""

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def moved(model: M, by: float) -> M:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return model
