"""Fitting a log-linear model: naive Bayes log-count ratios as scales, then logistic regression by L-BFGS.

    min over w, b   Σ_n -log p(c_n | x_n) + ½ λ Σ w²,       log p(c | x) ∝ b_c + Σ_f x_f r_{f,c} w_{f,c}

The sum is convex, so that every start leads to the same weights. Both products, with X and with its transpose, read a
sparse matrix row by row.

Shapes: N texts, F features, C classes, M ones of X.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding_bag, one_hot

from chainrule.models.loglinear.lbfgs import minimise
from chainrule.models.loglinear.table import Ints, Presence
from chainrule.progress import bar

PENALTIES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1)    # of l2=auto, each fitted from the weights of the one before
HELD_OUT = 10            # of l2=auto: each tenth text is held out while it is chosen


@dataclass(frozen=True)
class Fitted:
    """A minimum: log p(c | x) is bias + Σ of the weights of the features, up to a constant."""

    weights: Tensor      # (F, C): r w
    bias: Tensor         # (C,)
    counts: Tensor       # (F, C) texts of each class that have the feature
    l2: float


@dataclass(frozen=True)
class Objective:
    """How a model is fitted: its settings."""

    alpha: float         # added to the counts of the ratios
    ratios: bool         # false: each r is 1
    iterations: int      # of L-BFGS, at most


class Matrix:
    """X, which is 1 where a text has a feature: its products with dense matrices."""

    def __init__(self, presence: Presence):
        texts = np.argsort(presence.texts, kind="stable")
        self.rows = _sparse(presence.texts[texts], presence.features[texts], presence.count, presence.size)
        self.columns = _sparse(presence.features, presence.texts, presence.size, presence.count)

    def times(self, dense: Tensor) -> Tensor:
        """X (N, F) times (F, C)."""
        return self.rows(dense)

    def transposed_times(self, dense: Tensor) -> Tensor:
        """Xᵀ (F, N) times (N, C)."""
        return self.columns(dense)


def _sparse(rows: Ints, columns: Ints, count: int, width: int) -> Callable[[Tensor], Tensor]:
    """The product of a sparse matrix of ones, (count, width), given by row, with a dense one."""
    starts = torch.from_numpy(np.append(0, np.cumsum(np.bincount(rows, minlength=count))).astype(np.int32))
    places = torch.from_numpy(columns)
    if not len(places):
        return lambda dense: dense.new_zeros(count, dense.shape[1])
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return lambda dense: embedding_bag(places, dense, starts, mode="sum", include_last_offset=True)
    ones = torch.ones(len(places))
    with warnings.catch_warnings():                              # torch calls sparse matrices a beta
        warnings.simplefilter("ignore", UserWarning)
        matrix = torch.sparse_csr_tensor(starts, places, ones, size=(count, width))
    return lambda dense: matrix @ dense


def log_count_ratios(counts: Tensor, alpha: float) -> Tensor:
    """(F, C) -> (F, C): log of how frequent a feature is in a class over how frequent it is in all others."""
    inside = counts.double() + alpha
    outside = inside.sum(1, keepdim=True) - inside
    return ((inside / inside.sum(0)).log() - (outside / outside.sum(0)).log()).float()


def fit(presence: Presence, targets: Tensor, classes: int, objective: Objective, l2: float | None) -> Fitted:
    """The weights and biases of a set of texts; `l2` None: it is chosen on texts that are held out, then used on all.
    """
    if l2 is None:
        l2 = choose_penalty(presence, targets, classes, objective)
    problem = Problem(presence, targets, classes, objective)
    problem.minimise(l2, f"fitting {presence.size:,} n-grams")
    return Fitted(problem.weights, problem.bias.clone(), problem.counts.int(), l2)


def choose_penalty(presence: Presence, targets: Tensor, classes: int, objective: Objective) -> float:
    """The strength of PENALTIES with the least cross-entropy of texts that were held out."""
    held_out = np.arange(presence.count) % HELD_OUT == HELD_OUT - 1
    if not held_out.any():
        return PENALTIES[len(PENALTIES) // 2]
    problem = Problem(presence.among(~held_out), targets[torch.from_numpy(~held_out)], classes, objective)
    matrix, truth, losses = Matrix(presence.among(held_out)), targets[torch.from_numpy(held_out)], list[float]()
    for l2 in PENALTIES:
        problem.minimise(l2, f"model.l2=auto: {l2:g}")
        losses.append(float(cross_entropy(matrix.times(problem.weights) + problem.bias, truth)))
        if losses[-1] > min(losses):                             # weaker ones are worse still
            break
    return PENALTIES[int(np.argmin(losses))]


class Problem:
    """The loss of some texts, as a function of w and b."""

    def __init__(self, presence: Presence, targets: Tensor, classes: int, objective: Objective):
        self.matrix, self.objective = Matrix(presence), objective
        self.truth = one_hot(targets, classes).float()                              # (N, C)
        self.counts = self.matrix.transposed_times(self.truth)                      # (F, C), exact to 2^24 texts
        ratios = log_count_ratios(self.counts, objective.alpha)
        self.scales = ratios if objective.ratios else torch.ones_like(ratios)
        share = (self.truth.sum(0) + 0.5) / (len(targets) + 0.5 * classes)
        self.parameters = torch.cat([torch.zeros_like(self.scales), share.log()[None]])    # (F + 1, C): w, then b

    @property
    def weights(self) -> Tensor:
        return self.scales * self.parameters[:-1]

    @property
    def bias(self) -> Tensor:
        return self.parameters[-1]

    def log_probs(self, parameters: Tensor) -> Tensor:
        """(N, C)"""
        return (self.matrix.times(self.scales * parameters[:-1]) + parameters[-1]).log_softmax(1)

    def loss(self, parameters: Tensor, l2: float) -> tuple[float, Tensor]:
        """The penalised loss of each text on average, and its gradient."""
        log_probs, w, number = self.log_probs(parameters), parameters[:-1], max(1, len(self.truth))
        error = log_probs.exp() - self.truth                                        # (N, C)
        slope = self.matrix.transposed_times(error).mul_(self.scales).add_(w, alpha=l2)
        penalty = 0.5 * l2 * float(w.square().sum(dtype=torch.double))
        nats = -float((log_probs * self.truth).sum(dtype=torch.double))
        return (nats + penalty) / number, torch.cat([slope, error.sum(0, keepdim=True)]) / number

    def minimise(self, l2: float, title: str) -> int:
        """From where the parameters are. Returns the number of steps."""
        most = self.objective.iterations
        with bar(title, most, "steps") as advance:
            self.parameters, steps = minimise(
                lambda parameters: self.loss(parameters, l2), self.parameters, most,
                lambda value: advance(1, f"{value:.4f} nats with the penalty"))
        return steps


def texts_of(lengths: Tensor) -> NDArray[np.int32]:
    """(P,) the number of the text of each token."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths.numpy())
