"""The weighted die: from logits to the next token.

The cuts (`top_k`, `top_p`, `min_p`) look at the model's own probabilities, and a token must pass all of them; the
temperature then says how evenly the tokens that are left are drawn. So no dial changes the meaning of another, and at
an infinite temperature everything that is left is alike.

Shapes: B rows, V vocabulary.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0          # 0: the likeliest token always; inf: every token alike
    top_k: int | None = None          # draw from the k likeliest tokens only; None: from all
    top_p: float = 1.0                # draw from the fewest tokens that together have this probability
    min_p: float = 0.0                # draw from tokens at least this many times as likely as the likeliest
    repetition_penalty: float = 1.0   # a token that the text already has is this many times less likely
    stop: tuple[str, ...] = ()        # texts that end a sample and are not part of it
    seed: int = 1                     # the same seed gives the same sample

    def __post_init__(self) -> None:
        wanted = {
            "temperature": (self.temperature >= 0, "0 (always the likeliest token) or more, up to inf"),
            "top_k": (self.top_k is None or self.top_k >= 1, "1 or more; leave it out to draw from all tokens"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1, which draws from all tokens"),
            "min_p": (0 <= self.min_p <= 1, "from 0, which draws from all tokens, to 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0; 1 is no penalty"),
            "stop": (all(self.stop), "texts of at least one character"),
            "seed": (self.seed >= 0, "0 or more"),
        }
        for name, (met, want) in wanted.items():
            if not met:
                raise UserError(f"{name}={getattr(self, name)} will not do: it must be {want}.")


def distribution(logits: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """(B, V) -> (B, V): the probabilities of the die. `seen` is True for tokens that the text already has."""
    logits = logits.float()
    if seen is not None:
        logits = logits - math.log(sampling.repetition_penalty) * seen
    if sampling.temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits - logits.amax(-1, keepdim=True)
    temperature = max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    flat = torch.zeros_like(logits) if temperature == math.inf else logits / temperature
    return flat.masked_fill(_cut(logits, sampling), -math.inf).softmax(-1)


def _cut(logits: Tensor, sampling: Sampling) -> Tensor:
    """True for tokens out of the game. In order of probability each dial keeps the first few; the fewest stay."""
    if sampling.top_k is None and sampling.top_p == 1 and sampling.min_p == 0:
        return torch.zeros_like(logits, dtype=torch.bool)
    probs, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    keep = probs >= sampling.min_p * probs[:, :1]
    if sampling.top_p < 1:
        keep &= probs.cumsum(-1) - probs < sampling.top_p    # whoever is needed to get there stays
    if sampling.top_k is not None:
        keep[:, sampling.top_k :] = False
    return torch.ones_like(keep).scatter(-1, order, ~keep)


def roll(probs: Tensor, uniform: Tensor) -> Tensor:
    """(B, V), (B,) -> (B,): the token whose share of [0, 1) holds the row's number. Never one of probability 0."""
    shares = probs.double().cumsum(-1)
    total = shares[:, -1]
    if not bool((total > 0).all()):
        raise UserError("the model gives no token a probability here, so none can be drawn. Train it with smoothing.")
    point = torch.minimum(uniform.to(total) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(shares, point[:, None], right=True)[:, 0]


def choose(logits: Tensor, sampling: Sampling, uniform: Tensor, seen: Tensor | None = None) -> Tensor:
    """(B, V) -> (B,): the next token of each row, by numbers from [0, 1)."""
    return roll(distribution(logits, sampling, seen), uniform)


def numbers(seed: int, step: int, rows: int) -> Tensor:
    """A number from [0, 1) for each row. One generator a step: the first rows get theirs however many follow."""
    return torch.from_numpy(np.random.default_rng((seed, step)).random(rows))
