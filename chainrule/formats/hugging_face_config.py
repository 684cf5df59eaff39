"""The config.json of a Hugging Face model as settings of a gpt: one reader for each architecture that is imported.

A number that is missing or impossible, and a feature that has no setting here, is refused by its name. Names and
layouts of the tensors are those of the table of export (hugging_face_export.py).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chainrule.errors import UserError
from chainrule.formats.hugging_face import ACTIVATIONS
from chainrule.formats.hugging_face_export import ARCHITECTURES, HIDDEN_ACT, LLAMA, LLAMA3, NOT_YARN, Architecture

Config = Mapping[str, Any]
MOST = 1 << 24
NEVER, ALWAYS = r"(?!)", r""    # patterns


@dataclass(frozen=True)
class Reader:
    """How an architecture's folder becomes a gpt."""

    name: str                                          # its class in transformers
    settings: Callable[[Config], dict[str, Any]]
    architecture: Architecture                         # names and layouts of the tensors
    tied: bool = False                                 # where config.json does not say it
    biases: Callable[[Config], str] = lambda config: NEVER    # names of the biases that the files hold
    rename: Callable[[str], str] = lambda name: name   # the usual name of a tensor of other files, such as of the body


def architecture_name(config: Config) -> str | None:
    """The class of transformers that config.json names."""
    names = config.get("architectures") or [None]
    if not isinstance(names, list) or not isinstance(names[0], str | None):
        raise UserError(f"config.json has architectures={json.dumps(names)}; a list with a name is expected.")
    return names[0]


def find_reader(config: Config) -> Reader:
    name, kind = architecture_name(config), config.get("model_type")
    for reader in READERS:
        if name == reader.name or (name is None and kind == reader.architecture.model_type):
            return reader
    known = ", ".join([*(reader.name for reader in READERS), "BertForMaskedLM", "BertModel",
                       "T5ForConditionalGeneration"])
    raise UserError(f"config.json has the architecture {name or kind}, which cannot be imported; these can: "
                    f"{known}.")


def number(
    config: Config, name: str, default: float | None = None, *, whole: bool = True, file: str = "config.json"
) -> Any:
    """A number of config.json, or of another file, that is above 0."""
    value: Any = config.get(name)
    if value is None and default is not None:
        return default
    if name not in config:
        raise UserError(f"{file} has no {name}; a {config.get('model_type', 'model')} needs it.")
    types = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, types) or not 0 < value <= (MOST if whole else 1e12):
        kind = f"a whole number from 1 to {MOST:,}" if whole else "a number above 0"
        raise UserError(f"{file} has {name}={json.dumps(value)}; {kind} is expected.")
    return value


def coefficient(config: Config, name: str, default: float = 0.0) -> float:
    """A number of config.json that may be 0."""
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        raise UserError(f"config.json has {name}={json.dumps(value)}; a number that is 0 or more is expected.")
    return float(value)


def choice(
    config: Config, name: str, known: Mapping[str, str], default: str, file: str = "config.json"
) -> str:
    value = config.get(name, default)
    if not isinstance(value, str) or value not in known:
        raise UserError(f"{file} has {name}={json.dumps(value)}, which cannot be imported; {' or '.join(known)} can.")
    return known[value]


def refuse_others(config: Config, **usual: Any) -> None:
    """Features that have no setting here must be as they usually are."""
    for name, value in usual.items():
        if config.get(name, value) != value:
            raise UserError(f"config.json has {name}={json.dumps(config[name])}, which cannot be imported; "
                            f"{json.dumps(value)} can.")


def llama_settings(config: Config) -> dict[str, Any]:
    heads, width = number(config, "num_attention_heads"), number(config, "hidden_size")
    refuse_others(config, partial_rotary_factor=1.0, clip_qkv=None)
    return {
        **LLAMA, "qk_norm": False,
        "activation": choice(config, "hidden_act", {"silu": "swiglu", "swish": "swiglu"}, "silu"),
        "layers": number(config, "num_hidden_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": number(config, "num_key_value_heads", heads),
        "head_size": number(config, "head_dim", max(1, width // heads)),
        "hidden": number(config, "intermediate_size"),
        "context": number(config, "max_position_embeddings"),
        "epsilon": number(config, "rms_norm_eps", 1e-6, whole=False),
        "biases": bool(config.get("attention_bias") or config.get("mlp_bias")),
        "zero_init": False,
        **attention(config),
        **rope(config),
    }  # fmt: skip


def attention(config: Config) -> dict[str, Any]:
    """Full or sliding, by layer where config.json has a list of them."""
    window = config.get("sliding_window")
    off = window is None or config.get("use_sliding_window") is False
    usual = "full_attention" if off else "sliding_attention"
    kinds = {"full_attention": "full", "sliding_attention": "sliding"}
    layers = config.get("layer_types") or [usual]
    if not isinstance(layers, list) or len(layers) not in (1, config["num_hidden_layers"]):
        raise UserError(f"config.json has layer_types={json.dumps(layers)}; a list, one for each layer, is expected.")
    listed = tuple(choice({"layer_types": name}, "layer_types", kinds, usual) for name in layers)
    if set(listed) == {"full"}:
        return {}
    if config.get("layer_types") is None and config.get("use_sliding_window"):
        raise UserError("config.json has use_sliding_window=true without layer_types, which cannot be imported.")
    same = (listed[0],) if len(set(listed)) == 1 else listed
    return {"attention": same, "window": number(config, "sliding_window")}


def rope(config: Config) -> dict[str, Any]:
    """RoPE's θ and scaling: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise UserError(f"config.json has rope_parameters={json.dumps(given)}; an object is expected.")
    theta = number(given if "rope_theta" in given else config, "rope_theta", 10_000.0, whole=False)
    kinds = {"default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}
    kind = choice({"rope_type": given.get("rope_type", given.get("type", "default"))}, "rope_type", kinds, "default")
    refuse_others(given, beta_fast=32.0, beta_slow=1.0, attention_factor=None, mscale=None, truncate=True,
                  partial_rotary_factor=1.0)
    if kind == "none":
        return {"rope_theta": float(theta)}
    if kind == "llama3":
        refuse_others(given, **LLAMA3)
    factor, context = number(given, "factor", whole=False), number(config, "max_position_embeddings")
    usual = context if kind == "yarn" else max(1, round(context / factor))
    trained = number(given, "original_max_position_embeddings", usual)
    return {"rope_theta": float(theta), "rope_scaling": kind, "rope_factor": float(factor), "trained_context": trained}


def llama_biases(config: Config) -> str:
    parts = ["self_attn"] * bool(config.get("attention_bias")) + ["mlp"] * bool(config.get("mlp_bias"))
    return rf"\.({'|'.join(parts)})\." if parts else NEVER


def qwen2_settings(config: Config) -> dict[str, Any]:
    return llama_settings(config) | {"biases": True}


def qwen3_settings(config: Config) -> dict[str, Any]:
    return llama_settings(config) | {"qk_norm": True}


def mixtral_settings(config: Config) -> dict[str, Any]:
    return llama_settings(config) | expert_settings(config)


def expert_settings(config: Config) -> dict[str, Any]:
    name = "num_local_experts" if "num_local_experts" in config else "num_experts"    # a file has either
    return {"experts": number(config, name), "active": number(config, "num_experts_per_tok"), "biases": False,
            "balance_loss": coefficient(config, "router_aux_loss_coef")}


def olmoe_settings(config: Config) -> dict[str, Any]:
    made = llama_settings(config)
    if made["heads"] != 1 or made["kv_heads"] != 1:
        raise UserError(f"config.json has num_attention_heads={made['heads']}: an OLMoE norms the queries of all heads "
                        "together, which cannot be imported unless it has one head.")
    refuse_others(config, attention_bias=False)
    renormalise = bool(config.get("norm_topk_prob", False))
    return made | expert_settings(config) | {"qk_norm": True, "renormalise": renormalise}


def qwen3_moe_settings(config: Config) -> dict[str, Any]:
    refuse_others(config, decoder_sparse_step=1, mlp_only_layers=[], attention_bias=False)
    renormalise = bool(config.get("norm_topk_prob", False))
    hidden = number(config, "moe_intermediate_size")
    return qwen3_settings(config) | expert_settings(config) | {"hidden": hidden, "renormalise": renormalise}


def nanochat_settings(config: Config) -> dict[str, Any]:
    known = {theirs: ours for ours, theirs in HIDDEN_ACT.items() if ours != "swiglu"}
    cap = config.get("final_logit_softcapping", 15.0)
    given = llama_settings({**config, "hidden_act": "silu"})
    refuse_others(config, attention_bias=False)
    choice({"rope_type": given.get("rope_scaling", "none")}, "rope_type", dict(zip(NOT_YARN, NOT_YARN)), "none")
    return given | {
        "activation": choice(config, "hidden_act", known, "relu2"), "norm_scale": False, "norm_embedding": True,
        "qk_norm": True, "logit_softcap": None if cap is None else number({"cap": cap}, "cap", whole=False),
    }  # fmt: skip


def gpt2_settings(config: Config) -> dict[str, Any]:
    refuse_others(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = number(config, "n_embd")
    return {
        "positions": "learned", "norm": "layer", "norm_scale": True, "biases": True, "qk_norm": False,
        "norm_embedding": False, "zero_init": False,
        "activation": choice(config, "activation_function", ACTIVATIONS, "gelu_new"),
        "layers": number(config, "n_layer"),
        "width": width,
        "heads": number(config, "n_head"),
        "hidden": number(config, "n_inner", 4 * width),
        "context": number(config, "n_positions"),
        "epsilon": number(config, "layer_norm_epsilon", 1e-5, whole=False),
        "init": coefficient(config, "initializer_range"),
    }  # fmt: skip


def check_bert(config: Config) -> None:
    """The numbers and names that `bert_settings` reads."""
    for size in ("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
                 "max_position_embeddings"):  # fmt: skip
        number(config, size)
    number(config, "type_vocab_size", 2)
    number(config, "layer_norm_eps", 1e-12, whole=False)
    coefficient(config, "initializer_range")
    choice(config, "hidden_act", ACTIVATIONS, "gelu")
    if coefficient(config, "hidden_dropout_prob") >= 1:
        raise UserError(f"config.json has hidden_dropout_prob={config['hidden_dropout_prob']}; less than 1 is "
                        "expected.")


TABLE = {one.name: one for one in ARCHITECTURES}
LLAMA_TENSORS = TABLE["LlamaForCausalLM"]
READERS = (
    Reader("GPT2LMHeadModel", gpt2_settings, TABLE["GPT2LMHeadModel"], tied=True, biases=lambda config: ALWAYS,
           rename=lambda name: name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"),
    Reader("LlamaForCausalLM", llama_settings, LLAMA_TENSORS, biases=llama_biases),
    Reader("MistralForCausalLM", llama_settings, TABLE["MistralForCausalLM"], biases=llama_biases),
    Reader("Qwen2ForCausalLM", qwen2_settings, LLAMA_TENSORS, biases=lambda config: r"\.[qkv]_proj\."),
    Reader("Qwen3ForCausalLM", qwen3_settings, TABLE["Qwen3ForCausalLM"], biases=llama_biases),
    Reader("NanoChatForCausalLM", nanochat_settings, TABLE["NanoChatForCausalLM"]),
    Reader("MixtralForCausalLM", mixtral_settings, TABLE["MixtralForCausalLM"]),
    Reader("OlmoeForCausalLM", olmoe_settings, TABLE["OlmoeForCausalLM"]),
    Reader("Qwen3MoeForCausalLM", qwen3_moe_settings, TABLE["Qwen3MoeForCausalLM"]),
)
