"""Which decoders fit into the kernel of a whole step (decoder_step.py), and a table of where their parameters are.

Between two barriers each program holds its rows of a matrix in registers, so a matrix must not be too large for all
programs together; larger models read their weights for so long that several kernels a layer lose little.

Shapes: L layers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 16                # bytes, of parameters and of their rows
CHUNK = 512                   # bytes of a row that a warp reads at a time
TILE = 48 * 1024              # bytes of a matrix that a program holds, as measured to be faster: 32 rows of GPT-2's
MIN_SPLITS = 2                # programs that share the keys of a head
NAMES = (                     # of the parameters of a layer, in the order of the table
    "attention_norm", "attention_norm_bias", "project", "project_bias",
    "q_norm", "q_norm_bias", "k_norm", "k_norm_bias", "out", "out_bias",
    "feed_forward_norm", "feed_forward_norm_bias", "up", "up_bias", "down", "down_bias",
)  # fmt: skip
SCALES = {"attention_norm", "q_norm", "k_norm", "feed_forward_norm"}    # 1 where a norm has none; the others 0
Parameters = Sequence[Tensor | None]


class StepShape(NamedTuple):
    """The measures of a decoder."""

    width: int
    hidden: int               # outputs of the activation
    heads: int
    kv_heads: int
    head_size: int
    gated: bool               # two rows of the matrix `up` for each output

    @property
    def mixed(self) -> int:
        return self.heads * self.head_size

    @property
    def packed(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_size


def fits(shape: StepShape, element_size: int, programs: int) -> bool:
    """Whether so many programs can hold each matrix of a layer, of numbers of this many bytes, and are enough to share
    the keys of each head."""
    inputs = shape.width, shape.hidden, shape.mixed
    aligned = all(size * element_size % ALIGNMENT == 0 for size in inputs)
    matrices = (
        (shape.packed, shape.width, 1), (shape.width, shape.mixed, 1),
        (shape.hidden, shape.width, 1 + shape.gated), (shape.width, shape.hidden, 1),
    )  # fmt: skip
    tiles = [times * tile_rows(outputs, programs) * -(-inputs * element_size // CHUNK) * CHUNK
             for outputs, inputs, times in matrices]  # fmt: skip
    return aligned and max(tiles) <= TILE and MIN_SPLITS * shape.heads <= programs


def tile_rows(outputs: int, programs: int) -> int:
    """Rows of a matrix that a program has, rounded up to a power of 2."""
    return 1 << (-(-outputs // programs) - 1).bit_length()


class ParameterTable:
    """Where the kernel finds the parameters of all layers: their distances from a matrix `base`, in ALIGNMENTs."""

    def __init__(self, layers: Sequence[Parameters], last_norm: Parameters, base: Tensor):
        """The parameters of each layer, in the order of NAMES, and the first two after the last; None: it has none."""
        rows = [*layers, last_norm]
        most = max(len(part) for row in rows for part in row if part is not None)
        self.ones, self.zeros = base.new_ones(most), base.new_zeros(most)    # for parameters that are not there
        self.addresses = _addresses(rows, base)
        missing = [(self.ones if name in SCALES else self.zeros).data_ptr() for name in NAMES]
        found = [[at or instead for at, instead in zip(row, missing)] for row in self.addresses[1:]]
        found[-1] += missing[len(last_norm) :]
        self.tensor = ((torch.tensor(found) - base.data_ptr()) // ALIGNMENT).to(base.device)     # (L + 1, 16)

    @property
    def aligned(self) -> bool:
        return all(at % ALIGNMENT == 0 for row in self.addresses for at in row)

    def matches(self, layers: Sequence[Parameters], last_norm: Parameters, base: Tensor) -> bool:
        """Whether the parameters are still where they were."""
        return self.addresses == _addresses([*layers, last_norm], base)


def _addresses(rows: Sequence[Parameters], base: Tensor) -> list[list[int]]:
    """0: there is no such parameter."""
    return [[base.data_ptr()], *([0 if part is None else part.data_ptr() for part in row] for row in rows)]
