"""Uniform random numbers of one row for many steps at once: those of `sampling.uniforms`, computed together.

`uniforms(seed, step, rows)` makes a generator for each step, which is slow where every row has a seed of its own. Here
the seeds of all steps are hashed at once, as numpy's SeedSequence hashes them (O'Neill's seed_seq_fe), and PCG64
(O'Neill 2014) is advanced to the number of the row.

Shapes: T steps.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

POOL = 4                                                   # words of 32 bits
INIT_A, MULT_A = 0x43B0D7E5, 0x931E8875
INIT_B, MULT_B = 0x8B51F9DD, 0x58F38DED
MIX_LEFT, MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
SHIFT = np.uint32(16)
PCG = 0x2360ED051FC65DA44385DF649FCCF645                   # the multiplier of PCG64
BITS, BITS_64 = (1 << 128) - 1, (1 << 64) - 1

Words = NDArray[np.uint32]


def row_uniforms(seed: int, row: int, first: int, steps: int) -> list[float]:
    """The numbers of this row in `steps` steps from `first` on."""
    columns = np.arange(first, first + steps, dtype=np.uint32)
    halves = _generate(_pool([*(np.full_like(columns, word) for word in _words(seed)), columns]))
    state_high, state_low, stream_high, stream_low = (half.tolist() for half in halves)
    return [_nth(state_high[t] << 64 | state_low[t], stream_high[t] << 64 | stream_low[t], row) for t in range(steps)]


def _nth(seed: int, stream: int, row: int) -> float:
    """Number `row` of PCG64 with this seed, in [0, 1)."""
    increment = (stream << 1 | 1) & BITS
    state = ((increment + seed) * PCG + increment) & BITS
    for _ in range(row + 1):
        state = (state * PCG + increment) & BITS
    word, turn = (state >> 64) ^ (state & BITS_64), state >> 122
    return (((word >> turn | word << (64 - turn)) & BITS_64) >> 11) * 2.0**-53


def _words(number: int) -> list[int]:
    """32 bits each, lowest first."""
    words = [number & 0xFFFFFFFF]
    while number := number >> 32:
        words.append(number & 0xFFFFFFFF)
    return words


def _pool(entropy: list[Words]) -> list[Words]:
    """SeedSequence.mix_entropy: (T,) words -> POOL of them."""
    constants = _constants(INIT_A, MULT_A)
    zero = np.zeros_like(entropy[0])
    pool = [_hash(entropy[place] if place < len(entropy) else zero, constants) for place in range(POOL)]
    for source in range(POOL):
        for place in range(POOL):
            if source != place:
                pool[place] = _mix(pool[place], _hash(pool[source], constants))
    for word in entropy[POOL:]:
        for place in range(POOL):
            pool[place] = _mix(pool[place], _hash(word, constants))
    return pool


def _generate(pool: list[Words]) -> list[NDArray[np.uint64]]:
    """SeedSequence.generate_state: four words of 64 bits for each step."""
    constants = _constants(INIT_B, MULT_B)
    words = [_hash(pool[place % POOL], constants).astype(np.uint64) for place in range(8)]
    return [words[place] | words[place + 1] << np.uint64(32) for place in range(0, 8, 2)]


def _constants(first: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    while True:
        after = first * factor & 0xFFFFFFFF
        yield np.uint32(first), np.uint32(after)
        first = after


def _hash(value: Words, constants: Iterator[tuple[np.uint32, np.uint32]]) -> Words:
    before, after = next(constants)
    value = (value ^ before) * after
    hashed: Words = value ^ value >> SHIFT
    return hashed


def _mix(one: Words, other: Words) -> Words:
    mixed = MIX_LEFT * one - MIX_RIGHT * other
    result: Words = mixed ^ mixed >> SHIFT
    return result
