"""Few shapes of batches: batches of similar shapes are padded to a common one, so that a few CUDA graphs replay all.

Each shape of batch needs a CUDA graph of its own, and capturing one takes as long as many steps. Batches of examples
have many shapes, which are known beforehand; two of them are merged, the pair for which the least is padded, until few
are left. What is padded does not count in the loss (`Buckets.pad_to`).

Shapes: N batches, D numbers of a shape: rows, and the width of the text, and that of the source where there is one.
"""

import numpy as np
from numpy.typing import NDArray

Shapes = NDArray[np.int64]

MOST_SHAPES = 12      # so many are left at most
FREE = 0.003          # and shapes are merged as long as this share of all tokens is added by it, or less
MOST_FREE = 0.05      # a share that is never added for free
STEPS = 60            # steps that take as long as meeting a shape for the first time and capturing it


def free_share(steps: float | None) -> float:
    """The share of all tokens that may be added to save a shape, in a training of so many steps; None: not known."""
    return FREE if steps is None else min(STEPS / max(steps, 1), MOST_FREE)


def few_shapes(shapes: Shapes, most: int = MOST_SHAPES, free: float = FREE) -> Shapes:
    """(N, D) -> (N, D): for each batch a shape that holds it; only a few differ. `free`: see `free_share`."""
    merged, group, counts = np.unique(shapes, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    total = float((counts * area(merged)).sum())
    while len(merged) > 1:
        one, other, added = _cheapest(merged, counts)
        if len(merged) <= most and added > free * total:
            break
        merged[one], counts[one] = np.maximum(merged[one], merged[other]), counts[one] + counts[other]
        group[group == other] = one
        group[group > other] -= 1
        merged, counts = np.delete(merged, other, 0), np.delete(counts, other)
    return merged[group]


def area(shapes: Shapes) -> Shapes:
    """(…, D) -> (…): tokens of a batch, padding and source included."""
    tokens: Shapes = shapes[..., 0] * shapes[..., 1:].sum(-1)
    return tokens


def _cheapest(shapes: Shapes, counts: Shapes) -> tuple[int, int, float]:
    """The two shapes that add the fewest tokens when they become one, and how many."""
    both = area(np.maximum(shapes[:, None], shapes[None]))                                    # (N, N)
    alone = counts * area(shapes)
    added = (counts[:, None] + counts) * both - alone[:, None] - alone
    added[np.tril_indices(len(shapes))] = np.iinfo(np.int64).max
    one, other = np.unravel_index(int(added.argmin()), added.shape)
    return int(one), int(other), float(added[one, other])
