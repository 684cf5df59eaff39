"""FLOPs of training a network on one token, and the memory and peak FLOP/s of GPUs.

A weight that is multiplied by costs six FLOPs a token: a multiplication and an addition, once forward and twice
backward. In attention, so does each number of a key that a query attends to, and of its value.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from chainrule.layers.embedding import TokenEmbedding
from chainrule.layers.parameters import group_parameters
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Model


@dataclass(frozen=True)
class GPU:
    memory: float       # GiB
    peak: float         # TFLOP/s of dense matrix products in bf16 (fp16 where there is no bf16), by the data sheet


GPUS = {
    "b200": GPU(179, 2250),
    "h200": GPU(140, 989),
    "h100": GPU(80, 989),
    "a100": GPU(80, 312),
    "a100-40gb": GPU(40, 312),
    "mi300x": GPU(192, 1307),
    "l40s": GPU(45, 362),
    "l4": GPU(22, 121),
    "rtx5090": GPU(32, 210),
    "rtx4090": GPU(24, 165),
    "rtx3090": GPU(24, 71),
    "v100": GPU(32, 125),
    "t4": GPU(15, 65),
}


def peak_of(device: torch.device) -> float | None:
    """Peak FLOP/s of a GPU, known by its name; None: it is not in the table."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    known = name.lower().replace(" ", "")
    return next((1e12 * gpu.peak for model, gpu in GPUS.items() if model in known), None)


def training_flops(model: Model, length: int) -> float:
    """FLOPs of one token's forward and backward pass, in rows of `length` tokens."""
    settings = getattr(model, "settings", None)
    attention = attention_flops(settings, length) if isinstance(settings, TransformerSettings) else 0.0
    return 6.0 * multiplied_weights(model) + attention


def multiplied_weights(model: nn.Module) -> int:
    """All weights but embeddings, which are looked up; with weight tying, the embedding is also multiplied by."""
    looked_up = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding | TokenEmbedding)}
    used: list[Tensor] = [weight for weight in model.parameters() if id(weight) not in looked_up]
    if not group_parameters(model)[1]:
        used.append(cast(Any, model).embeddings)
    return sum(weight.numel() for weight in used)


def attention_flops(settings: TransformerSettings, length: int) -> float:
    """The dot products of queries with keys, and the weighted sums of values."""
    return 2 * 6 * settings.layers * settings.heads * settings.head_size * mean_keys(length, settings.window)


def mean_keys(length: int, window: int | None) -> float:
    """Keys that a query attends to, on average over a row: 1, 2, … up to the window."""
    window = min(window or length, length)
    return window - window * (window - 1) / 2 / length
