"""Matrix times vector by one program of many, from registers: tiles of rows in chunks, each row in one warp.

Numbers are loaded as words of 32 bits and become float32 where they are used: as words they need the fewest registers
while a program waits. A word has two numbers of 16 bits, so a vector too is kept as the numbers at even places and
those at odd ones, chunk by chunk: `parts`, a tuple. A chunk has fewer words than a program has threads, so that the
compiler lets each warp load the vector as the rows need it, from L1, instead of exchanging tiles between threads.

Shapes: R rows of a tile, CHUNK words of a chunk.
"""

import triton
import triton.language as tl

CHUNK = tl.constexpr(128)


@triton.jit
def words(x):
    """A pointer to numbers as one to words."""
    return x.to(tl.pointer_type(tl.int32))


@triton.jit
def load_tiles(weight, first, end, INPUTS: tl.constexpr, ROWS: tl.constexpr):
    """(R, CHUNK) words of each chunk of columns: the rows from `first` on, before `end`."""
    WORDS: tl.constexpr = INPUTS * weight.dtype.element_ty.primitive_bitwidth // 32
    row = first + tl.arange(0, ROWS)[:, None]
    tiles = ()
    for chunk in tl.static_range((WORDS + CHUNK - 1) // CHUNK):
        column = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
        tile = tl.load(words(weight) + row * WORDS + column, mask=(row < end) & (column < WORDS), other=0)
        tiles += (tile,)  # type: ignore[assignment]
    return tiles


@triton.jit
def load_chunks(x, SIZE: tl.constexpr):
    """(1, CHUNK) words of each chunk of a vector."""
    WORDS: tl.constexpr = SIZE * x.dtype.element_ty.primitive_bitwidth // 32
    chunks = ()
    for chunk in tl.static_range((WORDS + CHUNK - 1) // CHUNK):
        column = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
        chunks += (tl.load(words(x) + column, mask=column < WORDS, other=0),)  # type: ignore[assignment]
    return chunks


@triton.jit
def prefetch_rows(weight, first, end, INPUTS: tl.constexpr, ROWS: tl.constexpr):
    """Into L2: these rows of a matrix. Pointers after them point to the last number."""
    LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth    # numbers in 128 bytes
    LINES: tl.constexpr = triton.next_power_of_2((ROWS * INPUTS + LINE - 1) // LINE)
    offset = first * INPUTS + tl.arange(0, LINES) * LINE
    line = weight + tl.minimum(offset, tl.maximum(end * INPUTS - 1, 0))
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [line.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _half(word):
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _numbers_of(word, dtype: tl.constexpr):
    """Float32: the numbers at even places and those at odd ones; of float32 itself all."""
    if dtype == tl.float32:
        even, odd = word.to(tl.float32, bitcast=True), None
    elif dtype == tl.bfloat16:                                                 # the upper half of a float32
        even, odd = (word << 16).to(tl.float32, bitcast=True), (word & -65536).to(tl.float32, bitcast=True)
    else:
        even, odd = _half(word), _half(word >> 16)
    return (even,) if odd is None else (even, odd)


@triton.jit
def numbers(chunks, dtype: tl.constexpr):
    """The parts of chunks, float32."""
    parts = ()
    for chunk in tl.static_range(len(chunks)):
        parts += _numbers_of(chunks[chunk], dtype)
    return parts


@triton.jit
def as_parts(x, SIZE: tl.constexpr, dtype: tl.constexpr):
    """(1, SIZE) float32 as `numbers` gives one chunk of so many numbers of this dtype."""
    return (x,) if dtype == tl.float32 else tl.split(tl.reshape(x, (1, SIZE // 2, 2)))


@triton.jit
def product(tiles, parts, dtype: tl.constexpr):
    """(R,) float32"""
    matrix = numbers(tiles, dtype)
    total = matrix[0] * parts[0]
    for part in tl.static_range(1, len(parts)):
        total += matrix[part] * parts[part]
    return tl.sum(total, 1)


# Norms of a vector that is kept so


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def moments(x, epsilon, SIZE: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """The mean, 0 for rms, and 1/√(variance + ε): single numbers, since those suit every arrangement of threads."""
    column = tl.arange(0, BLOCK)
    shift = 0.0
    if KIND == "layer":
        shift = tl.load(x).to(tl.float32)        # any number of x: then the difference of squares below loses little
    value = tl.load(x + column, mask=column < SIZE, other=0.0).to(tl.float32)
    value = tl.where(column < SIZE, value - shift, 0.0)
    total, squares = tl.reduce((value, value * value), 0, _add_pairs)
    mean = 0.0
    if KIND == "layer":
        mean = total / SIZE
    return mean + shift, tl.rsqrt(squares / SIZE - mean * mean + epsilon)


@triton.jit
def norm_chunks(chunks, weights, biases, mean, rstd, dtype: tl.constexpr):
    """The parts of the norm of a vector. Columns that it does not have get the bias, and are multiplied by 0 later."""
    x, scale, shift = numbers(chunks, dtype), numbers(weights, dtype), numbers(biases, dtype)
    parts = ()
    for part in tl.static_range(len(x)):
        parts += ((x[part] - mean) * rstd * scale[part] + shift[part],)  # type: ignore[assignment]
    return parts
