"""L-BFGS: the minimum of a smooth convex function, by its slopes at the last few points (Liu & Nocedal 1989).

    x ← x − t H g,      H from the last pairs s = x' − x, y = g' − g (two-loop recursion, Nocedal 1980)

The step t is 1, or halved until the function falls enough (Armijo). −½ gᵀd, the fall that a quadratic function would
have along d = −H g, estimates how far above the minimum x is; the search ends where it is small.
"""

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

HISTORY = 10       # pairs (s, y) that are remembered
ENOUGH = 1e-4      # share of the fall that the slope promises with which a step is accepted
HALVINGS = 20      # of a step, at most
CLOSE = 1e-6       # above the minimum, relative to the value: float32 says no more

Slope = Callable[[Tensor], tuple[float, Tensor]]


def minimise(function: Slope, x: Tensor, steps: int, tell: Callable[[float], None]) -> tuple[Tensor, int]:
    """The minimum from `x` on, in at most so many steps, and their number. `function`: a point -> value, gradient;
    `tell` is called with the value after each step."""
    pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=HISTORY)      # s, y, 1 / sᵀy
    value, gradient = function(x)
    for count in range(steps):
        direction = -inverse_hessian_times(gradient, pairs)
        fall = -dot(gradient, direction)
        if fall <= 2 * CLOSE * max(abs(value), CLOSE):
            return x, count
        found = _line_search(function, x, value, direction, fall, 1.0 if pairs else first_step(gradient))
        if found is None:                                                   # rounding hides any fall
            return x, count
        s, value, after = found
        x, y, gradient = x + s, after - gradient, after
        if (curvature := dot(s, y)) > 0:
            pairs.append((s, y, 1 / curvature))
        tell(value)
    return x, steps


def inverse_hessian_times(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor, float]]) -> Tensor:
    """H g, from the newest pair to the oldest and back."""
    result, shares = gradient.clone(), list[float]()
    for s, y, inverse in reversed(pairs):
        shares.append(inverse * dot(s, result))
        result.sub_(y, alpha=shares[-1])
    if pairs:
        s, y, inverse = pairs[-1]
        result.mul_(1 / (inverse * dot(y, y)))
    for (s, y, inverse), share in zip(pairs, reversed(shares), strict=True):
        result.add_(s, alpha=share - inverse * dot(y, result))
    return result


def _line_search(
    function: Slope, x: Tensor, value: float, direction: Tensor, fall: float, size: float
) -> tuple[Tensor, float, Tensor] | None:
    """The step, and the value and gradient after it; None: none is low enough."""
    for _ in range(HALVINGS):
        step = direction * size
        after, gradient = function(x + step)
        if after <= value - ENOUGH * size * fall:
            return step, after, gradient
        size /= 2
    return None


def first_step(gradient: Tensor) -> float:
    """Of length 1 at most: the scale of the function is not known yet."""
    return min(1.0, 1 / max(math.sqrt(dot(gradient, gradient)), 1e-30))


def dot(one: Tensor, other: Tensor) -> float:
    return float(torch.dot(one.flatten(), other.flatten()))
