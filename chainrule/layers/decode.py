"""A decoder's step of one token a row, by kernels of our own (chainrule/kernels). The same answer in fewer launches.

    few rows     5 kernels a block: norm and projection · attention · out, added · norm, up, activation · down, added
    more rows    torch's products, for which a GPU was made; a sum and its norm are one kernel, and so is attention

Attention reads what each row has and not the room behind it, and writes the new keys and values into their places.

Shapes: B rows, D width, V vocabulary, d numbers in a head.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chainrule.layers import kv_cache, positions
from chainrule.layers.attention import Attention, PackedLinear
from chainrule.layers.blocks import Block, Embedding, FeedForwardLayer, RMSNorm, TransformerStack
from chainrule.layers.cross_entropy import softcap
from chainrule.layers.kv_cache import Cache
from chainrule.model import Tap

if TYPE_CHECKING:
    from chainrule.kernels.add_norm import Norm
    from chainrule.kernels.decode_attention import Parts
    from chainrule.models.gpt import Decoder

FEW = 8              # rows up to which a product costs the reading of its matrix
PROGRAMS = 132       # of attention, which a large GPU runs side by side
MOST_SPLITS = 8      # programs that share a head
ALIGNED = 64         # words; products of other numbers of them are slow
SIZES = (32, 64, 128)    # numbers in a head
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 16_384      # inputs of a linear map, of which a program holds a row
LARGEST = 1 << 31    # numbers in a matrix, which kernels count in 32 bits
KNOWN = {
    Attention, Block, Embedding, FeedForwardLayer, PackedLinear, RMSNorm, TransformerStack, Tap,
    nn.Dropout, nn.Embedding, nn.Identity, nn.LayerNorm, nn.Linear, nn.ModuleList,
}  # fmt: skip


def suits(decoder: "Decoder", tokens: Tensor, state: Cache) -> bool:
    """Whether there are kernels for all that this model does with these tokens."""
    settings, keys = decoder.settings, state["keys"]
    told = settings.norm_first and settings.positions != "relative" and settings.head_size in SIZES
    narrow = max(settings.width, settings.hidden, settings.heads * settings.head_size) <= WIDEST
    narrow &= decoder.matrix.numel() < LARGEST
    plain = all(type(module) in KNOWN for part in decoder.children() for module in part.modules())
    quiet = not any(isinstance(module, Tap) and module.watched for module in decoder.modules())
    alike = keys.dtype in DTYPES and {keys.dtype} == {parameter.dtype for parameter in decoder.parameters()}
    ready = tokens.shape[1] == 1 and kv_cache.room(state) > 0 and keys.is_contiguous() and not decoder.training
    return told and narrow and plain and quiet and alike and ready


def step(decoder: "Decoder", tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
    """(B, 1) -> (B, 1, V)"""
    state = kv_cache.with_room(state, 1, decoder.context)
    x = decoder.embedding(tokens, state["length"][:, None])[:, 0]                            # (B, D)
    logits = (_few if len(x) <= FEW else _many)(decoder, x, state)
    state["length"].add_(1)                                     # the state is spent, so it is written over
    return softcap(logits, decoder.settings.logit_softcap)[:, None], state


def _few(decoder: "Decoder", x: Tensor, state: Cache) -> Tensor:
    """(B, D) -> (B, V)"""
    from chainrule.kernels.linear import linear

    for block, about in _blocks(decoder, state, _splits(len(x), decoder.settings.heads)):
        attention, net = block.attention, block.feed_forward
        mixed = about(linear(x, *_map(attention.project), norm=_norm(block.attention_norm)))
        x = linear(mixed, *_map(attention.out), added=x)
        norm, activation = _norm(block.feed_forward_norm), decoder.settings.activation
        x = linear(linear(x, *_map(net.up), norm=norm, activation=activation), *_map(net.out), added=x)
    return linear(x, decoder.matrix, norm=_norm(decoder.stack.norm))


def _many(decoder: "Decoder", x: Tensor, state: Cache) -> Tensor:
    """(B, D) -> (B, V)"""
    from chainrule.kernels.add_norm import add_norm

    found = None
    for block, about in _blocks(decoder, state):
        net = block.feed_forward
        x, normed = add_norm(x, found, _norm(block.attention_norm))
        found = block.attention.out(about(block.attention.project(normed)).mixed)
        x, normed = add_norm(x, found, _norm(block.feed_forward_norm))
        found = net.out(net.activation(net.up(normed)))
    return compared(add_norm(x, found, _norm(decoder.stack.norm))[1], decoder.matrix)


def compared(hidden: Tensor, words: Tensor) -> Tensor:
    """(B, D), (V, D) -> (B, V): a product with as many words as are quick, and one with the few that are left."""
    vocab = len(words)
    whole = vocab - vocab % ALIGNED
    logits = hidden.new_empty(len(hidden), whole + ALIGNED)
    for part in (slice(whole), slice(whole, vocab)):
        if len(words[part]):
            torch.mm(hidden, words[part].T, out=logits[:, part])
    return logits[:, :vocab]


def _blocks(decoder: "Decoder", state: Cache, splits: int = 1) -> Iterator[tuple[Any, Callable[[Tensor], "Parts"]]]:
    """Each block, and what its attention finds for queries, keys and values of the new tokens, side by side."""
    from chainrule.kernels.decode_attention import attend

    settings = decoder.settings
    blocks: Iterable[Any] = decoder.stack.blocks
    how: dict[str, Any] = {"window": settings.window, "splits": splits}
    if settings.positions == "rotary":
        how["rope"] = _rope(settings.context, settings.head_size, settings.rope_theta, state["keys"].device)
    for block, layer in zip(blocks, kv_cache.layers(state, state["length"])):
        if settings.qk_norm:
            how["norms"] = [_norm(module) for module in block.attention.norms]
        yield block, partial(attend, keys=layer.keys, values=layer.values, length=state["length"], **how)


def _splits(rows: int, heads: int) -> int:
    """So many that all processors have something to do: a power of 2."""
    splits = 1
    while splits < MOST_SPLITS and 2 * splits * rows * heads <= PROGRAMS:
        splits *= 2
    return splits


@functools.cache    # a graph may hold them as long as it likes
def _rope(context: int, size: int, longest: float, device: torch.device) -> positions.Rope:
    """(context, d) each: made once, so that no step need make them."""
    cos, sin = positions.rope_tables(torch.arange(context, device=device)[None], size, longest)
    return cos[0, :, 0].contiguous(), sin[0, :, 0].contiguous()


def _map(module: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return module.weight, module.bias


def _norm(module: nn.Module) -> "Norm":
    from chainrule.kernels.add_norm import Norm

    if isinstance(module, RMSNorm):
        return Norm("rms", float(module.eps or 0), module.weight, None)
    assert isinstance(module, nn.LayerNorm)
    return Norm("layer", module.eps, module.weight, module.bias)
