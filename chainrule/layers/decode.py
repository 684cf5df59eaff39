"""Fast decoding: a decoder's step of one token per row. The same result in fewer operations.

    GPU, one row      one kernel for all blocks, where the matrices fit into registers (kernels/decoder_step.py)
    GPU, few rows     5 kernels a block: norm and project · attention · out, added · norm, up, activation · down, added
    GPU, many rows    torch's products; a sum and its norm are one kernel, and so is attention; also for experts
    CPU               torch's operations, as few as there can be: no masks, no copies, one RoPE of queries and keys

Attention reads the keys that each row has and not the unused capacity, and writes new keys and values into the cache;
on a CPU with several rows it reads all of the capacity, so that no row depends on the lengths of the others.

Shapes: B rows, D width, V vocabulary, H query heads, G key/value heads, C capacity, d numbers in a head.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn, split
from torch.nn.functional import scaled_dot_product_attention

from chainrule.kernels import ops, step_parameters
from chainrule.kernels.cpu.dropout import Dropout
from chainrule.layers import kv_cache
from chainrule.layers.attention import Attention, PackedLinear, as_numbers, padding_mask
from chainrule.layers.blocks import Block, FeedForwardLayer, InputEmbedding, RMSNorm, TransformerStack
from chainrule.layers.cross_entropy import softcap
from chainrule.layers.experts import ExpertLinear, Experts
from chainrule.layers.kv_cache import Cache
from chainrule.layers.local_attention import LocalAttention, SlidingAttention
from chainrule.layers.positions import Rope, apply_rope, rope_tables
from chainrule.layers.transformer_settings import RopeScaling, TransformerSettings
from chainrule.model import Tap

if TYPE_CHECKING:
    from chainrule.kernels.add_norm import Norm
    from chainrule.kernels.decode_attention import AttentionParts
    from chainrule.models.gpt import Decoder

ONE_KERNEL = True        # whether a step of one row may be one kernel
SMALL_BATCH = 8          # rows up to which the time of a matrix product is that of reading the matrix
PROGRAMS = 132           # of attention, which a large GPU runs at the same time
MAX_SPLITS = 8           # programs that share a head
VOCAB_MULTIPLE = 64      # matrix products with other numbers of columns are slow
HEAD_SIZES = (32, 64, 128)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_INPUTS = 16_384      # of a linear layer, since a program holds a row of its matrix
MAX_ELEMENTS = 1 << 31   # of a matrix, since kernels count in 32 bits
KNOWN = {
    Attention, Block, Dropout, ExpertLinear, Experts, FeedForwardLayer, InputEmbedding, LocalAttention, PackedLinear,
    RMSNorm, SlidingAttention, Tap, TransformerStack,
    nn.Embedding, nn.Identity, nn.LayerNorm, nn.Linear, nn.ModuleList,
}  # fmt: skip
_TAPS: WeakKeyDictionary[nn.Module, list[Tap]] = WeakKeyDictionary()    # of each decoder, found once
# All that were made, since a CUDA graph may hold one, and weights may move back to where they were.
_TABLES: WeakKeyDictionary[nn.Module, list[step_parameters.ParameterTable]] = WeakKeyDictionary()


def supports(decoder: "Decoder", tokens: Tensor, state: Cache) -> bool:
    """Whether there are kernels for all that this model does with these tokens."""
    settings, keys = decoder.settings, state["keys"]
    written = settings.norm_first and decoder.stack.bias is None and settings.head_size in HEAD_SIZES
    written &= settings.qkv and settings.scaled and settings.activation in ops.ACTIVATIONS
    fits = max(settings.width, settings.hidden, settings.heads * settings.head_size) <= MAX_INPUTS
    fits &= decoder.output_matrix.numel() < MAX_ELEMENTS
    modules = [module for part in decoder.children() for module in part.modules()]    # once: it takes long
    known = all(type(module) in KNOWN for module in modules)
    watched = any(isinstance(module, Tap) and module.watched for module in modules)
    parameters = [part for module in modules for part in module._parameters.values() if part is not None]
    alike = keys.dtype in DTYPES and {keys.dtype} == {parameter.dtype for parameter in parameters}
    contiguous = all(state[name].is_contiguous() for kind in settings.attention for name in kv_cache.FIELDS[kind])
    ready = tokens.shape[1] == 1 and kv_cache.capacity(state) > 0 and contiguous and not decoder.training
    return written and fits and known and not watched and alike and ready


def step(decoder: "Decoder", tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
    """(B, 1) -> (B, 1, V)"""
    state = kv_cache.ensure(state, 1, decoder.context)
    if fits_one_kernel(decoder, state):
        logits = _one_kernel(decoder, tokens, state)
    else:
        x = decoder.embedding(tokens, state["length"][:, None])[:, 0]                        # (B, D)
        small = len(x) <= SMALL_BATCH and not decoder.settings.experts
        logits = (_small_batch if small else _large_batch)(decoder, x, state)
        state["length"].add_(1)                                 # in place: the old state must not be used again
    return softcap(logits, decoder.settings.logit_softcap)[:, None], state


def fits_one_kernel(decoder: "Decoder", state: Cache) -> bool:
    """Whether the whole step is one kernel, by programs that hold the matrices of a layer in registers."""
    settings, keys = decoder.settings, state["keys"]
    plain = ONE_KERNEL and len(keys) == 1 and _on_gpu(keys) and set(settings.attention_kinds) == {"full"}
    if not plain or settings.experts or keys.numel() >= MAX_ELEMENTS:
        return False
    fits = step_parameters.fits(_shape_of(settings), keys.element_size(), _processors(keys.device))
    return fits and _table_of(decoder).aligned


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _shape_of(settings: TransformerSettings) -> step_parameters.StepShape:
    sizes = settings.width, settings.hidden, settings.heads, settings.kv_heads, settings.head_size
    return step_parameters.StepShape(*sizes, settings.gated)


@functools.cache
def _processors(device: torch.device) -> int:
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return processors


def _one_kernel(decoder: "Decoder", tokens: Tensor, state: Cache) -> Tensor:
    """(1, 1) -> (1, V). `length` grows by 1."""
    from chainrule.kernels.add_norm import NO_NORM
    from chainrule.kernels.decoder_step import decoder_step

    settings, embedding, device = decoder.settings, decoder.embedding, tokens.device
    places = None if embedding.positions is None else embedding.positions.weight
    embedding_norm = _norm(embedding.norm) if settings.norm_embedding else NO_NORM
    x: Tensor = decoder.embeddings
    if settings.positions == "sinusoidal":
        x, embedding_norm = embedding(tokens, state["length"][:, None])[0], NO_NORM
    norm = _norm(decoder.stack.norm)
    return decoder_step(
        _shape_of(settings), _table_of(decoder).tensor, x, None if x is not decoder.embeddings else tokens, places,
        decoder.output_matrix, state["keys"], state["values"], state["length"],
        norm=norm, embedding_norm=embedding_norm, qk_norm=norm.kind if settings.qk_norm else None,
        rope=_rope_of(decoder) if settings.positions == "rotary" else None, activation=settings.activation,
        programs=_processors(device),
    )  # fmt: skip


def _table_of(decoder: "Decoder") -> step_parameters.ParameterTable:
    """Made once, outside of the capture of a graph, and again when parameters have moved."""
    rows = [_layer_parameters(block) for block in decoder.stack.blocks]
    last = _norm(decoder.stack.norm)
    parameters = rows, [last.weight, last.bias], decoder.output_matrix
    tables = _TABLES.setdefault(decoder, [])
    for table in tables:
        if table.matches(*parameters):
            return table
    tables.append(step_parameters.ParameterTable(*parameters))
    return tables[-1]


def _layer_parameters(block: Any) -> list[Tensor | None]:
    """In the order of kernels/step_parameters.py: NAMES."""
    attention, net = block.attention, block.feed_forward
    first, second = _norm(block.attention_norm), _norm(block.feed_forward_norm)
    query_key = [part for norm in attention.norms for part in (_norm(norm).weight, _norm(norm).bias)]
    return [
        first.weight, first.bias, *_parameters(attention.project), *(query_key or [None] * 4),
        *_parameters(attention.out), second.weight, second.bias, *_parameters(net.up), *_parameters(net.out),
    ]  # fmt: skip


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
        how["rope"] = _rope_of(decoder)
    caches = kv_cache.layer_caches(state, state["length"], settings.attention_kinds)
    for block, layer in zip(blocks, caches):
        if settings.qk_norm:
            how["norms"] = [_norm(module) for module in block.attention.norms]
        how |= {"keys": layer.keys, "values": layer.values, "length": state["length"], "layer": block.attention.kind}
        yield block, partial(decode_attention, **how)


# On a CPU


def supports_cpu(decoder: "Decoder", tokens: Tensor, state: Cache) -> bool:
    """Whether `cpu_step` computes all that this model does with these tokens. It is asked at each step."""
    settings, keys = decoder.settings, state["keys"]
    if tokens.shape[1] != 1 or keys.device.type != "cpu" or decoder.training or torch.is_grad_enabled():
        return False
    if keys.dtype != torch.float32 or decoder.embeddings.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    full = set(settings.attention) == {"full"} and settings.norm_first and settings.qkv and not settings.experts
    plain = full and decoder.stack.bias is None and decoder.stack.sublayers == 2 and kv_cache.capacity(state) > 0
    return plain and not torch.compiler.is_compiling() and not any(tap.watched for tap in _taps_of(decoder))


def _taps_of(decoder: "Decoder") -> list[Tap]:
    if decoder not in _TAPS:
        _TAPS[decoder] = [module for module in decoder.modules() if isinstance(module, Tap)]
    return _TAPS[decoder]


def cpu_step(decoder: "Decoder", tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
    """(B, 1) -> (B, 1, V)"""
    state = kv_cache.ensure(state, 1, decoder.context)
    x = decoder.embedding(tokens, state["length"][:, None])[:, 0]                            # (B, D)
    x = _one_row(decoder, x[0], state)[None] if len(x) == 1 else _rows(decoder, x, state)
    return decoder.logits(decoder.stack.norm(x)[:, None]), {**state, "length": state["length"] + 1}


def _one_row(decoder: "Decoder", x: Tensor, state: Cache) -> Tensor:
    """(D,) -> (D,): matrix times vector. Calling operations takes a fourth of the time, so they are few."""
    settings, position = decoder.settings, int(state["length"])
    heads, kv_heads, size = settings.heads, settings.kv_heads, settings.head_size
    names = "keys", "values"
    new = zip(*(state[name][0].select(2, position).unbind(0) for name in names))                 # (G, d)
    caches = zip(*(state[name].narrow(3, 0, position + 1).unbind(1) for name in names))          # (1, G, n, d)
    rotation = _rotation(decoder, position) if settings.positions == "rotary" else None
    blocks: Iterable[Any] = decoder.stack.blocks
    for block, (new_key, new_value), (keys, values) in zip(blocks, new, caches):
        attention, net = block.attention, block.feed_forward
        packed = _product(attention.project, *_norm_and_scale(block.attention_norm, x)).view(-1, size)
        placed = packed[: heads + kv_heads]
        if settings.qk_norm:
            placed = torch.cat([attention.norms[0](placed[:heads]), attention.norms[1](placed[heads:])])
        if rotation is not None:
            placed = torch.mm(placed, rotation)
        new_key.copy_(placed[heads:])
        new_value.copy_(packed[heads + kv_heads :])
        query = placed[:heads].view(1, heads, 1, size)
        mixed = scaled_dot_product_attention(query, keys, values, scale=attention.scale, enable_gqa=heads != kv_heads)
        x = _product(attention.out, mixed.view(-1), add=x)
        hidden = net.activation(_product(net.up, *_norm_and_scale(block.feed_forward_norm, x)))
        x = _product(net.out, hidden, add=x)
    return x


def _norm_and_scale(norm: Any, x: Tensor) -> tuple[Tensor, float]:
    """(D,) and a number whose product is the norm of x; the matrix product that follows multiplies by the number."""
    if type(norm) is not RMSNorm:
        normed: Tensor = norm(x)
        return normed, 1.0
    scale = 1 / math.sqrt(torch.dot(x, x).item() / len(x) + (norm.eps or 0.0))
    return x if norm.weight is None else x * norm.weight, scale


def _product(module: Any, x: Tensor, scale: float = 1.0, add: Tensor | None = None) -> Tensor:
    """The linear layer's output for scale · x, added to `add`."""
    if type(module) not in (nn.Linear, PackedLinear):            # as with LoRA
        out: Tensor = module(x * scale)
        return out if add is None else out + add
    weight, bias = module.weight, module.bias
    if add is None and bias is None:
        return torch.addmv(x.new_empty(len(weight)), weight, x, beta=0, alpha=scale)
    out = torch.addmv(bias if add is None else add, weight, x, alpha=scale)
    return out if add is None or bias is None else out.add_(bias)


def _rotation(decoder: "Decoder", position: int) -> Tensor:
    """(d, d): RoPE at this position as a matrix, by which queries and keys are multiplied."""
    cos, sin = (table[position] for table in _rope_of(decoder))
    return torch.diag(cos) + torch.diag(sin).roll(len(sin) // 2, 0)


def _rows(decoder: "Decoder", x: Tensor, state: Cache) -> Tensor:
    """(B, D) -> (B, D): what a row gets depends on the capacity of the cache, but not on the other rows."""
    settings, length, capacity = decoder.settings, state["length"], kv_cache.capacity(state)
    parts, size = [settings.heads, settings.kv_heads, settings.kv_heads], settings.head_size
    index = length[:, None, None, None].expand(-1, settings.kv_heads, 1, size)
    mask = as_numbers(padding_mask(length + 1, capacity), x.dtype)                           # (B, 1, 1, C)
    rope = None
    if settings.positions == "rotary":
        cos, sin = (table[length, None] for table in _rope_of(decoder))                      # (B, 1, d)
        rope = cos, sin
    blocks: Iterable[Any] = decoder.stack.blocks
    for block, keys, values in zip(blocks, state["keys"].unbind(1), state["values"].unbind(1)):
        attention, net = block.attention, block.feed_forward
        packed = attention.project(block.attention_norm(x)).view(len(x), -1, size)
        query, key, value = split(packed, parts, 1)
        if settings.qk_norm:
            query, key = attention.norms[0](query), attention.norms[1](key)
        if rope is not None:
            query, key = apply_rope(query, rope), apply_rope(key, rope)
        keys.scatter_(2, index, key[:, :, None])
        values.scatter_(2, index, value[:, :, None])
        grouped = settings.heads != settings.kv_heads
        mixed = scaled_dot_product_attention(
            query[:, :, None], keys, values, mask, scale=attention.scale, enable_gqa=grouped
        )
        x = x + attention.out(mixed.view(len(x), -1))
        x = x + net.out(net.activation(net.up(block.feed_forward_norm(x))))
    return x


def _splits(rows: int, heads: int) -> int:
    """Enough programs for each head to keep all processors busy: a power of 2."""
    splits = 1
    while splits < MAX_SPLITS and 2 * splits * rows * heads <= PROGRAMS:
        splits *= 2
    return splits


def _rope_of(decoder: "Decoder") -> Rope:
    settings = decoder.settings
    device = decoder.embeddings.device
    return _rope(settings.context, settings.head_size, settings.rope_theta, settings.rope, device)


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
