"""The weighted die: from logits to the next token.

The cuts (`top_k`, `top_p`, `min_p`) look at the model's own probabilities, and a token must pass all of them; the
temperature then says how evenly the tokens that are left are drawn. So no dial changes the meaning of another, and at
an infinite temperature everything that is left is alike.

Shapes: B rows, V vocabulary.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule import kernels
from chainrule.errors import UserError

FACES = 256         # tokens that are summed together when a number is looked up
FIRST_LOOK = 128    # tokens that top_p looks at first; a sort of the whole vocabulary is slow


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

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON, which has no infinity: None is a temperature without end."""
        return asdict(self) | {"temperature": self.temperature if math.isfinite(self.temperature) else None}

    @property
    def cuts(self) -> bool:
        """Whether some tokens may be left out."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0


def distribution(logits: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """(B, V) -> (B, V): the probabilities of the die. `seen` is True for tokens that the text already has."""
    logits = _penalised(logits, sampling, seen)
    if sampling.temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    kept = _kept(logits, sampling)
    if sampling.temperature == math.inf:
        logits = torch.zeros_like(logits)
    elif sampling.temperature != 1:
        coldest = torch.finfo(logits.dtype).tiny
        logits = (logits - logits.amax(-1, keepdim=True)) / max(sampling.temperature, coldest)
    return (logits if kept is None else logits.masked_fill(~kept, -math.inf)).softmax(-1)


def _penalised(logits: Tensor, sampling: Sampling, seen: Tensor | None) -> Tensor:
    logits = logits.float()
    return logits if seen is None else logits - math.log(sampling.repetition_penalty) * seen


def _kept(logits: Tensor, sampling: Sampling) -> Tensor | None:
    """(B, V): True for tokens that pass every cut; None: all do."""
    if not sampling.cuts:
        return None
    probs = logits.softmax(-1)
    kept = probs >= sampling.min_p * probs.amax(-1, keepdim=True)
    if sampling.top_k is not None or sampling.top_p < 1:
        ranked, order = _ranked(probs, sampling)
        before = ranked.cumsum(-1) - ranked                   # what is likelier than a token, all together
        enough = before >= sampling.top_p if sampling.top_p < 1 else torch.zeros_like(before, dtype=torch.bool)
        kept &= torch.zeros_like(kept).scatter(-1, order, ~enough)
    return kept


def _ranked(probs: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """(B, N): the largest probabilities in order and whose they are; `top_k` of them, or enough to have `top_p`."""
    size = probs.shape[-1]
    if sampling.top_k is None and probs.is_cuda:              # whose sort is quick, and which should not be asked
        values, order = probs.sort(-1, descending=True)
        return values, order
    count = min(sampling.top_k or FIRST_LOOK, size)
    ranked = probs.topk(count)
    while sampling.top_k is None and count < size and bool((ranked.values.sum(-1) < sampling.top_p).any()):
        count = min(8 * count, size)
        ranked = probs.topk(count)
    return ranked.values, ranked.indices


def draw(probs: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """(B, V), (B,) -> (B,), (B,): the token whose share of [0, 1) holds the row's number, and whether there is one.

    Never one of probability 0. The block that holds it is found first, so that the sums of a large vocabulary are few.
    """
    blocks = pad(probs, (0, -probs.shape[-1] % FACES)).view(len(probs), -1, FACES)        # (B, N, FACES)
    mass = blocks.sum(-1, dtype=torch.float64)
    shares = mass.cumsum(-1)
    total = shares[:, -1:]
    point = _below(uniform.to(total)[:, None] * total, total)                             # (B, 1)
    block = torch.searchsorted(shares, point, right=True).clamp(max=shares.shape[-1] - 1)
    faces = blocks.take_along_dim(block[..., None], 1)[:, 0].cumsum(-1, dtype=torch.float64)
    before = shares.gather(-1, block) - mass.gather(-1, block)
    face = torch.searchsorted(faces, _below(point - before, faces[:, -1:]).clamp(min=0), right=True)
    return (block * FACES + face)[:, 0].clamp(max=probs.shape[-1] - 1), total[:, 0] > 0


def _below(points: Tensor, end: Tensor) -> Tensor:
    """Rounding may take a point to the end of the shares, or past it."""
    return torch.minimum(points, torch.nextafter(end, torch.zeros_like(end)))


def sample_token(
    logits: Tensor, sampling: Sampling, uniform: Tensor, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(B, V) -> (B,), (B,): the next token of each row, by numbers from [0, 1), and whether there is one."""
    if sampling.temperature == 0:
        logits = _penalised(logits, sampling, seen)
        token = logits.argmax(-1)
        return token, logits.gather(-1, token[:, None])[:, 0] > -math.inf    # nor is nan
    if kernels.use_in_decoding(logits) and not sampling.cuts and sampling.temperature < math.inf:
        from chainrule.kernels.draw import draw_tokens

        return draw_tokens(logits, uniform, sampling.temperature, seen, sampling.repetition_penalty)
    return draw(distribution(logits, sampling, seen), uniform)


def uniforms(seed: int, step: int, rows: int) -> Tensor:
    """A number from [0, 1) for each row. One generator a step: the first rows get theirs however many follow."""
    return torch.from_numpy(np.random.default_rng((seed, step)).random(rows))
