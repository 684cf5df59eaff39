"""Checkpoints of Hugging Face's `transformers`: GPT-2, Llama and BERT parameters, by their names and layouts.

`to_gpt2` and `to_llama` give views of a model's parameters: export reads them, and import writes into them.

    BertForMaskedLM    BERT, MiniLM and other sentence encoders; the pooler is left out
    GPT2LMHeadModel    the presets gpt2 and gpt3: learned positions, layer norms, biases, a tied output
    LlamaForCausalLM   RoPE, RMSNorm with a learned scale, SwiGLU, grouped-query attention, no biases, an untied output

GPT-2's files have transposed linear maps; BERT's and Llama's have separate matrices where ours is one packed matrix.
A folder holds config.json and model.safetensors, or pytorch_model.bin, of which only tensors are read.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from chainrule.errors import UserError
from chainrule.layers.attention import PackedLinear
from chainrule.layers.experts import ExpertLinear
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.models.gpt import GPT

# BERT

Weights = dict[str, Tensor]

LAYER = {
    "attention.project": ["attention.self.query", "attention.self.key", "attention.self.value"],
    "attention.out": ["attention.output.dense"],
    "attention_norm": ["attention.output.LayerNorm"],
    "feed_forward.up": ["intermediate.dense"],
    "feed_forward.out": ["output.dense"],
    "feed_forward_norm": ["output.LayerNorm"],
}
BODY = {
    "embedding.tokens": "bert.embeddings.word_embeddings",
    "embedding.positions": "bert.embeddings.position_embeddings",
    "embedding.norm": "bert.embeddings.LayerNorm",
    "segments": "bert.embeddings.token_type_embeddings",
}
HEAD = {"transform.map": "cls.predictions.transform.dense", "transform.norm": "cls.predictions.transform.LayerNorm"}
BIAS = "cls.predictions.bias"
DECODER = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")    # the embedding and the bias again
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}    # in the first published files

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
LIKE_BERT: dict[str, Any] = {
    "positions": "learned", "norm": "layer", "norm_first": False, "norm_embedding": True, "qk_norm": False,
    "norm_scale": True, "biases": True, "tied": True, "zero_init": False,
}


def read_bert(folder: Path) -> TransformerEncoder:
    """The model in a folder, in eval mode; with the masked-word output if the folder has one."""
    config = read_config(folder)
    weights = _named(_read_weights(folder))
    words = weights["bert.embeddings.word_embeddings.weight"]
    model = TransformerEncoder(bert_settings(config, transform=BIAS in weights), len(words))
    model.load_state_dict(from_bert(weights), strict=True)
    return model.eval()


def bert_settings(config: Mapping[str, Any], *, transform: bool) -> EncoderSettings:
    """The settings that config.json gives."""
    wanted = {"model_type": ("bert",), "hidden_act": tuple(ACTIVATIONS), "position_embedding_type": ("absolute",)}
    for name, known in wanted.items():
        if (value := config.get(name, known[0])) not in known:
            raise UserError(f"config.json has {name}={value}; what can be read has {' or '.join(known)}.")
    return EncoderSettings(
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        hidden=config["intermediate_size"],
        context=config["max_position_embeddings"],
        segments=config.get("type_vocab_size", 2),
        activation=ACTIVATIONS[config.get("hidden_act", "gelu")],  # type: ignore[arg-type]
        epsilon=config.get("layer_norm_eps", 1e-12),
        dropout=config.get("hidden_dropout_prob", 0.1),
        init=config.get("initializer_range", 0.02),
        transform=transform,
        **LIKE_BERT,
    )


def from_bert(weights: Mapping[str, Tensor]) -> Weights:
    """The state dict of a BertForMaskedLM, or of the BertModel inside it, as one of a TransformerEncoder."""
    given = _named(weights)
    layers = len([name for name in given if name.endswith(".intermediate.dense.weight")])
    found = {ours: [given[name] for name in theirs] for ours, theirs in _names(layers).items() if theirs[0] in given}
    return {ours: torch.cat(parts) for ours, parts in found.items()}


def to_bert(model: TransformerEncoder) -> Weights:
    """The state dict of a model with BERT's settings as one of a BertForMaskedLM."""
    names = _names(model.settings.layers)
    weights: Weights = {}
    for ours, tensor in model.state_dict().items():
        if ours != "output.weight":
            weights |= dict(zip(names[ours], tensor.chunk(len(names[ours])), strict=True))
    if BIAS not in weights:    # the body alone
        return weights
    return weights | dict(zip(DECODER, (model.output_matrix.detach(), weights[BIAS]), strict=True))


def _names(layers: int) -> dict[str, list[str]]:
    """Our parameter names to theirs, which are concatenated along the first axis."""
    modules = {ours: [theirs] for ours, theirs in (BODY | HEAD).items()}
    for layer in range(layers):
        for ours, theirs in LAYER.items():
            modules[f"stack.blocks.{layer}.{ours}"] = [f"bert.encoder.layer.{layer}.{part}" for part in theirs]
    named = ((ours, theirs, kind) for ours, theirs in modules.items() for kind in _kinds(ours))
    return {f"{ours}.{kind}": [f"{part}.{kind}" for part in theirs] for ours, theirs, kind in named} | {"bias": [BIAS]}


def _kinds(module: str) -> tuple[str, ...]:
    return ("weight",) if module in ("embedding.tokens", "embedding.positions", "segments") else ("weight", "bias")


def _named(weights: Mapping[str, Tensor]) -> Weights:
    """Under the current parameter names of a BertForMaskedLM."""
    return {bert_name(name): tensor for name, tensor in weights.items()}


def bert_name(name: str) -> str:
    """The current name of a parameter of a BertForMaskedLM, of that in an older file or of the body alone."""
    for old, new in OLD.items():
        name = re.sub(rf"{re.escape(old)}$", new, name)
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"


def read_config(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder} has no readable config.json; a Hugging Face model has one.") from error


def _read_weights(folder: Path) -> Weights:
    if (file := folder / "model.safetensors").is_file():
        return load_file(file)
    if (file := folder / "pytorch_model.bin").is_file():
        return dict(torch.load(file, map_location="cpu", weights_only=True))    # only tensors are read, no code is run
    raise UserError(f"{folder} has neither model.safetensors nor pytorch_model.bin.")



GPT2_LAYER = {
    "attention_norm": "ln_1",
    "attention.project": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.out": "mlp.c_proj",
}
GPT2 = {"embedding.tokens": "wte", "embedding.positions": "wpe", "stack.norm": "ln_f"}

# GPT-2 and Llama

LLAMA_LAYER = {
    "attention_norm": ["input_layernorm"],
    "attention.project": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attention.out": ["self_attn.o_proj"],
    "feed_forward_norm": ["post_attention_layernorm"],
    "attention.norms.0": ["self_attn.q_norm"],
    "attention.norms.1": ["self_attn.k_norm"],
    "feed_forward.router": ["mlp.gate"],
    "feed_forward.up": ["mlp.gate_proj", "mlp.up_proj"],    # of SwiGLU; without gates there is only the first
    "feed_forward.out": ["mlp.down_proj"],
}
LLAMA = {"embedding.tokens": "model.embed_tokens", "embedding.norm": "model.embedding_norm", "stack.norm": "model.norm",
         "output": "lm_head"}


def to_gpt2(model: GPT) -> Weights:
    """The state dict of a GPT as one of a GPT2LMHeadModel."""
    names = _gpt2_names(model.settings.layers) | {"output.weight": "lm_head.weight"}
    weights = {names[name]: _transposed(name, tensor) for name, tensor in model.state_dict().items()}
    return {"lm_head.weight": weights["transformer.wte.weight"]} | weights


def to_llama(model: GPT | TransformerEncoder) -> Weights:
    """The state dict of a GPT as one of a LlamaForCausalLM; the matrices of experts stay together, (E, O, I)."""
    return split_tensors(model, LLAMA, LLAMA_LAYER, "model.layers")


def split_tensors(
    model: GPT | TransformerEncoder, body: Mapping[str, str], layer: Mapping[str, list[str]], layers: str
) -> Weights:
    """Parameters under other names, those of layer 0 as `layers`.0.…; a packed matrix is split where it has several."""
    weights: Weights = {}
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if found := re.match(r"stack\.blocks\.(\d+)\.(.*)", module):
            theirs = [f"{layers}.{found[1]}.{part}" for part in layer[found[2]]]
        else:
            theirs = [body[module]]
        maps = model.get_submodule(module)
        rows = max(0, tensor.dim() - 2)                         # the axis of a matrix's rows
        sizes = [tensor.shape[rows]]
        if isinstance(maps, PackedLinear | ExpertLinear) and len(theirs) > 1:
            sizes = maps.parts
        weights |= {f"{part}.{kind}": some for part, some in zip(theirs, torch.split(tensor, sizes, rows))}
    return weights


def _gpt2_names(layers: int) -> dict[str, str]:
    """Our parameter names to theirs."""
    modules = dict(GPT2)
    for layer in range(layers):
        modules |= {f"stack.blocks.{layer}.{ours}": f"h.{layer}.{theirs}" for ours, theirs in GPT2_LAYER.items()}
    kinds = {ours: ("weight",) if ours.startswith("embedding") else ("weight", "bias") for ours in modules}
    return {f"{ours}.{kind}": f"transformer.{modules[ours]}.{kind}" for ours in modules for kind in kinds[ours]}


def _transposed(name: str, tensor: Tensor) -> Tensor:
    """A linear map transposed; any other parameter unchanged."""
    linear = re.search(r"\.(project|up|out)\.weight$", name)
    return torch.t(tensor) if linear else tensor
