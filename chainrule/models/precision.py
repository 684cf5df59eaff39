"""In which precision matrices are multiplied, and what blocks pass upward."""

import torch
from torch import Tensor

from chainrule.switch import Switch

_low_stream = Switch()
low_stream = _low_stream.turned    # within, what blocks pass upward is as precise as what is added to it


def working_dtype(like: Tensor) -> torch.dtype:
    """That of autocast, where it is on; else that of the tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


def streamed(x: Tensor) -> Tensor:
    """As it is passed upward."""
    return x.to(working_dtype(x)) if _low_stream.on else x
