"""Published GPT sizes as presets: GPT, GPT-2 and GPT-3, with the numbers of the papers as settings.

GPT    Radford et al. 2018: post-norm, a context of 512 tokens, a vocabulary of 40,478
GPT-2  Radford et al. 2019: pre-norm, a context of 1024 tokens, a vocabulary of 50,257
GPT-3  Brown et al. 2020, table 2.1: a context of 2048 tokens; every second layer of theirs is sparse, ours are dense
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GPT_2 = {
    "model.positions": "learned",
    "model.norm": "layer",
    "model.epsilon": 1e-5,
    "model.norm_scale": True,
    "model.biases": True,
    "model.qk_norm": False,
    "model.norm_embedding": False,
    "model.activation": "gelu-tanh",
    "model.tied": True,
    "model.zero_init": False,
    "model.init": 0.02,
    "train.optimizer": "adamw",
}
GPT_1 = {**GPT_2, "model.norm_first": False, "model.dropout": 0.1}


@dataclass(frozen=True)
class Published:
    idea: str                            # one line for people
    preset: Mapping[str, Any]
    vocab: int                           # size of its vocabulary; any other can be used
    tokens: float | None = None          # targets it was trained on, if the paper says so


def _model(base: Mapping[str, Any], layers: int, width: int, heads: int, context: int) -> dict[str, Any]:
    return {**base, "model.layers": layers, "model.width": width, "model.heads": heads, "model.context": context}


def _gpt2(name: str, layers: int, width: int, heads: int, lr: float) -> Published:
    """The paper has no learning rates; these are those of GPT-3 of the same size."""
    preset = _model(GPT_2, layers, width, heads, 1024) | {"train.lr": lr}
    return Published(f"GPT-2 of 2019, {name}: {layers} layers, {width} wide", preset, 50257)


def _gpt3(name: str, layers: int, width: int, heads: int, size: int, batch: int, lr: float) -> Published:
    """`batch` in 1024 tokens: the paper rounds 524,288 to 0.5M."""
    preset = _model(GPT_2, layers, width, heads, 2048)
    preset |= {"model.head_size": size, "train.tokens": batch * 1024, "train.lr": lr}
    return Published(f"GPT-3 of 2020, {name}: {layers} layers, {width} wide", preset, 50257, 300e9)


PUBLISHED: Mapping[str, Published] = {
    "gpt1": Published(
        "GPT of 2018, 117M: 12 layers, 768 wide",
        _model(GPT_1, 12, 768, 12, 512) | {"train.tokens": 64 * 512, "train.lr": 2.5e-4},
        40478,
    ),
    "gpt2": _gpt2("124M", 12, 768, 12, 6e-4),              # the paper says 117M, counted in another way
    "gpt2-medium": _gpt2("355M", 24, 1024, 16, 3e-4),
    "gpt2-large": _gpt2("774M", 36, 1280, 20, 2.5e-4),
    "gpt2-xl": _gpt2("1558M", 48, 1600, 25, 2e-4),         # the paper says 1542M
    "gpt3-small": _gpt3("125M", 12, 768, 12, 64, 512, 6e-4),
    "gpt3-medium": _gpt3("350M", 24, 1024, 16, 64, 512, 3e-4),
    "gpt3-large": _gpt3("760M", 24, 1536, 16, 96, 512, 2.5e-4),
    "gpt3-xl": _gpt3("1.3B", 24, 2048, 16, 128, 1024, 2e-4),    # the table prints 24 heads, which would make it 1.5B
    "gpt3-2.7b": _gpt3("2.7B", 32, 2560, 32, 80, 1024, 1.6e-4),
    "gpt3-6.7b": _gpt3("6.7B", 32, 4096, 32, 128, 2048, 1.2e-4),
    "gpt3-13b": _gpt3("13B", 40, 5140, 40, 128, 2048, 1e-4),
    "gpt3-175b": _gpt3("175B", 96, 12288, 96, 128, 3136, 0.6e-4),
}
