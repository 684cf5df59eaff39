"""Published sizes as presets: GPT, GPT-2, GPT-3 and other language models, with the numbers of the papers as settings.

GPT          Radford et al. 2018: post-norm, a context of 512 tokens, a vocabulary of 40,478
GPT-2        Radford et al. 2019: pre-norm, a context of 1024 tokens, a vocabulary of 50,257
GPT-3        Brown et al. 2020, table 2.1: a context of 2048 tokens; every second layer of theirs is sparse, ours dense
Transformer  Vaswani et al. 2017, table 3; BERT: Devlin et al. 2019; T5: Raffel et al. 2020
Gopher       Rae et al. 2021; Chinchilla: Hoffmann et al. 2022, table 4; LaMDA: Thoppilan et al. 2022
MT-NLG       Smith et al. 2022; PaLM: Chowdhery et al. 2022, table 1; LLaMA: Touvron et al. 2023, table 2; Llama 3:
             Dubey et al. 2024

What a setting cannot express is in `differs`. `chainrule plan NAME` says what training one costs.
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


LLAMA = {
    **GPT_2,
    "model.positions": "rotary",
    "model.norm": "rms",
    "model.epsilon": 1e-6,
    "model.biases": False,
    "model.activation": "swiglu",
    "model.tied": False,
}
GOPHER = {**GPT_2, "model.positions": "relative", "model.norm": "rms", "model.tied": False}
PALM = {**LLAMA, "model.tied": True, "model.head_size": 256, "model.kv_heads": 1}
TRANSFORMER = {
    **GPT_2, "model.norm_first": False, "model.positions": "sinusoidal", "model.activation": "relu",
    "model.label_smoothing": 0.1,
}
BERT = {
    **GPT_2, "model.norm_first": False, "model.norm_embedding": True, "model.epsilon": 1e-12,
    "model.activation": "gelu", "model.dropout": 0.1, "model.segments": 2, "model.transform": True, "train.lr": 1e-4,
}
XL_POSITIONS = "relative positions of Transformer-XL, with one more matrix in each layer; ours are a bias of the scores"


@dataclass(frozen=True)
class MixPart:
    """A text of a training mix, as a paper states it."""

    text: str
    tokens: float                        # that it has
    weight: float                        # fraction of the tokens drawn
    epochs: float                        # that the paper reports


GPT_3_MIX = (                            # Brown et al. 2020, table 2.2: the weights are rounded, and add up to 1.01
    MixPart("Common Crawl (filtered)", 410e9, 0.60, 0.44),
    MixPart("WebText2", 19e9, 0.22, 2.9),
    MixPart("Books1", 12e9, 0.08, 1.9),
    MixPart("Books2", 55e9, 0.08, 0.43),
    MixPart("Wikipedia", 3e9, 0.03, 3.4),
)


@dataclass(frozen=True)
class Published:
    idea: str                            # one line for people
    preset: Mapping[str, Any]
    vocab: int                           # size of its vocabulary; any other can be used
    tokens: float | None = None          # targets it was trained on, if the paper says so
    parameters: float | None = None      # as the paper states them
    year: int = 2019
    where: str = "gpt:GPT"               # module:class
    differs: str = ""                    # what no setting expresses
    mix: tuple[MixPart, ...] = ()        # of its training texts, if the paper says so


def _model(base: Mapping[str, Any], layers: int, width: int, heads: int, context: int) -> dict[str, Any]:
    return {**base, "model.layers": layers, "model.width": width, "model.heads": heads, "model.context": context}


def _gpt2(name: str, paper: str, layers: int, width: int, heads: int, lr: float) -> Published:
    """`paper`: its size by the paper, which counts in another way. It has no learning rates: these are GPT-3's."""
    preset = _model(GPT_2, layers, width, heads, 1024) | {"train.lr": lr}
    return Published(f"GPT-2 of 2019, {name}: {layers} layers, {width} wide", preset, 50257, parameters=_size(paper))


def _gpt3(name: str, layers: int, width: int, heads: int, size: int, batch: int, lr: float) -> Published:
    """`batch` in 1024 tokens: the paper rounds 524,288 to 0.5M."""
    preset = _model(GPT_2, layers, width, heads, 2048)
    preset |= {"model.head_size": size, "train.tokens": batch * 1024, "train.lr": lr}
    return Published(
        f"GPT-3 of 2020, {name}: {layers} layers, {width} wide", preset, 50257, 300e9, _size(name), 2020,
        differs="every second layer attends sparsely; ours are dense", mix=GPT_3_MIX,
    )


def _size(name: str) -> float:
    """1.3B, 350M"""
    return float(name[:-1]) * {"M": 1e6, "B": 1e9}[name[-1]]


def _llama(name: str, layers: int, width: int, heads: int, hidden: int, lr: float, tokens: float) -> Published:
    preset = _model(LLAMA, layers, width, heads, 2048)
    preset |= {"model.hidden": hidden, "train.tokens": 1 << 22, "train.lr": lr}
    return Published(f"LLaMA of 2023, {name}: {layers} layers, {width} wide, SwiGLU, RoPE", preset, 32000, tokens,
                     _size(name), 2023)


def _palm(name: str, layers: int, width: int, heads: int, batch: int) -> Published:
    """`batch` in rows of 2048 tokens, the last of the paper's schedule."""
    preset = _model(PALM, layers, width, heads, 2048) | {"model.hidden": 4 * width, "train.tokens": batch * 2048}
    return Published(f"PaLM of 2022, {name}: {layers} layers, {width} wide, SwiGLU, RoPE, multi-query attention",
                     preset, 256_000, 780e9, _size(name), 2022,
                     differs="attention and feed-forward layer side by side; ours one after the other")


def _translator(name: str, width: int, heads: int, dropout: float, steps: int, parameters: float) -> Published:
    """A step has 25,000 tokens of either language."""
    preset = _model(TRANSFORMER, 6, width, heads, 512) | {"model.dropout": dropout, "train.tokens": 25_000}
    return Published(f"Transformer of 2017, {name}: 6 + 6 layers, {width} wide, for translation", preset, 37_000,
                     25_000.0 * steps, parameters, 2017, "transformer:EncoderDecoder")


def _bert(name: str, layers: int, width: int, heads: int, parameters: float) -> Published:
    """A million steps of 256 rows of 512 tokens."""
    preset = _model(BERT, layers, width, heads, 512) | {"train.tokens": 256 * 512}
    return Published(f"BERT of 2018, {name}: {layers} layers, {width} wide, reads both sides", preset, 30_522,
                     256 * 512 * 1e6, parameters, 2018, "encoder:TransformerEncoder",
                     differs="it also learned whether one sentence follows another")


PUBLISHED: Mapping[str, Published] = {
    "gpt1": Published(
        "GPT of 2018, 117M: 12 layers, 768 wide",
        _model(GPT_1, 12, 768, 12, 512) | {"train.tokens": 64 * 512, "train.lr": 2.5e-4},
        40478, parameters=117e6, year=2018,
    ),
    "gpt2": _gpt2("124M", "117M", 12, 768, 12, 6e-4),
    "gpt2-medium": _gpt2("355M", "345M", 24, 1024, 16, 3e-4),
    "gpt2-large": _gpt2("774M", "762M", 36, 1280, 20, 2.5e-4),
    "gpt2-xl": _gpt2("1558M", "1542M", 48, 1600, 25, 2e-4),
    "gpt3-small": _gpt3("125M", 12, 768, 12, 64, 512, 6e-4),
    "gpt3-medium": _gpt3("350M", 24, 1024, 16, 64, 512, 3e-4),
    "gpt3-large": _gpt3("760M", 24, 1536, 16, 96, 512, 2.5e-4),
    "gpt3-xl": _gpt3("1.3B", 24, 2048, 16, 128, 1024, 2e-4),    # the table prints 24 heads, which would make it 1.5B
    "gpt3-2.7b": _gpt3("2.7B", 32, 2560, 32, 80, 1024, 1.6e-4),
    "gpt3-6.7b": _gpt3("6.7B", 32, 4096, 32, 128, 2048, 1.2e-4),
    "gpt3-13b": _gpt3("13B", 40, 5140, 40, 128, 2048, 1e-4),
    "gpt3-175b": _gpt3("175B", 96, 12288, 96, 128, 3136, 0.6e-4),
    "transformer-base": _translator("base", 512, 8, 0.1, 100_000, 65e6),
    "transformer-big": _translator("big", 1024, 16, 0.3, 300_000, 213e6),
    "bert-base": _bert("base", 12, 768, 12, 110e6),
    "bert-large": _bert("large", 24, 1024, 16, 340e6),
    "t5-base": Published(
        "T5 of 2020, base: 12 + 12 layers, 768 wide, restores spans",
        _model(TRANSFORMER, 12, 768, 12, 512) | {
            "model.norm_first": True, "model.positions": "relative", "model.norm": "rms", "model.biases": False,
            "model.label_smoothing": 0.0, "model.dropout": 0.1, "train.tokens": 1 << 16,
        },
        32_128, 2.0**35, 220e6, 2020, "transformer:EncoderDecoder",
    ),
    "gopher-280b": Published(
        "Gopher of 2021, 280B: 80 layers, 16384 wide",
        _model(GOPHER, 80, 16384, 128, 2048) | {"train.tokens": 6 << 20, "train.lr": 4e-5},
        32_000, 300e9, 280e9, 2021, differs=XL_POSITIONS,
    ),
    "lamda-137b": Published(
        "LaMDA of 2022, 137B: 64 layers, 8192 wide, gated feed-forward layers of 65,536",
        _model(GOPHER, 64, 8192, 128, 2048)
        | {"model.head_size": 128, "model.hidden": 65_536, "model.activation": "swiglu", "train.tokens": 1 << 18},
        32_000, 432e9, 137e9, 2022,    # by its 3.55e23 FLOPs; its texts have 2.81T tokens
        differs="gates by GELU; ours by SiLU, with the same weights",
    ),
    "mt-nlg-530b": Published(
        "Megatron-Turing NLG of 2022, 530B: 105 layers, 20480 wide",
        _model(GPT_2, 105, 20480, 128, 2048) | {"train.tokens": 1920 * 2048, "train.lr": 5e-5},
        50257, 270e9, 530e9, 2022,
    ),
    "chinchilla-70b": Published(
        "Chinchilla of 2022, 70B: 80 layers, 8192 wide; four times the text of Gopher, a quarter of its size",
        _model(GOPHER, 80, 8192, 64, 2048) | {"train.tokens": 3 << 20, "train.lr": 1e-4},
        32_000, 1.4e12, 70e9, 2022, differs=XL_POSITIONS,
    ),
    "palm-8b": _palm("8.63B", 32, 4096, 16, 512),
    "palm-62b": _palm("62.5B", 64, 8192, 32, 1024),
    "palm-540b": _palm("540.35B", 118, 18432, 48, 2048),
    "llama-7b": _llama("6.7B", 32, 4096, 32, 11008, 3e-4, 1.0e12),
    "llama-13b": _llama("13.0B", 40, 5120, 40, 13824, 3e-4, 1.0e12),
    "llama-33b": _llama("32.5B", 60, 6656, 52, 17920, 1.5e-4, 1.4e12),
    "llama-65b": _llama("65.2B", 80, 8192, 64, 22016, 1.5e-4, 1.4e12),
    "llama3-405b": Published(
        "Llama 3.1 of 2024, 405B: 126 layers, 16384 wide, 8 key/value heads",
        _model(LLAMA, 126, 16384, 128, 8192)
        | {"model.hidden": 53_248, "model.kv_heads": 8, "model.rope_theta": 500_000.0, "train.tokens": 1 << 24,
           "train.lr": 8e-5},
        128_256, 15.6e12, 405e9, 2024,
    ),
}
