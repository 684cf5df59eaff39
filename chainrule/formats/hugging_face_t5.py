"""Import of T5 as a `transformer`: an encoder-decoder with relative positions (Raffel et al. 2020), for translations.

    T5ForConditionalGeneration     T5 (relu, tied); T5 1.1 and Flan-T5 (gated, untied)
    MT5ForConditionalGeneration    as T5 1.1

Scores are not divided by √d, norms subtract no mean, and all layers of a stack share one table of position biases. T5
divides its output by √D; here the scale of the last norm is divided. T5's sources and texts end with </s>, which
becomes id 0, the boundary. Its texts begin with padding: model.start_vector is the difference of the two vectors.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.formats.boundary import Ends, swap_rows
from chainrule.formats.hugging_face import Weights
from chainrule.formats.hugging_face_config import Config, choice, number, refuse_others
from chainrule.formats.hugging_face_export import HEAD
from chainrule.formats.hugging_face_import import (
    ImportedFolder,
    TensorFiles,
    check_tensors,
    find_boundary,
    first_id,
    imported,
    name_all_rows,
    refuse_more_tokens,
)
from chainrule.layers.attention import PackedLinear
from chainrule.model import BOUNDARY
from chainrule.models.transformer import EncoderDecoder
from chainrule.recipe import make_recipe
from chainrule.tasks import find_task
from chainrule.tasks.corruption import sentinel_names

NAMES = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
SHARED = "shared.weight"
COPIES = re.compile(r"^(en|de)coder\.embed_tokens\.weight$|EncDecAttention\.relative_attention_bias")
SENTINELS = 100
CONTEXT = 512        # tokens of T5's training; relative positions have no limit
PLAIN = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh"}
ACTIVATIONS = {**PLAIN, "gated-gelu": "geglu", "gated-silu": "swiglu"}
LAYER = {    # a module of our block -> its modules in theirs; {n}: the place of the feed-forward layer in a block
    "attention_norm": ["layer.0.layer_norm"],
    "attention.project": [f"layer.0.SelfAttention.{part}" for part in "qkv"],
    "attention.out": ["layer.0.SelfAttention.o"],
    "cross_norm": ["layer.1.layer_norm"],
    "cross.queries": ["layer.1.EncDecAttention.q"],
    "cross.memory": [f"layer.1.EncDecAttention.{part}" for part in "kv"],
    "cross.out": ["layer.1.EncDecAttention.o"],
    "feed_forward_norm": ["layer.{n}.layer_norm"],
    "feed_forward.up": ["layer.{n}.DenseReluDense.wi"],    # with gates: wi_0, wi_1
    "feed_forward.out": ["layer.{n}.DenseReluDense.wo"],
}


def read_t5(folder: Path, config: Config) -> ImportedFolder:
    name = (config.get("architectures") or [NAMES[0]])[0]
    if name not in NAMES:
        raise UserError(f"config.json has the architecture {name}, which cannot be imported; of T5 these can: "
                        f"{', '.join(NAMES)}.")
    settings, vocab = t5_settings(config), number(config, "vocab_size")
    files, ends = TensorFiles(folder, lambda name: name), find_ends(config)
    files.refuse_fewer(settings["layers"])
    sentinels = dict(zip((f"<extra_id_{number}>" for number in range(SENTINELS)), sentinel_names(SENTINELS)))
    boundary = find_boundary(folder, {"bos_token_id": ends.end, "eos_token_id": ends.end}, sentinels)
    refuse_more_tokens(boundary.tokenizer, vocab, folder)
    settings["tied"] = HEAD not in files.shapes
    given = {f"model.{key}": value for key, value in settings.items()}
    given["text.tokenizer"] = boundary.tokenizer_name
    recipe = make_recipe("transformer", EncoderDecoder, given, task=find_task("translate"))
    with shapes_only():
        check_tensors(files, to_t5(EncoderDecoder(recipe.model, vocab)), name, COPIES)
    model = EncoderDecoder(recipe.model, vocab)
    fill_t5(model, files, ends, scaled=outputs_are_scaled(config))
    return imported(folder, model, name_all_rows(boundary.tokenizer, vocab), recipe, name, files, ends)


def t5_settings(config: Config) -> dict[str, Any]:
    old = config.get("model_type") == "t5"
    refuse_others(config, relative_attention_num_buckets=32, relative_attention_max_distance=128)
    layers = number(config, "num_layers")
    if (others := number(config, "num_decoder_layers", layers)) != layers:
        raise UserError(f"config.json has num_layers={layers} and num_decoder_layers={others}; a transformer has as "
                        "many layers in its encoder as in its decoder.")
    return {
        "positions": "relative", "scaled": False, "norm_scale": True, "norm_embedding": False, "qk_norm": False,
        "zero_init": False, "start_vector": True,
        "activation": choice(config, "feed_forward_proj", ACTIVATIONS, "relu" if old else "gated-gelu"),
        "layers": layers,
        "width": number(config, "d_model"),
        "heads": number(config, "num_heads"),
        "head_size": number(config, "d_kv"),
        "hidden": number(config, "d_ff"),
        "context": number(config, "n_positions", CONTEXT),
        "epsilon": number(config, "layer_norm_epsilon", 1e-6, whole=False),
    }  # fmt: skip


def find_ends(config: Config) -> Ends:
    """The tokens that begin a text in the decoder, and that end a source and a text."""
    begin = first_id(config, "decoder_start_token_id")
    begin = first_id(config, "pad_token_id") if begin is None else begin
    end = first_id(config, "eos_token_id")
    return Ends(0 if begin is None else begin, 1 if end is None else end)


def outputs_are_scaled(config: Config) -> bool:
    """Newer files of T5 say it, in older ones a tied output is; mT5's is not."""
    tied = config.get("tie_word_embeddings") is not False
    return config.get("model_type") != "mt5" and bool(config.get("scale_decoder_outputs", tied))


def to_t5(model: EncoderDecoder) -> Weights:
    """Views of the parameters by their names there; all but the start vector, which T5 has in its embedding."""
    weights: Weights = {}
    for name, tensor in model.state_dict().items():
        if name in ("embedding.start", "source_embedding.tokens.weight"):    # the second is the embedding again
            continue
        module, _, _ = name.rpartition(".")
        maps, theirs = model.get_submodule(module), t5_names(module, model.settings.gated)
        parts = maps.parts if isinstance(maps, PackedLinear) else [len(tensor)]
        weights |= dict(zip((f"{one}.weight" for one in theirs), torch.split(tensor, parts), strict=True))
    return weights


def t5_names(module: str, gated: bool) -> list[str]:
    whole = {"embedding.tokens": "shared", "output": "lm_head"}
    if module in whole:
        return [whole[module]]
    stack, _, inside = module.partition(".")
    side, feed = ("encoder", 1) if stack == "encoder" else ("decoder", 2)
    if inside == "bias":
        return [f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"]
    if inside == "norm":
        return [f"{side}.final_layer_norm"]
    _, layer, part = inside.split(".", 2)
    theirs = [f"{side}.block.{layer}.{one.format(n=feed)}" for one in LAYER[part]]
    return [f"{theirs[0]}_0", f"{theirs[0]}_1"] if part == "feed_forward.up" and gated else theirs


@torch.no_grad()
def fill_t5(model: EncoderDecoder, files: TensorFiles, ends: Ends, *, scaled: bool) -> None:
    for name, view in to_t5(model).items():
        view.copy_(files.read(name))
    if scaled:
        norm: Any = model.stack.norm
        norm.weight.mul_(model.settings.width**-0.5)
    start: Tensor = model.get_parameter("embedding.start")
    start.copy_(model.embeddings[ends.begin] - model.embeddings[ends.end])
    for matrix in [model.embeddings] if model.output is None else [model.embeddings, model.output.weight]:
        swap_rows(matrix, BOUNDARY, ends.end)
