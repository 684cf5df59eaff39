"""Export of a GPT to a Hugging Face folder: `transformers`, vLLM and others read it. A table of architectures.

    GPT2LMHeadModel         learned positions, LayerNorm, biases: the presets gpt2 and gpt3
    LlamaForCausalLM        RoPE, RMSNorm with a scale, SwiGLU;          Qwen3ForCausalLM: with QK norm
    MistralForCausalLM      Llama with sliding attention
    MixtralForCausalLM      Llama with experts;                          Qwen3MoeForCausalLM: with QK norm
    OlmoeForCausalLM        the same with QK norm over all heads: here, a model with one head
    NanoChatForCausalLM     the default gpt: norms without a scale, ReLU²

Each architecture says which settings it needs and which it can take; any other setting must have its default. A folder
holds config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json. Import
(hugging_face_import.py) uses the same table.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.files import write_folder_aside
from chainrule.formats.hugging_face import Weights, to_gpt2, to_llama
from chainrule.model import BOUNDARY
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.progress import short
from chainrule.run import Run, write_tensors
from chainrule.text.tokenizers.tokenizer import Tokenizer

VERSION = "5.0.0"    # of transformers, from which on the keys of config.json are these
CARRIED = {          # settings that every config has, or that matter in training alone
    "size", "layers", "width", "heads", "context", "head_size", "kv_heads", "hidden", "epsilon", "rope_theta", "tied",
    "rope_factor", "trained_context", "dropout", "zero_init", "init", "vectors", "vectors_frozen", "active",
    "balance_loss", "router_z_loss",
}  # fmt: skip
ROPE_TYPES = ("none", "linear", "yarn", "llama3")
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}    # positions.py: rope_frequencies
LLAMA = {"activation": "swiglu", "norm_scale": True, "norm_embedding": False}
HIDDEN_ACT = {"relu2": "relu2", "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "swiglu": "silu"}


@dataclass(frozen=True)
class Architecture:
    name: str                            # its class in transformers
    model_type: str
    config: Callable[[GPTSettings], dict[str, Any]]
    tensors: Callable[[GPT], Weights]    # views of the parameters by their names
    needs: Mapping[str, Any]             # settings that differ from their defaults; a tuple: any of these
    also: Callable[[GPTSettings], dict[str, Any]] = field(default=lambda settings: {})    # that depend on others
    experts: bool = False
    swapped: str = r"(?!)"               # names of tensors of which the halves of each head change places

    def exchange(self, name: str, weight: Tensor, head_size: int) -> Tensor:
        """A tensor in their layout from ours, or in ours from theirs."""
        return _swap_halves(weight, head_size) if re.search(self.swapped, name) else weight

    def missing(self, settings: GPTSettings) -> dict[str, Any]:
        """The settings that would have to be others, with the values that would fit; empty: it fits."""
        usual = {"attention": (("full",),), "rope_scaling": ROPE_TYPES, "experts": settings.experts}
        needs = {**usual, **self.needs, **self.also(settings)}
        choices = {one.name: (one.default,) for one in fields(settings) if one.default is not MISSING}
        choices |= {name: value if isinstance(value, tuple) else (value,) for name, value in needs.items()}
        return {name: choices[name][0] for name in choices
                if (name in needs or name not in CARRIED) and getattr(settings, name) not in choices[name]}


def _llama_config(settings: GPTSettings) -> dict[str, Any]:
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


def _rope_parameters(settings: GPTSettings) -> dict[str, Any]:
    parameters = {"rope_type": "default", "rope_theta": settings.rope_theta}
    if settings.rope_scaling == "none":
        return parameters
    scaled = {"rope_type": settings.rope_scaling, "factor": settings.rope_factor,
              "original_max_position_embeddings": settings.trained_context}
    return parameters | scaled | (LLAMA3 if settings.rope_scaling == "llama3" else {})


def _mistral_config(settings: GPTSettings) -> dict[str, Any]:
    return _llama_config(settings) | {"sliding_window": settings.window}


def _mixtral_config(settings: GPTSettings) -> dict[str, Any]:
    return _llama_config(settings) | {
        "num_local_experts": settings.experts,
        "num_experts_per_tok": settings.active,
        "router_aux_loss_coef": settings.balance_loss,
    }


def _olmoe_config(settings: GPTSettings) -> dict[str, Any]:
    return _llama_config(settings) | {
        "num_experts": settings.experts,
        "num_experts_per_tok": settings.active,
        "router_aux_loss_coef": settings.balance_loss,
        "norm_topk_prob": settings.renormalise,
    }


def _qwen_config(settings: GPTSettings) -> dict[str, Any]:
    sparse = {"moe_intermediate_size": settings.hidden, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return _olmoe_config(settings) | sparse


def _gpt2_config(settings: GPTSettings) -> dict[str, Any]:
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
        "attn_pdrop": settings.dropout,
    }


def _gpt2_limits(settings: GPTSettings) -> dict[str, Any]:
    return {"head_size": settings.width // settings.heads, "kv_heads": settings.heads}


def _nanochat_config(settings: GPTSettings) -> dict[str, Any]:
    return _llama_config(settings) | {"final_logit_softcapping": settings.logit_softcap}


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


PLAIN = tuple(name for name in HIDDEN_ACT if name != "swiglu")
ARCHITECTURES = (
    Architecture("NanoChatForCausalLM", "nanochat", _nanochat_config, to_nanochat, {"activation": PLAIN},
                 lambda settings: {"logit_softcap": settings.logit_softcap},
                 swapped=r"self_attn\.[qk]_proj"),    # their RoPE turns the other way
    Architecture("LlamaForCausalLM", "llama", _llama_config, to_llama,
                 {**LLAMA, "qk_norm": False, "biases": (False, True)}),
    Architecture("MistralForCausalLM", "mistral", _mistral_config, to_llama,
                 {**LLAMA, "qk_norm": False, "attention": (("sliding",),)},
                 lambda settings: {"window": settings.window}),
    Architecture("Qwen3ForCausalLM", "qwen3", _llama_config, to_llama, LLAMA),
    Architecture(
        "GPT2LMHeadModel", "gpt2", _gpt2_config, to_gpt2,
        {"positions": "learned", "norm": "layer", "norm_scale": True, "biases": True, "qk_norm": False,
         "norm_embedding": False, "activation": ("gelu-tanh", *PLAIN)},
        _gpt2_limits,
    ),
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
    words = " ".join(f"model.{name}={_word(value)}" for name, value in missing[nearest].items())
    raise UserError(f"{program} has no architecture with these settings; {able[nearest].name} would fit a model "
                    f"trained with {words}.")


def _word(value: Any) -> str:
    """A setting's value as it is given on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def write_folder(run: Run, out: Path, overwrite: bool = False) -> str:
    """Writes the folder, complete or not at all. Returns what it is, in a line."""
    model = run.model
    if not isinstance(model, GPT) or run.recipe.task != "lm":
        what = f"a {run.recipe.kind} for {run.recipe.task}"
        raise UserError(f"{run.path} is {what}; a Hugging Face folder can be made of a gpt that is a language model.")
    architecture = find_architecture(model.settings)
    refuse_foreign(out, overwrite)
    with write_folder_aside(out) as aside:
        _write(run, architecture, aside)
    parameters = sum(weight.numel() for weight in model.parameters())
    return f"{architecture.name}, {short(parameters)} parameters"


def refuse_foreign(out: Path, overwrite: bool) -> None:
    """A folder is only replaced if it is asked for, and if it holds a Hugging Face model."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file, and a Hugging Face model is a folder. Choose another name.")
    if any(out.iterdir()) and not (out / "config.json").is_file():
        raise UserError(f"{out} is a folder with other files. Choose another name.")
    if any(out.iterdir()) and not overwrite:
        raise UserError(f"{out} exists already. Choose another name, or replace it with --overwrite.")


HEAD = "lm_head.weight"


def _write(run: Run, architecture: Architecture, folder: Path) -> None:
    model = run.model
    assert isinstance(model, GPT)
    size, tied = model.settings.head_size, model.output is None
    weights = {name: architecture.exchange(name, tensor, size).to(torch.float32)
               for name, tensor in architecture.tensors(model).items() if not (tied and name == HEAD)}
    write_tensors(weights, folder / "model.safetensors", {"format": "pt"})
    write_config(model, architecture, folder)
    write_tokenizer(run.tokenizer, model.settings.context, folder)


def write_config(model: GPT, architecture: Architecture, folder: Path) -> None:
    config = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "dtype": "float32",
        "vocab_size": len(model.embeddings),
        "tie_word_embeddings": model.output is None,
        "initializer_range": model.settings.init or 0.02,
        "bos_token_id": BOUNDARY,
        "eos_token_id": BOUNDARY,
        "pad_token_id": None,
        "transformers_version": VERSION,
        **architecture.config(model.settings),
    }
    generation = {"bos_token_id": BOUNDARY, "eos_token_id": BOUNDARY, "pad_token_id": BOUNDARY, "do_sample": True,
                  "transformers_version": VERSION}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation)


def write_tokenizer(tokenizer: Tokenizer, context: int | None, folder: Path) -> None:
    """Every text begins with the boundary, as in training."""
    tokenizer.save(folder / "tokenizer.json")
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    boundary = tokenizer.boundary_in_file
    begin, text = {"SpecialToken": {"id": boundary, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, begin, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {boundary: {"id": boundary, "ids": [BOUNDARY], "tokens": [boundary]}},
    }
    _write_json(folder / "tokenizer.json", spec)
    _write_json(folder / "tokenizer_config.json", tokenizer.config(context))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
