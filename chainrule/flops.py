"""FLOPs of training a network on one token, bytes of its activations and KV cache, memory and peak FLOP/s of GPUs.

A weight that is multiplied by costs six FLOPs a token: a multiplication and an addition, once forward and twice
backward. In attention, so does each number of a key that a query attends to, and of its value. So a row of T tokens
costs a recurrent network a·T FLOPs, and a Transformer a·T + b·T².
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, cast

import torch
from torch import nn

from chainrule.layers.embedding import TokenEmbedding
from chainrule.layers.experts import Experts
from chainrule.layers.parameters import group_parameters
from chainrule.layers.transformer_settings import AttentionKind, TransformerSettings
from chainrule.model import Model

ENDS = re.compile(r"(source_)?embedding\.(weight|output|bias)")    # parameters with a row for each token


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


def training_flops(model: Model, length: int, source: int | None = None) -> float:
    """FLOPs of one token's forward and backward pass, in rows of `length` tokens.

    Where a source is read, `source` is the number of its tokens in each row; None: as many as the row has.
    """
    return 3.0 * forward_flops(model, length, source)


def forward_flops(model: Model, length: int, source: int | None = None) -> float:
    """The same of the forward pass alone."""
    read, ratio = source_weights(model), 1.0 if source is None else source / length
    return 2.0 * (multiplied_weights(model) - read + ratio * read) + attention_flops(model, length, source or length)


def row_flops(model: Model, lengths: Iterable[int]) -> list[float]:
    """FLOPs of the forward pass of one row, for rows of these lengths: a·T, with attention a·T + b·T²."""
    weights = 2.0 * multiplied_weights(model)
    return [length * (weights + attention_flops(model, length, length)) for length in lengths]


def multiplied_weights(model: nn.Module) -> int:
    """All weights that a token is multiplied by: not embeddings, which are looked up, and not idle experts.

    With weight tying, the embedding is also multiplied by.
    """
    used = sum(count for _, count in _multiplied(model))
    tied = not group_parameters(model)[1]
    return used + int(cast(Any, model).embeddings.numel() if tied else 0)


def source_weights(model: Model) -> int:
    """Of these, the weights that multiply the vectors of a source."""
    return sum(count for name, count in _multiplied(model)
               if any(fnmatch(name, pattern) for pattern in model.source_parameters))


def idle_weights(model: nn.Module) -> int:
    """Weights of experts that a token does not use."""
    return sum(_idle(model).values())


def _multiplied(model: nn.Module) -> list[tuple[str, int]]:
    """The names of weights that are not looked up, and how many numbers of each a token is multiplied by."""
    looked_up = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding | TokenEmbedding)}
    idle = _idle(model)
    return [(name, weight.numel() - idle.get(id(weight), 0))
            for name, weight in model.named_parameters() if id(weight) not in looked_up]


def _idle(model: nn.Module) -> dict[int, int]:
    """By the id of a weight of E experts, of which a token uses k: the numbers of the E - k others."""
    return {id(part.weight): part.weight.numel() * (layer.experts - layer.active) // layer.experts
            for layer in model.modules() if isinstance(layer, Experts) for part in (layer.up, layer.out)}


def attention_flops(model: Model, length: int, source: int) -> float:
    """The dot products of a token's query with keys, and the weighted sums of values, in the forward pass."""
    settings: Any = getattr(model, "settings", None)
    if isinstance(settings, TransformerSettings):
        keys = sum(attended_keys(settings, kind, length, causal=not model.bidirectional)
                   for kind in settings.attention_kinds)
        if model.needs_source:
            encoder = sum(attended_keys(settings, kind, source, causal=False) for kind in settings.attention_kinds)
            keys += settings.layers * source + encoder * source / length    # cross-attention, and the encoder's own
        return 4.0 * settings.heads * settings.head_size * keys
    if model.needs_source and getattr(model, "attention", None) is not None:
        return 4.0 * float(settings.hidden) * source
    return 0.0


def attended_keys(settings: TransformerSettings, kind: AttentionKind, length: int, *, causal: bool = True) -> float:
    """Keys that a query of a layer attends to, on average over a row of `length` tokens."""
    if kind == "local":
        size, (whole, rest) = settings.span(kind), divmod(length, settings.span(kind))
        within = [part * (mean_keys(part, None) if causal else part) for part in (size, max(rest, 1))]
        return (whole * within[0] + (within[1] if rest else 0)) / length
    if kind == "compressed" and settings.stride:
        groups, rest = divmod(length, settings.stride)
        seen = settings.stride * groups * (groups - 1) / 2 + groups * (rest + 1)    # of queries 1 to T: t // stride
        return 1 + (seen / length if causal else -(-length // settings.stride))     # and the null key
    return mean_keys(length, None if kind == "full" else settings.span(kind)) if causal else length


def mean_keys(length: int, window: int | None) -> float:
    """Keys that a query attends to, on average over a row: 1, 2, … up to the window."""
    window = min(window or length, length)
    return window - window * (window - 1) / 2 / length


def kept_bytes(model: nn.Module, ratio: float = 0.0) -> float:
    """Bytes of activations that a token keeps for the backward pass, in mixed precision.

    `ratio`: tokens of a source for each token; 0: there is no source.
    """
    settings = getattr(model, "settings", None)
    if isinstance(settings, TransformerSettings):
        return activation_bytes(settings, ratio)
    inside = hidden_weights(model)
    encoder = sum(len(weight) for name, weight in inside if name.startswith("encoder."))
    outputs = sum(len(weight) for _, weight in inside) + ((ratio - 1) * encoder if ratio else 0.0)
    return 4.0 * outputs                                                 # kept: the output of each matrix


def hidden_weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters, by name, that have no row for each token."""
    return [(name, weight) for name, weight in model.named_parameters() if not ENDS.match(name)]


def activation_bytes(settings: TransformerSettings, ratio: float = 0.0) -> float:
    """Bytes that a token keeps for the backward pass: the residual stream in float32, all else in bf16.

    `ratio`: tokens of a source for each token, in an encoder-decoder; 0: there is no source.
    """
    width, heads, keys = settings.width, settings.heads * settings.head_size, settings.kv_heads * settings.head_size
    turned = settings.qk_norm + (settings.positions == "rotary")        # copies of queries and keys
    hidden = {"relu": 1, "relu2": 2, "gelu": 2, "gelu-tanh": 2, "swiglu": 4, "geglu": 4}[settings.activation]
    hidden *= settings.hidden
    if settings.active:                                                  # and what experts read and write
        hidden = (settings.active + settings.shared_expert) * hidden + 3 * settings.active * width
    norm = 4 * width + 2 * width                                         # its input and output
    block = 2 * norm + 2 * (heads + 2 * keys + heads + hidden)           # q, k, v, attention output, hidden units
    block += 2 * (heads + keys) * turned
    block += 2 * width * (settings.dropout > 0)                          # two dropout masks of one byte
    cross = norm + 2 * 2 * heads + 2 * heads * settings.qk_norm + width * (settings.dropout > 0)
    memory = 2 * 2 * keys + 2 * keys * settings.qk_norm                  # keys and values of the source
    layer = block + (cross + ratio * (memory + block) if ratio else 0.0)
    return settings.layers * layer + 12 * width * (1 + ratio)


def kv_cache_bytes(settings: TransformerSettings, length: int) -> int:
    """Of a row of `length` tokens, in bf16: each layer keeps what can still be attended to."""
    kept = sum(_cached_tokens(settings, kind, length) for kind in settings.attention_kinds)
    return 2 * 2 * kept * settings.kv_heads * settings.head_size


def _cached_tokens(settings: TransformerSettings, kind: AttentionKind, length: int) -> int:
    if kind == "compressed" and settings.stride:
        return 1 + length // settings.stride
    return length if kind == "full" else min(length, settings.span(kind))
