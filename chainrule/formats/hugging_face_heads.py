"""Encoders, classifiers and taggers as architectures of `transformers`: a table of bodies and heads.

    BertFor…             an encoder with BERT's settings: learned positions, LayerNorm after each sum, biases
    EuroBertFor…         an encoder with RoPE and RMSNorm, without QK norm
    NeoMMEForMaskedLM    the default encoder, for masked tokens: QK norm, norms without a scale, ReLU²
    Qwen3For…            a gpt, or an encoder with tags, with QK norm;      LlamaFor…: a gpt without it
    GPT2For…             a gpt with GPT-2's settings

Where an architecture has a part that the model has not, the part is written so that it changes nothing:

    ReLU²(x) = ReLU(x) · x, and f(x) = f(x) · 1      a feed-forward layer with gates (GLU)
    norm(E[token])                                   a norm of the embedding is a part of the table E
    GELU(z) - GELU(-z) = z                           the hidden layer of EuroBERT's head for classes
    tanh(εz) / ε = z, up to ε²z³/3                   BERT's pooler
    A (h + A⁺b) = A h + b                            a bias moves into the norm before it
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.formats.hugging_face import LIKE_BERT, Weights, to_bert, to_gpt2, to_llama
from chainrule.formats.hugging_face_export import (
    GPT2_NEEDS,
    HEAD,
    HIDDEN_ACT,
    PLAIN,
    Architecture,
    as_words,
    gpt2_config,
    gpt2_limits,
    llama_config,
)
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.models.encoder import TransformerEncoder
from chainrule.models.heads import Classifier, TokenClassifier

Config = dict[str, Any]
WITHOUT_GATES = ("relu", "gelu", "gelu-tanh")
FREE = {"norm_scale": (False, True), "norm_embedding": (True, False)}    # what any body with learned scales can take
SMALL = 2.0**-10    # of which tanh is a linear function, to a share of SMALL² / 3


@dataclass(frozen=True)
class HeadArchitecture(Architecture):
    kind: str = "encoder"
    task: str = "mask"
    pools: Mapping[str, str] = field(default_factory=dict)    # those that it has, by its names
    head: Callable[[Any], Weights] = lambda model: {}         # the tensors of the head
    bias: bool = True                                         # whether its head can have one

    def missing(self, settings: TransformerSettings) -> dict[str, Any]:
        found = super().missing(settings) | ({"experts": 0} if settings.experts else {})
        return {name: value for name, value in found.items() if name != "logit_softcap"}    # of the output

    def missing_in(self, model: Any) -> dict[str, Any]:
        """`missing` of the body, and of the head: by the names of the settings."""
        body = model if self.task == "mask" else model.body
        found = {f"model.{name}": value for name, value in self.missing(body.settings).items()}
        if self.task == "classify" and model.pool not in self.pools:
            found["head.pool"] = next(iter(self.pools))
        if self.task != "mask" and not isinstance(model.hidden, nn.Identity):
            found["head.hidden"] = None
        if self.task == "classify" and model.output.bias is not None and not self.bias:
            found["head.bias"] = False
        if getattr(model, "char_cnn", None) is not None:
            found["head.char_cnn"] = False
        return found


def find_head_architecture(kind: str, task: str, model: Any) -> HeadArchitecture:
    """The first that fits; else the error says what the nearest one would need."""
    able = [one for one in HEADS if (one.kind, one.task) == (kind, task)]
    missing = [one.missing_in(model) for one in able]
    for one, needs in zip(able, missing, strict=True):
        if not needs:
            return one
    nearest = min(range(len(able)), key=lambda place: len(missing[place]))
    raise UserError(f"transformers has no architecture with these settings; {able[nearest].name} would fit a model "
                    f"trained with {as_words(missing[nearest])}.")


# Bodies


def body_config(settings: TransformerSettings) -> Config:
    """As Llama's, whatever the activation is."""
    plain = settings.activation in WITHOUT_GATES
    act = "relu" if settings.activation == "relu2" else HIDDEN_ACT[settings.activation]
    return llama_config(settings) | {"hidden_act": act, "mlp_bias": settings.biases or plain}


def body_tensors(body: Any) -> Weights:
    """Llama's tensors, with scales and gates, and the norm of the embedding in its table."""
    settings: TransformerSettings = body.settings
    weights = {name: tensor for name, tensor in to_llama(body).items() if name != HEAD}
    for layer in (f"model.layers.{number}" for number in range(settings.layers)):
        sizes = {"input_layernorm": settings.width, "post_attention_layernorm": settings.width}
        sizes |= dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), settings.head_size) if settings.qk_norm else {}
        for name, size in sizes.items():
            weights.setdefault(f"{layer}.{name}.weight", torch.ones(size))
        weights |= _gates(weights, f"{layer}.mlp", settings)
    weights.setdefault("model.norm.weight", torch.ones(settings.width))
    weights["model.embed_tokens.weight"] = body.embedding.norm(body.embeddings)
    return {name: weights[name] for name in weights if not name.startswith("model.embedding_norm")}


def _gates(weights: Weights, layer: str, settings: TransformerSettings) -> Weights:
    """What is multiplied by the activations: x again, or 1."""
    if settings.activation == "swiglu":
        return {}
    up, gate, down = (f"{layer}.{part}_proj" for part in ("up", "gate", "down"))
    if settings.activation == "relu2":
        return {name.replace(gate, up): weights[name] for name in (f"{gate}.weight", f"{gate}.bias") if name in weights}
    zeros = {f"{gate}.bias": torch.zeros(settings.hidden), f"{down}.bias": torch.zeros(settings.width)}
    constant = {f"{up}.weight": torch.zeros_like(weights[f"{gate}.weight"]), f"{up}.bias": torch.ones(settings.hidden)}
    return {name: weights.get(name, tensor) for name, tensor in zeros.items()} | constant


def masked_tensors(body: TransformerEncoder) -> Weights:
    """With the output matrix, which is not the embedding after its norm."""
    settings = body.settings
    bias = {"lm_head.bias": torch.zeros(len(body.output_matrix))} if body_config(settings)["mlp_bias"] else {}
    return body_tensors(body) | {HEAD: body.output_matrix} | bias


def _divided(settings: TransformerSettings) -> Config:
    """Their width is a multiple of the heads."""
    return {"heads": next(heads for heads in range(settings.heads, 0, -1) if settings.width % heads == 0)}


def _neomme_limits(settings: TransformerSettings) -> Config:
    return {"head_size": -(-settings.head_size // 4) * 4}


def _neomme_config(settings: TransformerSettings) -> Config:
    config = llama_config(settings)
    rope = {"full_attention": {**config.pop("rope_parameters"), "partial_rotary_factor": 1.0}}
    return config | {
        "embedding_rank": settings.width,
        "norm_eps": config.pop("rms_norm_eps"),
        "rope_parameters": rope,
        "layer_types": ["full_attention"] * settings.layers,
        "residual_multiplier": 1.0,
        "patch_size": 1,                  # it can read pictures too; that part is as small as it can be
        "image_token_id": None,
        "document_token_id": None,
    }


NEOMME_NAMES = {"mlp.gate_proj": "mlp.up_proj", "self_attn.o_proj": "self_attn.output_projection.o_proj",
                "embed_tokens": "embed_tokens.word_embeddings"}


def to_neomme(body: TransformerEncoder) -> Weights:
    settings, width = body.settings, body.settings.width
    weights = {}
    for name, tensor in to_llama(body).items():
        for ours, theirs in NEOMME_NAMES.items():
            name = name.replace(ours, theirs)
        weights[name] = 2 * tensor if name.endswith("o_proj.weight") else tensor    # its gate is sigmoid(0) = 1/2
    for layer in (f"model.layers.{number}" for number in range(settings.layers)):
        heads = settings.heads * settings.head_size
        weights |= {f"{layer}.lambdas": torch.tensor([1.0, 0.0]),
                    f"{layer}.self_attn.exclusive_self_attention.alpha": torch.zeros(settings.heads),
                    f"{layer}.self_attn.output_projection.gate_proj.weight": torch.zeros(heads, width)}
    patches = {"norm.weight": torch.ones(3), "norm.bias": torch.zeros(3), "up_proj.weight": torch.zeros(2 * width, 3),
               "down_proj.weight": torch.zeros(width, 2 * width), "down_proj.bias": torch.zeros(width)}
    values = torch.zeros(len(body.embeddings), settings.kv_heads * settings.head_size)
    weights |= {"model.embed_tokens.embedding_projection.weight": torch.eye(width),
                "unembedding_projection.weight": torch.eye(width),
                "model.value_embeddings.weight": values, HEAD: body.output_matrix}
    return weights | {f"model.patch_embeddings.{name}": tensor for name, tensor in patches.items()}


def _bert_config(settings: Any) -> Config:
    return {
        "hidden_size": settings.width,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.hidden,
        "max_position_embeddings": settings.context,
        "type_vocab_size": settings.segments or 1,
        "hidden_act": {**HIDDEN_ACT, "gelu-tanh": "gelu_new"}[settings.activation],
        "layer_norm_eps": settings.epsilon,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
    }


def _bert_limits(settings: Any) -> Config:
    return {**gpt2_limits(settings), "segments": settings.segments}


def bert_body(body: TransformerEncoder) -> Weights:
    """Without its output."""
    weights = {name: tensor for name, tensor in to_bert(body).items() if name.startswith("bert.")}
    segments = torch.zeros(1, body.settings.width)
    return {"bert.embeddings.token_type_embeddings.weight": segments, **weights}


def bert_model(body: TransformerEncoder) -> Weights:
    """A BertModel; its pooler, which it had or not, passes the first vector on to tanh."""
    return {name.removeprefix("bert."): tensor for name, tensor in (bert_body(body) | _pooler(body, 1.0)).items()}


def bert_masked(body: TransformerEncoder) -> Weights:
    return bert_body(body) | {name: tensor for name, tensor in to_bert(body).items() if name.startswith("cls.")}


# Heads


def linear_head(name: str) -> Callable[[Any], Weights]:
    def tensors(model: Classifier | TokenClassifier) -> Weights:
        bias = {} if model.output.bias is None else {f"{name}.bias": model.output.bias}
        return {f"{name}.weight": model.output.weight, **bias}

    return tensors


def _bias(model: Classifier) -> Tensor:
    bias: Tensor | None = model.output.bias
    return torch.zeros(len(model.output.weight)) if bias is None else bias


def eurobert_head(model: Classifier) -> Weights:
    """GELU(z) - GELU(-z) = z, with z = A h + b."""
    matrix = model.output.weight
    labels, width = matrix.shape
    if 2 * labels > width:
        raise UserError(f"EuroBertForSequenceClassification has room for {width // 2} classes at model.width={width}, "
                        f"and there are {labels}.")
    dense, bias, output = torch.zeros(width, width), torch.zeros(width), torch.zeros(labels, width)
    for sign, place in ((1, 0), (-1, labels)):
        dense[place : place + labels], bias[place : place + labels] = sign * matrix, sign * _bias(model)
        output[:, place : place + labels] = sign * torch.eye(labels)
    return {"dense.weight": dense, "dense.bias": bias, "classifier.weight": output,
            "classifier.bias": torch.zeros(labels)}


def bert_head(model: Classifier) -> Weights:
    """A tanh(ε h) / ε, where ε h is small: h is a norm's output, so that it is bounded."""
    body: Any = model.body
    norm = body.stack.blocks[-1].feed_forward_norm
    width = len(norm.weight)
    bound = float((norm.weight.abs() * width**0.5 + norm.bias.abs()).max())
    small = 2.0 ** int(torch.tensor(SMALL / bound).log2().floor())
    head = {"classifier.weight": model.output.weight / small, "classifier.bias": _bias(model)}
    return _pooler(body, small) | head


def _pooler(body: Any, factor: float) -> Weights:
    width = body.settings.width
    return {"bert.pooler.dense.weight": factor * torch.eye(width), "bert.pooler.dense.bias": torch.zeros(width)}


def gpt2_head(model: Classifier) -> Weights:
    """The bias b is that of A (h + A⁺b): it moves into the last norm."""
    matrix = model.output.weight.double()
    body: Any = model.body
    moved = body.stack.norm.bias.double() + torch.linalg.pinv(matrix) @ _bias(model).double()
    return {"score.weight": model.output.weight, "transformer.ln_f.bias": moved.float()}


def gpt2_body(body: Any) -> Weights:
    return {name: tensor for name, tensor in to_gpt2(body).items() if name != HEAD}


# The table

NO_QK_NORM = {**FREE, "qk_norm": False, "activation": tuple(HIDDEN_ACT), "biases": (False, True)}
EUROBERT = HeadArchitecture("EuroBertForMaskedLM", "eurobert", body_config, masked_tensors, NO_QK_NORM, _divided)
BERT = HeadArchitecture(
    "BertForMaskedLM", "bert", _bert_config, bert_masked,
    {**{name: value for name, value in LIKE_BERT.items() if name != "tied"}, "activation": ("gelu", *PLAIN),
     "transform": True}, _bert_limits,
)  # fmt: skip
NEOMME = HeadArchitecture("NeoMMEForMaskedLM", "neomme", _neomme_config, to_neomme, {"rope_scaling": "none"},
                          _neomme_limits)
GATED = {**FREE, "activation": ("relu2", "swiglu")}
QWEN3 = HeadArchitecture("Qwen3ForTokenClassification", "qwen3", body_config, body_tensors, GATED, task="tag",
                         head=linear_head("score"))
LLAMA = replace(QWEN3, name="LlamaForTokenClassification", model_type="llama", needs=NO_QK_NORM, also=_divided)
GPT2 = HeadArchitecture("GPT2ForTokenClassification", "gpt2", gpt2_config, gpt2_body, GPT2_NEEDS, gpt2_limits,
                        task="tag", head=linear_head("classifier"))
ANY_OUTPUT = {**BERT.needs, "transform": (False, True)}
HEADS = (
    NEOMME,
    EUROBERT,
    BERT,
    replace(BERT, name="BertModel", tensors=bert_model, needs={**BERT.needs, "transform": False}),
    replace(EUROBERT, name="EuroBertForSequenceClassification", tensors=body_tensors, task="classify",
            pools={"mean": "mean", "first": "bos"}, head=eurobert_head),
    replace(BERT, name="BertForSequenceClassification", tensors=bert_body, needs=ANY_OUTPUT, task="classify",
            pools={"first": "first"}, head=bert_head),
    QWEN3,
    replace(EUROBERT, name="EuroBertForTokenClassification", tensors=body_tensors, task="tag",
            head=linear_head("classifier")),
    replace(BERT, name="BertForTokenClassification", tensors=bert_body, needs=ANY_OUTPUT, task="tag",
            head=linear_head("classifier")),
    *(replace(one, kind="gpt") for one in (QWEN3, LLAMA, GPT2)),
    *(replace(one, kind="gpt", name=one.name.replace("Token", "Sequence"), task="classify", pools={"last": "last"},
              bias=False) for one in (QWEN3, LLAMA)),
    replace(GPT2, kind="gpt", name="GPT2ForSequenceClassification", task="classify", pools={"last": "last"},
            head=gpt2_head),
)  # fmt: skip
