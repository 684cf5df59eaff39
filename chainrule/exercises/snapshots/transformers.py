"""Snapshots of the lesson transformers: attention, gpt."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.layers.attention import Attention, AttentionMask
from chainrule.model import watch
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.published import GPT_2

Random = np.random.Generator


def attention(random: Random) -> dict[str, Any]:
    rows, length, width, heads = 2, 5, 8, 2
    X = torch.from_numpy(random.normal(size=(rows, length, width)))
    W_Q, W_K, W_V, W_O = (torch.from_numpy(random.normal(size=(width, width)) / 2) for _ in range(4))
    causal = AttentionMask(causal=True)
    many, _ = _attention(X, W_Q, W_K, W_V, W_O, heads, causal)
    one, weights = _attention(X, W_Q, W_K, W_V, torch.eye(width).double(), 1, causal)
    unmasked, _ = _attention(X, W_Q, W_K, W_V, torch.eye(width).double(), 1, AttentionMask())
    M = torch.zeros(length, length, dtype=torch.double).masked_fill(
        ~torch.ones(length, length).tril().bool(), -torch.inf
    )
    return {
        "X": X,
        "W_Q": W_Q,
        "W_K": W_K,
        "W_V": W_V,
        "W_O": W_O,
        "heads": heads,
        "M": M,
        "multi_head": many,
        "Q": X @ W_Q,
        "K": X @ W_K,
        "V": X @ W_V,
        "weights": weights[:, 0],
        "mixed": one,
        "unmasked": unmasked,
    }


@torch.no_grad()
def _attention(
    X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, heads: int, mask: AttentionMask
) -> tuple[Tensor, Tensor]:
    """The output of chainrule's attention, and its weights (B, h, T, T)."""
    width = X.shape[-1]
    layer = Attention(width, heads, heads, width // heads).double()
    layer.load_state_dict({"project.weight": torch.cat([W_Q, W_K, W_V], 1).T, "out.weight": W_O.T})
    with watch(layer, "pattern") as seen:
        found, _ = layer(X, mask)
    return found, seen["pattern"][0]


@torch.no_grad()
def gpt(random: Random) -> dict[str, Any]:
    sizes = {"width": 8, "heads": 2, "layers": 2, "context": 16}
    preset: dict[str, Any] = {name.removeprefix("model."): value for name, value in GPT_2.items() if "model." in name}
    model, vocab = GPT(GPTSettings(**{**preset, **sizes}), 7).eval(), 7
    for name, parameter in model.named_parameters():
        values = torch.from_numpy(random.normal(size=tuple(parameter.shape)) / 2)
        if name.endswith(("attention.project.bias", "attention.out.bias")):
            values = torch.zeros_like(values)  # the exercise has no biases in attention
        parameter.copy_((values * 64).round() / 64)  # short numbers, for a small file
    tokens = torch.from_numpy(random.integers(0, vocab, (2, 9)))
    logits = model.step(tokens, model.start(2))[0]
    return {**sizes, "vocab": vocab, "tokens": tokens, "logits": logits, **_by_the_names_of_the_stub(model)}


def _by_the_names_of_the_stub(model: GPT) -> dict[str, Tensor]:
    weights, names = model.state_dict(), {"E": "embedding.tokens.weight", "P": "embedding.positions.weight"}
    made = {name: weights[full] for name, full in names.items()}
    for number in range(model.settings.layers):
        block = f"stack.blocks.{number}."
        packed = weights[f"{block}attention.project.weight"].chunk(3)
        square = dict(zip(("W_Q", "W_K", "W_V", "W_O"), (*packed, weights[f"{block}attention.out.weight"])))
        made |= {f"layers.{number}.{name}": part.T.contiguous() for name, part in square.items()}
        parts = {
            "norm1": "attention_norm",
            "norm2": "feed_forward_norm",
            "ff1": "feed_forward.up",
            "ff2": "feed_forward.out",
        }
        for name, full in parts.items():
            for kind in ("weight", "bias"):
                made[f"layers.{number}.{name}.{kind}"] = weights[f"{block}{full}.{kind}"]
    made |= {f"norm.{kind}": weights[f"stack.norm.{kind}"] for kind in ("weight", "bias")}
    return {f"weights.{name}": value for name, value in made.items()}
