"""GPT-2 and Llama checkpoints of Hugging Face's `transformers`: conversion of parameter names and layouts.

    GPT2LMHeadModel    the presets gpt2 and gpt3: learned positions, layer norms, biases, a tied output
    LlamaForCausalLM   RoPE, RMSNorm with a learned scale, SwiGLU, grouped-query attention, no biases, an untied output

GPT-2's files have transposed linear maps; Llama's have separate matrices where ours is one packed matrix.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from chainrule.layers.attention import PackedLinear
from chainrule.models.gpt import GPT

Weights = dict[str, Tensor]

GPT2_LAYER = {
    "attention_norm": "ln_1",
    "attention.project": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.out": "mlp.c_proj",
}
GPT2 = {"embedding.tokens": "wte", "embedding.positions": "wpe", "stack.norm": "ln_f"}

LLAMA_LAYER = {
    "attention_norm": ["input_layernorm"],
    "attention.project": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attention.out": ["self_attn.o_proj"],
    "feed_forward_norm": ["post_attention_layernorm"],
    "feed_forward.up": ["mlp.gate_proj", "mlp.up_proj"],
    "feed_forward.out": ["mlp.down_proj"],
}
LLAMA = {"embedding.tokens": "model.embed_tokens", "stack.norm": "model.norm", "output": "lm_head"}


def to_gpt2(model: GPT) -> Weights:
    """The state dict of a GPT as one of a GPT2LMHeadModel."""
    names = _gpt2_names(model.settings.layers)
    weights = {names[name]: _transposed(name, tensor) for name, tensor in model.state_dict().items()}
    return weights | {"lm_head.weight": weights["transformer.wte.weight"]}


def from_gpt2(weights: Mapping[str, Tensor]) -> Weights:
    """The state dict of a GPT2LMHeadModel, or of the GPT2Model inside it, as one of a GPT."""
    given = {f"transformer.{name.removeprefix('transformer.')}": tensor for name, tensor in weights.items()}
    layers = len([name for name in given if name.endswith(".ln_1.weight")])
    return {ours: _transposed(ours, given[theirs]) for ours, theirs in _gpt2_names(layers).items()}


def to_llama(model: GPT) -> Weights:
    """The state dict of a GPT as one of a LlamaForCausalLM."""
    weights: Weights = {}
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if found := re.match(r"stack\.blocks\.(\d+)\.(.*)", module):
            theirs = [f"model.layers.{found[1]}.{part}" for part in LLAMA_LAYER[found[2]]]
        else:
            theirs = [LLAMA[module]]
        maps = model.get_submodule(module)
        sizes = maps.parts if isinstance(maps, PackedLinear) else [len(tensor)]
        weights |= {f"{part}.{kind}": rows for part, rows in zip(theirs, tensor.split(sizes), strict=True)}
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
    return torch.t(tensor).contiguous() if linear else tensor
