"""GGUF's architectures: names, layouts and keys of `llama`, `gpt2` and `talkie`, one table for import and export.

    llama     RoPE, RMSNorm with a scale, SwiGLU; biases and experts where a file has them. In the file the two halves
              of each head's queries and keys are interleaved, as llama.cpp rotates neighbouring numbers
    gpt2      learned positions, LayerNorm, biases, GELU
    talkie    the default gpt with SwiGLU: QK norm, norms without a scale, a norm of the embedding

A tensor's numpy shape is (out, in), as ours. Some tensors have no counterpart here: import accepts them with the value
that changes no result, and export writes this.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.formats.hugging_face import Weights, split_tensors
from chainrule.formats.hugging_face_config import choice, number
from chainrule.formats.hugging_face_export import LLAMA, Architecture
from chainrule.layers.positions import rope_frequencies
from chainrule.layers.transformer_settings import RopeScaling
from chainrule.models.gpt import GPT, GPTSettings

Fields = Mapping[str, Any]
HEAD, EMBEDDING, ROPE_FACTORS = "output.weight", "token_embd.weight", "rope_freqs.weight"
BODY = {"embedding.tokens": "token_embd", "embedding.positions": "position_embd", "stack.norm": "output_norm",
        "output": "output"}
LAYER = {
    "attention_norm": ["attn_norm"],
    "attention.project": ["attn_q", "attn_k", "attn_v"],
    "attention.out": ["attn_output"],
    "feed_forward_norm": ["ffn_norm"],
    "feed_forward.up": ["ffn_gate", "ffn_up"],
    "feed_forward.out": ["ffn_down"],
}
EXPERTS = {"feed_forward.router": ["ffn_gate_inp"], "feed_forward.up": ["ffn_gate_exps", "ffn_up_exps"],
           "feed_forward.out": ["ffn_down_exps"]}
GPT2 = {"attention.project": ["attn_qkv"], "feed_forward.up": ["ffn_up"]}
SAME = {"context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"}
ROPE = {"rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.finetuned", "rope.scaling.attn_factor",
        "rope.scale_linear"}
RMS, LAYER_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def to_llama(model: GPT) -> Weights:
    return split_tensors(model, BODY, LAYER | (EXPERTS if model.settings.experts else {}), "blk")


def to_gpt2(model: GPT) -> Weights:
    return split_tensors(model, BODY, LAYER | GPT2, "blk")


@dataclass(frozen=True)
class GGUFArchitecture(Architecture):
    """Its `config` gives keys without the architecture's name in front."""

    keys: frozenset[str] = frozenset()          # that import understands

    def exchange(self, name: str, weight: Tensor, head_size: int) -> Tensor:
        """In the file's layout: halves of heads become neighbouring pairs."""
        if not re.search(self.swapped, name):
            return weight
        return weight.view(-1, 2, head_size // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

    def exchange_back(self, name: str, weight: Tensor, head_size: int) -> Tensor:
        """In our layout."""
        if not re.search(self.swapped, name):
            return weight
        return weight.view(-1, head_size // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

    def constants(self, settings: GPTSettings) -> dict[str, Tensor]:
        """Tensors that are no parameters here, with the only values that they can have."""
        if self.name == "talkie":
            layers = range(settings.layers)
            gains = {f"blk.{layer}.attn_q_norm.weight": torch.ones(settings.heads, 1) for layer in layers}
            return gains | {f"blk.{layer}.layer_output_scale.weight": torch.zeros(1) for layer in layers}
        if settings.rope_scaling == "llama3":
            return {ROPE_FACTORS: llama3_factors(settings.head_size, settings.rope_theta, settings.rope)}
        return {}

    def settings(self, fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Settings from the keys and tensors of a file; a key that has no setting here is refused."""
        mine = {name.removeprefix(f"{self.name}."): value for name, value in fields.items()
                if name.startswith(f"{self.name}.")}
        for name in mine:
            if name not in self.keys:
                raise UserError(f"the file has {self.name}.{name}={_short(mine[name])}, which cannot be imported.")
        return _general(self, fields) | (GPT2_SETTINGS if self.name == "gpt2" else _llama(self, fields, shapes))


def _general(one: GGUFArchitecture, fields: Fields) -> dict[str, Any]:
    key = f"{one.name}."
    width, heads = (_number(fields, key + name) for name in ("embedding_length", "attention.head_count"))
    size = _number(fields, key + "attention.key_length", max(1, width // heads))
    if (values := _number(fields, key + "attention.value_length", size)) != size:
        raise UserError(f"the file has {key}attention.value_length={values} and keys of {size} numbers; here both have "
                        "the same.")
    return {
        "layers": _number(fields, key + "block_count"),
        "width": width,
        "heads": heads,
        "kv_heads": _number(fields, key + "attention.head_count_kv", heads),
        "head_size": size,
        "hidden": _number(fields, key + "feed_forward_length"),
        "context": _number(fields, key + "context_length"),
        "epsilon": _real(fields, key + (LAYER_NORM if one.name == "gpt2" else RMS)),
        "zero_init": False,
    }  # fmt: skip


def _llama(one: GGUFArchitecture, fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    made = {name: value for name, value in one.needs.items() if not isinstance(value, tuple)}
    made["biases"] = any(name.endswith(".bias") for name in shapes)
    if one.name == "talkie" and (scale := fields.get("talkie.logit_scale", 1.0)) != 1.0:
        raise UserError(f"the file has talkie.logit_scale={scale}, which cannot be imported; 1 can.")
    if experts := fields.get(f"{one.name}.expert_count"):
        made |= {"experts": experts, "active": _number(fields, f"{one.name}.expert_used_count"), "biases": False}
    return made | _rope(one.name, fields)


def _rope(name: str, fields: Fields) -> dict[str, Any]:
    key, file = f"{name}.rope.", "the file"
    heads, width = fields[f"{name}.attention.head_count"], fields[f"{name}.embedding_length"]
    size = fields.get(f"{name}.attention.key_length", width // heads)
    if (rotated := _number(fields, key + "dimension_count", size)) != size:
        raise UserError(f"the file has {key}dimension_count={rotated}: only a part of each head of {size} numbers is "
                        "rotated, which cannot be imported.")
    made = {"rope_theta": _real(fields, key + "freq_base", 10_000.0)}
    kinds = {"none": "none", "linear": "linear", "yarn": "yarn"}
    kind = choice(fields, key + "scaling.type", kinds, "none", file)
    for other in ("scaling.attn_factor", "scale_linear"):
        if fields.get(key + other, 1.0) != 1.0:
            raise UserError(f"the file has {key}{other}={fields[key + other]}, which cannot be imported; 1 can.")
    if kind == "none":
        return made
    factor, context = _real(fields, key + "scaling.factor"), _number(fields, f"{name}.context_length")
    usual = context if kind == "yarn" else max(1, round(context / factor))
    trained = _number(fields, key + "scaling.original_context_length", usual)
    return made | {"rope_scaling": kind, "rope_factor": factor, "trained_context": trained}


def find_llama3(factors: Tensor, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of Llama 3's RoPE whose divisors of the frequencies are those in a file."""
    most = round(float(factors.max()), 4)
    for trained in (8192, *(1 << power for power in range(1, 24))):
        scaling = RopeScaling("llama3", most, trained)
        wanted = llama3_factors(settings["head_size"], settings["rope_theta"], scaling)
        if wanted.shape == factors.shape and torch.allclose(wanted, factors, rtol=1e-4):
            return {"rope_scaling": "llama3", "rope_factor": most, "trained_context": trained}
    raise UserError(f"the tensor {ROPE_FACTORS} stretches RoPE in another way than Llama 3, which cannot be imported.")


def llama3_factors(size: int, theta: float, scaling: RopeScaling) -> Tensor:
    """(d/2,): by what the frequency of each pair is divided."""
    return rope_frequencies(size, theta)[0] / rope_frequencies(size, theta, scaling)[0]


def _number(fields: Fields, name: str, default: float | None = None) -> int:
    return int(number(fields, name, default, file="the file"))


def _real(fields: Fields, name: str, default: float | None = None) -> float:
    """A number of 32 bits, as the decimal that it was written as."""
    return float(str(np.float32(number(fields, name, default, whole=False, file="the file"))))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


# Keys of a run's settings


def _common_keys(settings: GPTSettings) -> dict[str, Any]:
    return {
        "context_length": settings.context,
        "embedding_length": settings.width,
        "block_count": settings.layers,
        "feed_forward_length": settings.hidden,
        "attention.head_count": settings.heads,
        "attention.head_count_kv": settings.kv_heads,
    }


def _gpt2_keys(settings: GPTSettings) -> dict[str, Any]:
    return _common_keys(settings) | {LAYER_NORM: settings.epsilon}


def _llama_keys(settings: GPTSettings) -> dict[str, Any]:
    keys = _common_keys(settings) | {
        "attention.key_length": settings.head_size,
        "attention.value_length": settings.head_size,
        RMS: settings.epsilon,
        "rope.dimension_count": settings.head_size,
        "rope.freq_base": settings.rope_theta,
    }
    if settings.rope_scaling in ("linear", "yarn"):
        keys |= {"rope.scaling.type": settings.rope_scaling, "rope.scaling.factor": settings.rope_factor,
                 "rope.scaling.original_context_length": settings.trained_context}
    if settings.experts:
        keys |= {"expert_count": settings.experts, "expert_used_count": settings.active}
    return keys


def _talkie_keys(settings: GPTSettings) -> dict[str, Any]:
    return _llama_keys(settings) | {"logit_scale": 1.0}


def _gpt2_limits(settings: GPTSettings) -> dict[str, Any]:
    return {"head_size": settings.width // settings.heads, "kv_heads": settings.heads}


GPT2_SETTINGS = {"positions": "learned", "norm": "layer", "norm_scale": True, "biases": True, "qk_norm": False,
                 "norm_embedding": False, "activation": "gelu-tanh"}
RMS_KEYS = frozenset(SAME | ROPE | {RMS})
LLAMA_NEEDS = {**LLAMA, "qk_norm": False}
INTERLEAVED = r"\.attn_[qk]\.(weight|bias)$"
TABLE = (
    GGUFArchitecture("talkie", "talkie", _talkie_keys, to_llama,
                     {"activation": "swiglu", "rope_scaling": ("none", "linear", "yarn")},
                     keys=RMS_KEYS | {"logit_scale"}),
    GGUFArchitecture("llama", "llama", _llama_keys, to_llama, {**LLAMA_NEEDS, "biases": (False, True)},
                     swapped=INTERLEAVED, keys=RMS_KEYS | {"expert_count", "expert_used_count"}),
    GGUFArchitecture("llama", "llama", _llama_keys, to_llama, LLAMA_NEEDS, experts=True, swapped=INTERLEAVED),
    GGUFArchitecture("gpt2", "gpt2", _gpt2_keys, to_gpt2, GPT2_SETTINGS, _gpt2_limits,
                     keys=frozenset(SAME | {LAYER_NORM})),
)  # fmt: skip
