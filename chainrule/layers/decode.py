"""Fast decoding: a decoder's step of one token per row, by kernels of our own. The same result in fewer launches.

    small batch    5 kernels a block: norm and project · attention · out, added · norm, up, activation · down, added
    large batch    torch's matrix products; a sum and its norm are one kernel, and so is attention; also for experts

Attention reads the keys that each row has and not the unused capacity, and writes new keys and values into the cache.

Shapes: B rows, D width, V vocabulary, d numbers in a head.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chainrule.kernels import ops
from chainrule.layers import kv_cache
from chainrule.layers.attention import Attention, PackedLinear
from chainrule.layers.blocks import Block, FeedForwardLayer, InputEmbedding, RMSNorm, TransformerStack
from chainrule.layers.cross_entropy import softcap
from chainrule.layers.experts import ExpertLinear, Experts
from chainrule.layers.kv_cache import Cache
from chainrule.layers.local_attention import LocalAttention, SlidingAttention
from chainrule.layers.positions import Rope, rope_tables
from chainrule.layers.transformer_settings import RopeScaling
from chainrule.model import Tap

if TYPE_CHECKING:
    from chainrule.kernels.add_norm import Norm
    from chainrule.kernels.decode_attention import AttentionParts
    from chainrule.models.gpt import Decoder

SMALL_BATCH = 8          # rows up to which the time of a matrix product is that of reading the matrix
PROGRAMS = 132           # of attention, which a large GPU runs at the same time
MAX_SPLITS = 8           # programs that share a head
VOCAB_MULTIPLE = 64      # matrix products with other numbers of columns are slow
HEAD_SIZES = (32, 64, 128)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_INPUTS = 16_384      # of a linear layer, since a program holds a row of its matrix
MAX_ELEMENTS = 1 << 31   # of a matrix, since kernels count in 32 bits
KNOWN = {
    Attention, Block, ExpertLinear, Experts, FeedForwardLayer, InputEmbedding, LocalAttention, PackedLinear, RMSNorm,
    SlidingAttention, Tap, TransformerStack,
    nn.Dropout, nn.Embedding, nn.Identity, nn.LayerNorm, nn.Linear, nn.ModuleList,
}  # fmt: skip


def supports(decoder: "Decoder", tokens: Tensor, state: Cache) -> bool:
    """Whether there are kernels for all that this model does with these tokens."""
    settings, keys = decoder.settings, state["keys"]
    written = settings.norm_first and decoder.stack.bias is None and settings.head_size in HEAD_SIZES
    written &= settings.qkv and settings.scaled and settings.activation in ops.ACTIVATIONS
    fits = max(settings.width, settings.hidden, settings.heads * settings.head_size) <= MAX_INPUTS
    fits &= decoder.output_matrix.numel() < MAX_ELEMENTS
    known = all(type(module) in KNOWN for part in decoder.children() for module in part.modules())
    watched = any(isinstance(module, Tap) and module.watched for module in decoder.modules())
    alike = keys.dtype in DTYPES and {keys.dtype} == {parameter.dtype for parameter in decoder.parameters()}
    contiguous = all(state[name].is_contiguous() for kind in settings.attention for name in kv_cache.FIELDS[kind])
    ready = tokens.shape[1] == 1 and kv_cache.capacity(state) > 0 and contiguous and not decoder.training
    return written and fits and known and not watched and alike and ready


def step(decoder: "Decoder", tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
    """(B, 1) -> (B, 1, V)"""
    state = kv_cache.ensure(state, 1, decoder.context)
    x = decoder.embedding(tokens, state["length"][:, None])[:, 0]                            # (B, D)
    small = len(x) <= SMALL_BATCH and not decoder.settings.experts
    logits = (_small_batch if small else _large_batch)(decoder, x, state)
    state["length"].add_(1)                                     # in place: the old state must not be used again
    return softcap(logits, decoder.settings.logit_softcap)[:, None], state


def _small_batch(decoder: "Decoder", x: Tensor, state: Cache) -> Tensor:
    """(B, D) -> (B, V)"""
    from chainrule.kernels.linear import fused_linear

    for block, attention in _blocks(decoder, state, _splits(len(x), decoder.settings.heads)):
        project, out, net = block.attention.project, block.attention.out, block.feed_forward
        mixed = attention(fused_linear(x, *_parameters(project), norm=_norm(block.attention_norm)))
        x = fused_linear(mixed, *_parameters(out), residual=x)
        norm, activation = _norm(block.feed_forward_norm), decoder.settings.activation
        hidden = fused_linear(x, *_parameters(net.up), norm=norm, activation=activation)
        x = fused_linear(hidden, *_parameters(net.out), residual=x)
    return fused_linear(x, decoder.output_matrix, norm=_norm(decoder.stack.norm))


def _large_batch(decoder: "Decoder", x: Tensor, state: Cache) -> Tensor:
    """(B, D) -> (B, V)"""
    from chainrule.kernels.add_norm import fused_add_norm

    delta = None
    for block, attention in _blocks(decoder, state):
        net = block.feed_forward
        x, h = fused_add_norm(x, delta, _norm(block.attention_norm))
        delta = block.attention.out(attention(block.attention.project(h)).mixed)
        x, h = fused_add_norm(x, delta, _norm(block.feed_forward_norm))
        delta = net(h) if isinstance(net, Experts) else net.out(net.activation(net.up(h)))
    return aligned_logits(fused_add_norm(x, delta, _norm(decoder.stack.norm))[1], decoder.output_matrix)


def aligned_logits(hidden: Tensor, matrix: Tensor) -> Tensor:
    """(B, D), (V, D) -> (B, V): a product with a fast number of columns, and one with the few that are left."""
    vocab = len(matrix)
    whole = vocab - vocab % VOCAB_MULTIPLE
    logits = hidden.new_empty(len(hidden), whole + VOCAB_MULTIPLE)
    for part in (slice(whole), slice(whole, vocab)):
        if len(matrix[part]):
            torch.mm(hidden, matrix[part].T, out=logits[:, part])
    return logits[:, :vocab]


def _blocks(
    decoder: "Decoder", state: Cache, splits: int = 1
) -> Iterator[tuple[Any, Callable[[Tensor], "AttentionParts"]]]:
    """Each block, and its attention as a function of the packed queries, keys and values of the new tokens."""
    from chainrule.kernels.decode_attention import decode_attention

    settings = decoder.settings
    blocks: Iterable[Any] = decoder.stack.blocks
    how: dict[str, Any] = {"splits": splits}
    if settings.positions == "rotary":
        size, theta, device = settings.head_size, settings.rope_theta, state["keys"].device
        how["rope"] = _rope(settings.context, size, theta, settings.rope, device)
    caches = kv_cache.layer_caches(state, state["length"], settings.attention_kinds)
    for block, layer in zip(blocks, caches):
        if settings.qk_norm:
            how["norms"] = [_norm(module) for module in block.attention.norms]
        how |= {"keys": layer.keys, "values": layer.values, "length": state["length"], "layer": block.attention.kind}
        yield block, partial(decode_attention, **how)


def _splits(rows: int, heads: int) -> int:
    """Enough programs for each head to keep all processors busy: a power of 2."""
    splits = 1
    while splits < MAX_SPLITS and 2 * splits * rows * heads <= PROGRAMS:
        splits *= 2
    return splits


@functools.cache    # CUDA graphs may hold the tables for as long as they live
def _rope(context: int, size: int, theta: float, scaling: RopeScaling, device: torch.device) -> Rope:
    """(context, d) each: computed once, and not in every step."""
    cos, sin = rope_tables(torch.arange(context, device=device)[None], size, theta, scaling=scaling)
    return cos[0, :, 0].contiguous(), sin[0, :, 0].contiguous()


def _parameters(module: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return module.weight, module.bias


def _norm(module: nn.Module) -> "Norm":
    from chainrule.kernels.add_norm import Norm

    if isinstance(module, RMSNorm):
        return Norm("rms", float(module.eps or 0), module.weight, None)
    assert isinstance(module, nn.LayerNorm)
    return Norm("layer", module.eps, module.weight, module.bias)
