"""In which precision matrices are multiplied."""

import torch
from torch import Tensor


def working_dtype(like: Tensor) -> torch.dtype:
    """That of autocast, where it is on; else that of the tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype
