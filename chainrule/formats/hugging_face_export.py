"""A GPT as a language model of `transformers`: a table of architectures, which export writes and import reads.

    GPT2LMHeadModel         learned positions, LayerNorm, biases: the presets gpt2 and gpt3
    LlamaForCausalLM        RoPE, RMSNorm with a scale, SwiGLU;          Qwen3ForCausalLM: with QK norm
    MistralForCausalLM      Llama with sliding attention
    MixtralForCausalLM      Llama with experts;                          Qwen3MoeForCausalLM: with QK norm
    OlmoeForCausalLM        the same with QK norm over all heads: here, a model with one head
    NanoChatForCausalLM     the default gpt: norms without a scale, ReLU²

Each architecture says which settings it needs and which it can take; any other setting must have its default. The
folder is written by hugging_face_folder.py and read by hugging_face_import.py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from torch import Tensor

from chainrule.errors import UserError
from chainrule.formats.hugging_face import Weights, to_gpt2, to_llama
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.models.gpt import GPT, GPTSettings

VERSION = "5.0.0"    # of transformers, from which on the keys of config.json are these
CARRIED = {          # settings that every config has, or that matter in training alone
    "size", "layers", "width", "heads", "context", "head_size", "kv_heads", "hidden", "epsilon", "rope_theta", "tied",
    "rope_factor", "trained_context", "dropout", "attention_dropout", "zero_init", "init", "vectors",
    "vectors_frozen", "vectors_normalised", "active", "balance_loss", "router_z_loss",
}  # fmt: skip
NOT_YARN = ("none", "linear", "llama3")    # a norm after RoPE removes YaRN's factor of queries and keys
ROPE_TYPES = ("none", "linear", "yarn", "llama3")
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}    # positions.py: rope_frequencies
LLAMA = {"activation": "swiglu", "norm_scale": True, "norm_embedding": False}
HIDDEN_ACT = {"relu2": "relu2", "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "swiglu": "silu"}


@dataclass(frozen=True)
class Architecture:
    name: str                            # its class in transformers
    model_type: str
    config: Callable[[Any], dict[str, Any]]
    tensors: Callable[[Any], Weights]    # views of the parameters by their names
    needs: Mapping[str, Any]             # settings that differ from their defaults; a tuple: any of these
    also: Callable[[Any], dict[str, Any]] = field(default=lambda settings: {})    # that depend on others
    experts: bool = False
    swapped: str = r"(?!)"               # names of tensors of which the halves of each head change places

    def exchange(self, name: str, weight: Tensor, head_size: int) -> Tensor:
        """A tensor in their layout from ours, or in ours from theirs."""
        return _swap_halves(weight, head_size) if re.search(self.swapped, name) else weight

    def missing(self, settings: TransformerSettings) -> dict[str, Any]:
        """The settings that would have to be others, with the values that would fit; empty: it fits."""
        usual = {"attention": (("full",),), "rope_scaling": ROPE_TYPES, "experts": settings.experts}
        needs = {**usual, **self.needs, **self.also(settings)}
        choices = {one.name: (one.default,) for one in fields(settings) if one.default is not MISSING}
        choices |= {name: value if isinstance(value, tuple) else (value,) for name, value in needs.items()}
        return {name: choices[name][0] for name in choices
                if (name in needs or name not in CARRIED) and getattr(settings, name) not in choices[name]}


def llama_config(settings: TransformerSettings) -> dict[str, Any]:
    return {
        "hidden_size": settings.width,
        "intermediate_size": settings.hidden,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "head_dim": settings.head_size,
        "max_position_embeddings": settings.context,
        "hidden_act": HIDDEN_ACT[settings.activation],
        "rms_norm_eps": settings.epsilon,
        "rope_parameters": _rope_parameters(settings),
        "attention_bias": settings.biases,
        "mlp_bias": settings.biases,
    }


def _rope_parameters(settings: TransformerSettings) -> dict[str, Any]:
    parameters = {"rope_type": "default", "rope_theta": settings.rope_theta}
    if settings.rope_scaling == "none":
        return parameters
    scaled = {"rope_type": settings.rope_scaling, "factor": settings.rope_factor,
              "original_max_position_embeddings": settings.trained_context}
    return parameters | scaled | (LLAMA3 if settings.rope_scaling == "llama3" else {})


def _mistral_config(settings: GPTSettings) -> dict[str, Any]:
    return llama_config(settings) | {"sliding_window": settings.window}


def _mixtral_config(settings: GPTSettings) -> dict[str, Any]:
    return llama_config(settings) | {
        "num_local_experts": settings.experts,
        "num_experts_per_tok": settings.active,
        "router_aux_loss_coef": settings.balance_loss,
    }


def _olmoe_config(settings: GPTSettings) -> dict[str, Any]:
    return llama_config(settings) | {
        "num_experts": settings.experts,
        "num_experts_per_tok": settings.active,
        "router_aux_loss_coef": settings.balance_loss,
        "norm_topk_prob": settings.renormalise,
    }


def _qwen_config(settings: GPTSettings) -> dict[str, Any]:
    sparse = {"moe_intermediate_size": settings.hidden, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return _olmoe_config(settings) | sparse


def gpt2_config(settings: GPTSettings) -> dict[str, Any]:
    return {
        "n_embd": settings.width,
        "n_layer": settings.layers,
        "n_head": settings.heads,
        "n_inner": settings.hidden,
        "n_positions": settings.context,
        "n_ctx": settings.context,                       # llama.cpp reads this one
        "activation_function": {**HIDDEN_ACT, "gelu-tanh": "gelu_new"}[settings.activation],
        "layer_norm_epsilon": settings.epsilon,
        "resid_pdrop": settings.dropout,
        "embd_pdrop": settings.dropout,
        "attn_pdrop": settings.dropout if settings.attention_dropout is None else settings.attention_dropout,
    }


def gpt2_limits(settings: TransformerSettings) -> dict[str, Any]:
    return {"head_size": settings.width // settings.heads, "kv_heads": settings.heads}


def _nanochat_config(settings: GPTSettings) -> dict[str, Any]:
    return llama_config(settings) | {"final_logit_softcapping": settings.logit_softcap}


def to_nanochat(model: GPT) -> Weights:
    return {name.replace("mlp.gate_proj", "mlp.fc1").replace("mlp.down_proj", "mlp.fc2"): tensor
            for name, tensor in to_llama(model).items()}


def _swap_halves(weight: Tensor, head_size: int) -> Tensor:
    """(heads · d, D) -> the same, the second half of each head before the first."""
    heads = weight.view(-1, 2, head_size // 2, weight.shape[1])
    return heads.flip(1).reshape(weight.shape)


def to_mixtral(model: GPT) -> Weights:
    return _with_experts(model, "block_sparse_moe", ("w1", "w3", "w2"))


def to_olmoe(model: GPT) -> Weights:
    return _with_experts(model, "mlp", ("gate_proj", "up_proj", "down_proj"))


def _with_experts(model: GPT, place: str, names: tuple[str, str, str]) -> Weights:
    """Llama's tensors, with a router and the three matrices of each expert by themselves."""
    weights = {}
    for name, tensor in to_llama(model).items():
        found = re.fullmatch(r"(model\.layers\.\d+)\.mlp\.(gate|gate_proj|up_proj|down_proj)\.weight", name)
        if found is None:
            weights[name] = tensor
        elif found[2] == "gate":
            weights[f"{found[1]}.{place}.gate.weight"] = tensor
        else:
            matrix = names[("gate_proj", "up_proj", "down_proj").index(found[2])]
            weights |= {f"{found[1]}.{place}.experts.{number}.{matrix}.weight": one
                        for number, one in enumerate(tensor)}
    return weights


HEAD = "lm_head.weight"
PLAIN = tuple(name for name in HIDDEN_ACT if name != "swiglu")
GPT2_NEEDS = {
    "positions": "learned", "norm": "layer", "norm_scale": True, "biases": True, "qk_norm": False,
    "norm_embedding": False, "activation": ("gelu-tanh", *PLAIN),
}  # fmt: skip
ARCHITECTURES = (
    Architecture("NanoChatForCausalLM", "nanochat", _nanochat_config, to_nanochat,
                 {"activation": PLAIN, "rope_scaling": NOT_YARN},
                 lambda settings: {"logit_softcap": settings.logit_softcap},
                 swapped=r"self_attn\.[qk]_proj"),    # their RoPE turns the other way
    Architecture("LlamaForCausalLM", "llama", llama_config, to_llama,
                 {**LLAMA, "qk_norm": False, "biases": (False, True)}),
    Architecture("MistralForCausalLM", "mistral", _mistral_config, to_llama,
                 {**LLAMA, "qk_norm": False, "attention": (("sliding",),)},
                 lambda settings: {"window": settings.window}),
    Architecture("Qwen3ForCausalLM", "qwen3", llama_config, to_llama, LLAMA),
    Architecture("GPT2LMHeadModel", "gpt2", gpt2_config, to_gpt2, GPT2_NEEDS, gpt2_limits),
    Architecture("MixtralForCausalLM", "mixtral", _mixtral_config, to_mixtral, {**LLAMA, "qk_norm": False},
                 experts=True),
    Architecture("OlmoeForCausalLM", "olmoe", _olmoe_config, to_olmoe,
                 {**LLAMA, "renormalise": (False, True), "heads": 1, "kv_heads": 1},
                 lambda settings: {"head_size": settings.width}, experts=True),
    Architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen_config, to_olmoe,
                 {**LLAMA, "renormalise": (True, False)}, experts=True),
)  # fmt: skip


def find_architecture(
    settings: GPTSettings, table: Sequence[Architecture] = ARCHITECTURES, program: str = "transformers"
) -> Architecture:
    """The first that fits; else the error says what the nearest one would need."""
    able = [one for one in table if one.experts == (settings.experts > 0)]
    missing = [one.missing(settings) for one in able]
    for one, needs in zip(able, missing, strict=True):
        if not needs:
            return one
    nearest = min(range(len(able)), key=lambda place: len(missing[place]))
    needed = {f"model.{name}": value for name, value in missing[nearest].items()}
    raise UserError(f"{program} has no architecture with these settings; {able[nearest].name} would fit a model "
                    f"trained with {as_words(needed)}.")


def as_words(settings: Mapping[str, Any]) -> str:
    """As they are given on the command line."""
    return " ".join(f"{name}={_word(value)}" for name, value in settings.items())


def _word(value: Any) -> str:
    """A setting's value as it is given on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
