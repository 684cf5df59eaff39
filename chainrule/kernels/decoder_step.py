"""A decoder's whole step for one text in one kernel: as many programs as processors go through all layers together.

    each layer    norm, queries, keys, values | attention by splits | out, added | norm, up, activation | down, added

At each | the programs wait for each other: each adds 1 to a counter in global memory, and waits until all have. So they
must all run at the same time: there are as many as processors, and the launch is cooperative, by which the driver runs
all of them or none. Each has some rows of every matrix, and loads those of a later part before it waits: the time of
reading the weights is hidden, and what is left is mostly that of the barriers. What a program computes is stored in
global memory, for all to read.

Shapes: D width, V vocabulary, L layers, H query heads, G key/value heads, C capacity, d numbers in a head, S splits, R
rows of a program.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from chainrule.kernels.add_norm import Norm, norm_rows
from chainrule.kernels.bias_act import activate
from chainrule.kernels.decode_attention import LOG2E, attend, load_block
from chainrule.kernels.linear import combine_splits
from chainrule.kernels.matrix_tiles import (
    as_parts,
    load_chunks,
    load_tiles,
    moments,
    norm_chunks,
    numbers,
    prefetch_rows,
    product,
    words,
)
from chainrule.kernels.step_parameters import ALIGNMENT, MIN_SPLITS, NAMES, StepShape, tile_rows

SLOTS = tl.constexpr(len(NAMES))
UNIT = tl.constexpr(ALIGNMENT)
KEYS = {32: 64, 64: 64, 128: 32}    # of a block of attention, by d
LOGIT_ROWS = 32
MAX_SPLITS = 8
WARPS = 8
THREADS = tl.constexpr(32 * WARPS)


@triton.jit
def _arrive(counter, arrivals, PROGRAMS: tl.constexpr):
    """The number of arrivals for which `_wait` has to wait."""
    if PROGRAMS > 1:
        tl.debug_barrier()    # all threads have stored
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
    return arrivals + PROGRAMS


@triton.jit
def _wait(counter, arrivals, PROGRAMS: tl.constexpr):
    """One thread asks; the acquire also empties L1, so that no thread reads what was there before."""
    if PROGRAMS > 1:
        tl.inline_asm_elementwise(
            """{
            .reg .pred waits;
            .reg .b32 number;
            mov.u32 number, %tid.x;
            setp.ne.u32 waits, number, 0;
            @waits bra done;
            again:
            ld.acquire.gpu.global.u32 number, [$1];
            setp.lt.s32 waits, number, $2;
            @waits bra again;
            done:
            mov.u32 $0, 0;
            }""",
            "=r,l,r", [counter, arrivals], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        tl.debug_barrier()


@triton.jit
def _pointer(base, table, layer, SLOT: tl.constexpr):
    """A parameter of a layer, by its number in NAMES."""
    SCALE: tl.constexpr = UNIT * 8 // base.dtype.element_ty.primitive_bitwidth
    return base + tl.load(table + layer * SLOTS + SLOT) * SCALE


@triton.jit
def _words_by(base, table, layer, SLOT: tl.constexpr, EACH: tl.constexpr):
    """The same to words. The compiler may know an alignment of EACH words, 1 or 2, so a thread has as many in a row."""
    units = tl.load(table + layer * SLOTS + SLOT)
    if EACH == 1:
        return (base.to(tl.int64) + units * UNIT).to(tl.pointer_type(tl.int32))
    return words(base) + (units + units) * 2


@triton.jit
def _share(program, OUTPUTS: tl.constexpr, PROGRAMS: tl.constexpr):
    """The rows of a matrix that a program has: the first, and the one after the last."""
    EACH: tl.constexpr = (OUTPUTS + PROGRAMS - 1) // PROGRAMS
    return program * EACH, tl.minimum(program * EACH + EACH, OUTPUTS)


@triton.jit
def _embed(
    tokens, embeddings, places, norm_weight, norm_bias, position, epsilon, out,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Stores the vector of the token, rounded as torch's operations round it; without a token the one that is given."""
    column = tl.arange(0, BLOCK)[None, :]
    valid = column < WIDTH
    if tokens is not None:
        embeddings += tl.load(tokens).to(tl.int64) * WIDTH
    x = tl.load(embeddings + column, mask=valid, other=0.0)
    if places is not None:
        place = tl.load(places + position * WIDTH + column, mask=valid, other=0.0)
        x = (x.to(tl.float32) + place.to(tl.float32)).to(x.dtype)
    if NORM is not None:
        x = norm_rows(x.to(tl.float32), norm_weight, norm_bias, column, valid, WIDTH, epsilon, NORM)
    tl.store(out + column, x, mask=valid)


@triton.jit
def _step(
    table, tokens, embeddings, places, embedding_norm, embedding_norm_bias, output_matrix, keys, values, length,
    cos, sin, logits, x_after_attention, x_after_layer, packed, mixed, highest_score, total_weight, hidden, counter,
    layer_stride, head_stride, scale, epsilon, capacity, vocab, layers,
    PROGRAMS: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr,
    QKV_ROWS: tl.constexpr, OUT_ROWS: tl.constexpr, UP_ROWS: tl.constexpr, LOGIT_ROWS: tl.constexpr,
    NORM: tl.constexpr, QK_NORM: tl.constexpr, EMBEDDING_NORM: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    base = output_matrix
    DTYPE: tl.constexpr = output_matrix.dtype.element_ty
    BLOCK: tl.constexpr = triton.next_power_of_2(WIDTH)
    QKV: tl.constexpr = (HEADS + 2 * GROUPS) * SIZE
    MIXED: tl.constexpr = HEADS * SIZE
    MIXED_BLOCK: tl.constexpr = triton.next_power_of_2(MIXED)
    MIXED_WORDS: tl.constexpr = MIXED * DTYPE.primitive_bitwidth // 32
    qkv_first, qkv_end = _share(program, QKV, PROGRAMS)
    out_first, out_end = _share(program, WIDTH, PROGRAMS)
    up_first, up_end = _share(program, HIDDEN, PROGRAMS)
    qkv_row, out_row = qkv_first + tl.arange(0, QKV_ROWS), out_first + tl.arange(0, OUT_ROWS)
    up_row = up_first + tl.arange(0, UP_ROWS)
    MIXED_EACH: tl.constexpr = 1 if MIXED_BLOCK * DTYPE.primitive_bitwidth < 32 * 2 * THREADS else 2
    mixed_word = tl.arange(0, MIXED_BLOCK * DTYPE.primitive_bitwidth // 32)[None, :]

    project = load_tiles(_pointer(base, table, 0, 2), qkv_first, qkv_end, WIDTH, QKV_ROWS)
    project_bias = tl.load(_pointer(base, table, 0, 3) + qkv_row, mask=qkv_row < qkv_end, other=0.0)
    scales, shifts = load_chunks(_pointer(base, table, 0, 0), WIDTH), load_chunks(_pointer(base, table, 0, 1), WIDTH)
    position = tl.load(length).to(tl.int32)
    _embed(
        tokens, embeddings, places, embedding_norm, embedding_norm_bias, position, epsilon, x_after_layer,
        WIDTH, BLOCK, EMBEDDING_NORM,
    )  # fmt: skip
    tl.debug_barrier()               # each program has stored all of the vector, the same as the others, and reads it
    own = tl.load(x_after_layer + out_row, mask=out_row < out_end, other=0.0).to(tl.float32)    # (R,) of the residual
    split_size = tl.cdiv(position, SPLITS)                  # keys of a split
    split_begin = program // HEADS * split_size
    split_end = tl.minimum(split_begin + split_size, position)
    if PROGRAMS > 1:
        prefetch_rows(_pointer(base, table, 0, 14), out_first, out_end, HIDDEN, OUT_ROWS)
    arrivals = 0
    for layer in range(layers):
        following = tl.minimum(layer + 1, layers - 1)       # its weights are loaded into L2
        x = load_chunks(x_after_layer, WIDTH)
        mean, rstd = moments(x_after_layer, epsilon, WIDTH, BLOCK, NORM)
        x = norm_chunks(x, scales, shifts, mean, rstd, DTYPE)
        part = product(project, x, DTYPE) + project_bias.to(tl.float32)
        tl.store(packed + qkv_row, part, mask=qkv_row < qkv_end)

        arrivals = _arrive(counter, arrivals, PROGRAMS)
        layer_keys, layer_values = keys + layer * layer_stride, values + layer * layer_stride
        early_keys, early_values = None, None
        if PROGRAMS > 1:
            first = program % HEADS // (HEADS // GROUPS) * head_stride
            early_keys, early_values = load_block(
                layer_keys, layer_values, first, split_begin, split_end, capacity, SIZE, KEYS, "full"
            )
            prefetch_rows(_pointer(base, table, following, 2), qkv_first, qkv_end, WIDTH, QKV_ROWS)
        out = tl.load(
            _words_by(base, table, layer, 8, MIXED_EACH) + out_row[:, None] * MIXED_WORDS + mixed_word,
            mask=(out_row[:, None] < out_end) & (mixed_word < MIXED_WORDS), other=0,
        )  # fmt: skip
        out_bias = tl.load(_pointer(base, table, layer, 9) + out_row, mask=out_row < out_end, other=0.0)
        weight, bias = _pointer(base, table, layer, 12), _pointer(base, table, layer, 13)
        up = load_tiles(weight, up_first, up_end, WIDTH, UP_ROWS)
        up_bias = tl.load(bias + up_row, mask=up_row < up_end, other=0.0)
        if ACTIVATION == "swiglu":      # the rows of the gates come first, then those of the values
            up_values = load_tiles(weight + HIDDEN * WIDTH, up_first, up_end, WIDTH, UP_ROWS)
            values_bias = tl.load(bias + HIDDEN + up_row, mask=up_row < up_end, other=0.0)
        _wait(counter, arrivals, PROGRAMS)

        for number in range(program, HEADS * SPLITS, PROGRAMS):      # at most one, except for a single program
            attend(
                packed, layer_keys, layer_values, position, cos, sin,
                _pointer(base, table, layer, 4), _pointer(base, table, layer, 5),
                _pointer(base, table, layer, 6), _pointer(base, table, layer, 7),
                mixed, highest_score, total_weight, early_keys, early_values,
                number % HEADS, program * 0, number // HEADS,
                0, head_stride, scale, epsilon, capacity, HEADS, GROUPS, SIZE, KEYS, SPLITS, QK_NORM, "full",
            )  # fmt: skip

        arrivals = _arrive(counter, arrivals, PROGRAMS)
        if PROGRAMS > 1:
            prefetch_rows(_pointer(base, table, following, 8), out_first, out_end, MIXED, OUT_ROWS)
            prefetch_rows(_pointer(base, table, following, 12), up_first, up_end, WIDTH, UP_ROWS)
            if ACTIVATION == "swiglu":
                prefetch_rows(
                    _pointer(base, table, following, 12) + HIDDEN * WIDTH, up_first, up_end, WIDTH, UP_ROWS
                )
        _wait(counter, arrivals, PROGRAMS)

        inputs = combine_splits(mixed, highest_score, total_weight, 0, SPLITS, HEADS, SIZE, MIXED_BLOCK)
        own += product((out,), as_parts(inputs, MIXED_BLOCK, DTYPE), DTYPE) + out_bias.to(tl.float32)
        own = own.to(DTYPE).to(tl.float32)
        tl.store(x_after_attention + out_row, own, mask=out_row < out_end)

        arrivals = _arrive(counter, arrivals, PROGRAMS)
        scales = load_chunks(_pointer(base, table, layer, 10), WIDTH)
        shifts = load_chunks(_pointer(base, table, layer, 11), WIDTH)
        down = load_tiles(_pointer(base, table, layer, 14), out_first, out_end, HIDDEN, OUT_ROWS)
        down_bias = tl.load(_pointer(base, table, layer, 15) + out_row, mask=out_row < out_end, other=0.0)
        _wait(counter, arrivals, PROGRAMS)

        x = load_chunks(x_after_attention, WIDTH)
        mean, rstd = moments(x_after_attention, epsilon, WIDTH, BLOCK, NORM)
        x = norm_chunks(x, scales, shifts, mean, rstd, DTYPE)
        part = product(up, x, DTYPE) + up_bias.to(tl.float32)
        if ACTIVATION == "swiglu":
            part = activate(part, "silu") * (product(up_values, x, DTYPE) + values_bias.to(tl.float32))
        else:
            part = activate(part, ACTIVATION)
        tl.store(hidden + up_row, part, mask=up_row < up_end)

        arrivals = _arrive(counter, arrivals, PROGRAMS)
        if PROGRAMS > 1:
            prefetch_rows(_pointer(base, table, following, 14), out_first, out_end, HIDDEN, OUT_ROWS)
        project = load_tiles(_pointer(base, table, following, 2), qkv_first, qkv_end, WIDTH, QKV_ROWS)
        project_bias = tl.load(_pointer(base, table, following, 3) + qkv_row, mask=qkv_row < qkv_end, other=0.0)
        _wait(counter, arrivals, PROGRAMS)

        own += product(down, numbers(load_chunks(hidden, HIDDEN), DTYPE), DTYPE) + down_bias.to(tl.float32)
        own = own.to(DTYPE).to(tl.float32)
        tl.store(x_after_layer + out_row, own, mask=out_row < out_end)

        arrivals = _arrive(counter, arrivals, PROGRAMS)
        scales = load_chunks(_pointer(base, table, layer + 1, 0), WIDTH)    # after the last layer: of the last norm
        shifts = load_chunks(_pointer(base, table, layer + 1, 1), WIDTH)
        _wait(counter, arrivals, PROGRAMS)

    first = program * LOGIT_ROWS
    tiles = load_tiles(output_matrix, first, vocab, WIDTH, LOGIT_ROWS)
    x = load_chunks(x_after_layer, WIDTH)
    mean, rstd = moments(x_after_layer, epsilon, WIDTH, BLOCK, NORM)
    x = norm_chunks(x, scales, shifts, mean, rstd, DTYPE)
    while first < vocab:
        following = first + PROGRAMS * LOGIT_ROWS
        next_tiles = load_tiles(output_matrix, following, vocab, WIDTH, LOGIT_ROWS)
        row = first + tl.arange(0, LOGIT_ROWS)
        tl.store(logits + row, product(tiles, x, DTYPE), mask=row < vocab)
        tiles, first = next_tiles, following
    if program == 0:
        tl.store(length, position + 1)                                      # all have read it: there were barriers


def decoder_step(
    shape: StepShape,
    table: Tensor,
    x: Tensor,
    tokens: Tensor | None,
    places: Tensor | None,
    output_matrix: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    *,
    norm: Norm,
    embedding_norm: Norm,
    qk_norm: str | None,
    rope: tuple[Tensor, Tensor] | None,
    activation: str,
    programs: int,
) -> Tensor:
    """(1, V) logits. The new key and value are written into the caches (1, L, G, C, d), and `length` (1,) grows by 1.

    `x`: the embeddings (V, D) of `tokens` (1, 1), to which those of `places` (C, D) may be added; or without tokens the
    vector (1, D) itself. `rope` as for decode_attention.py.
    """
    capacity, splits, size = keys.shape[3], _splits(programs, shape.heads), shape.head_size
    cos, sin = rope or (None, None)
    new = output_matrix.new_empty
    logits, counter = new(1, len(output_matrix)), torch.zeros(1, dtype=torch.int32, device=x.device)
    attention_parts = [new(splits * shape.heads * count, dtype=torch.float32) for count in (size, 1, 1)]
    _step[(programs,)](
        table, tokens, x, places, embedding_norm.weight, embedding_norm.bias, output_matrix, keys, values, length,
        cos, sin, logits, new(shape.width), new(shape.width), new(shape.packed), *attention_parts, new(shape.hidden),
        counter, keys.stride(1), keys.stride(2), LOG2E / math.sqrt(size), norm.epsilon, capacity, len(output_matrix),
        keys.shape[1], PROGRAMS=programs, WIDTH=shape.width, HIDDEN=shape.hidden, HEADS=shape.heads,
        GROUPS=shape.kv_heads, SIZE=size, SPLITS=splits, KEYS=KEYS[size], QKV_ROWS=tile_rows(shape.packed, programs),
        OUT_ROWS=tile_rows(shape.width, programs), UP_ROWS=tile_rows(shape.hidden, programs), LOGIT_ROWS=LOGIT_ROWS,
        NORM=norm.kind, QK_NORM=qk_norm, EMBEDDING_NORM=embedding_norm.kind, ACTIVATION=activation,
        num_warps=WARPS, launch_cooperative_grid=programs > 1,
    )  # fmt: skip
    return logits


def _splits(programs: int, heads: int) -> int:
    """Programs that share the keys of a head; more than one, since the parts of splits are combined."""
    splits = MIN_SPLITS
    while splits < MAX_SPLITS and 2 * splits * heads <= programs:
        splits *= 2
    return splits
