"""Tiny GGUF files written with the package `gguf` alone, and transformers' own reader of such files."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer
from torch import nn
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

TOKENS = ("<|begin|>", "<|stop|>")


def write_llama(path: Path, tokenizer: Tokenizer, *, kind: Kind = Kind.F32, tied: bool = True, vocab: int = 288,
                fields: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> None:  # fmt: skip
    """Random numbers, in a quantisation; `fields` and `tensors` are others than usual, None: left out."""
    if tensors is None:
        tensors = {}
    if fields is None:
        fields = {}
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    usual: dict[str, Any] = {
        "llama.context_length": 32, "llama.embedding_length": 64, "llama.block_count": 2,
        "llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 16, "llama.rope.freq_base": 500.0, "llama.vocab_size": vocab,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "general.name": "tiny", "general.license": "apache-2.0",
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.bos_token_id": ids[TOKENS[0]],
        "tokenizer.ggml.eos_token_id": ids[TOKENS[1]], "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }  # fmt: skip
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (usual | fields).items():
        add(writer, name, value)
    generator = np.random.default_rng(5)
    shapes = {"token_embd": (vocab, 64), "output_norm": (64,)} | ({} if tied else {"output": (vocab, 64)})
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in {
            "attn_norm": (64,), "ffn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64),
            "attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}.items()}
    made = {f"{name}.weight": generator.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    for name, array in (made | tensors).items():
        if array is not None:
            stored = kind if array.ndim > 1 else Kind.F32
            writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value) if value >= 0 else writer.add_int32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif value is not None:
        writer.add_array(name, value)


def read_with_transformers(path: Path) -> Any:
    """As `from_pretrained(gguf_file=…)` does, without the package that it would place the tensors with."""
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    if config.model_type == "gpt2":
        config.n_positions = config.n_ctx    # which it leaves as it usually is
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        nn.init.constant_(parameter, torch.nan)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}    # tied
    model.tie_weights()
    return model.eval()
