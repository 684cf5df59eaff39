"""Sampling: from logits to a random next token, with temperature, top-k, nucleus (top-p), min-p, repetition penalty.

    p = softmax(logits / temperature)   over the tokens that top_k, top_p and min_p leave

The cuts use the model's own probabilities, at temperature 1, and a token must pass all of them; the temperature then
shapes what is left. So no setting changes the meaning of another. Temperature 0 is greedy decoding.

Shapes: B rows, T steps, V vocabulary, N blocks.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule import kernels
from chainrule.device import Switch
from chainrule.errors import UserError
from chainrule.inference.captured.captured_step import Block
from chainrule.inference.decoding import DecodeLoop, Tokens, Values
from chainrule.inference.evaluate import why_no_answer
from chainrule.model import BOUNDARY
from chainrule.progress import say

BLOCK = 256          # tokens whose probabilities are summed together when a random number is looked up
TOP_P_FIRST = 128    # tokens that top_p sorts at first; a sort of the whole vocabulary is slow

_in_place = Switch()    # whether steps of a CUDA graph may be drawn by one kernel
_in_place.on = True


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0          # 0: always the most likely token (greedy); inf: all tokens equally likely
    top_k: int | None = None          # sample from the k most likely tokens only; None: from all
    top_p: float = 1.0                # nucleus: sample from the fewest tokens that together have this probability
    min_p: float = 0.0                # sample from tokens with at least this share of the highest probability
    repetition_penalty: float = 1.0   # tokens that the text already has are this many times less likely
    stop: str | tuple[str, ...] = ()  # a text, or several, that ends a sample and is not part of it
    seed: int = 1                     # the same seed gives the same sample

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        wanted = {
            "temperature": (self.temperature >= 0, "0 (always the most likely token) or more, up to inf"),
            "top_k": (self.top_k is None or self.top_k >= 1, "1 or more; leave it out to sample from all tokens"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1, which samples from all tokens"),
            "min_p": (0 <= self.min_p <= 1, "from 0, which samples from all tokens, to 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0; 1 is no penalty"),
            "stop": (all(self.stop), "texts of at least one character"),
            "seed": (self.seed >= 0, "0 or more"),
        }
        for name, (met, want) in wanted.items():
            if not met:
                raise UserError(f"{name}={getattr(self, name)} is not valid: it must be {want}.")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON, which has no infinity: there None is an infinite temperature."""
        return asdict(self) | {"temperature": self.temperature if math.isfinite(self.temperature) else None}

    @property
    def cuts(self) -> bool:
        """Whether some tokens may be left out."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0


class SamplingStrategy:
    """Random next tokens, by one uniform number for each row and step. `ends`: the boundary ends a row, and so does the
    token `end_of_turn`, if there is one; a row that has ended repeats the boundary."""

    reorders = False

    def __init__(
        self, sampling: Sampling, ends: bool, prompts: Sequence[Tokens] = (), end_of_turn: int | None = None
    ):
        self.sampling, self.ends, self.prompts, self.end_of_turn = sampling, ends, prompts, end_of_turn

    @property
    def settings(self) -> Hashable:
        """All that `choose` depends on, beside its arguments."""
        return type(self), replace(self.sampling, stop=(), seed=0), self.ends, self.end_of_turn

    def begin(self, logits: Tensor) -> Values:
        no = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
        values: Values = {"ended": no, "possible": ~no, "tokens": no.long()}
        if self.sampling.repetition_penalty != 1:
            values["seen"] = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
            for row, prompt in zip(values["seen"], self.prompts):
                row[torch.from_numpy(np.asarray(prompt, np.int64)).to(row.device)] = True
            values["seen"][:, BOUNDARY] = False            # it is no part of a text
        return values

    def choose(self, logits: Tensor, values: Values, inputs: Tensor) -> Values:
        """`inputs` (B,): uniform numbers from [0, 1)."""
        tokens, possible = sample_token(logits, self.sampling, inputs, values.get("seen"))
        ended = values["ended"]
        if self.ends:
            tokens = tokens.masked_fill(ended, BOUNDARY)
            ended = ended | (tokens == BOUNDARY)
            if self.end_of_turn is not None:
                ended = ended | (tokens == self.end_of_turn)
        after = {"ended": ended, "possible": values["possible"] & possible, "tokens": tokens}
        if "seen" in values:
            after["seen"] = values["seen"].scatter(1, tokens[:, None], (tokens != BOUNDARY)[:, None])
        return after

    def choose_in_place(self, logits: Tensor, values: Values, block: Block) -> bool:
        same = type(self).choose is SamplingStrategy.choose and "seen" not in values
        if not (_in_place.on and same and _draws_by_kernel(logits, self.sampling)):
            return False
        from chainrule.kernels.draw import draw_in_place

        ended = values["ended"] if self.ends else None
        places = block.numbers, block.place, block.columns, values["tokens"], values["possible"]
        try:
            draw_in_place(logits, *places, ended, self.end_of_turn, self.sampling.temperature)
        except Exception as error:                         # of Triton's compiler, whose errors have no common class
            say(f"tokens are drawn by separate kernels, since the one for all of it failed: {error!r}")
            _in_place.on = False
            block.place.fill_(-1)                          # only the first step of a block is run outside of a graph
            return False
        return True


def require_possible(loop: DecodeLoop) -> None:
    """Refuses logits that give no token a probability. Waits for the device."""
    if not loop.values["possible"].all():
        raise no_token_possible(loop)


def no_token_possible(loop: DecodeLoop) -> UserError:
    impossible = "the model gives no token a probability here, so none can be sampled"
    return UserError(f"{why_no_answer(loop.model, impossible)}.")


def sample_token(
    logits: Tensor, sampling: Sampling, uniform: Tensor, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(B, V) -> (B,), (B,): the next token of each row, by numbers from [0, 1), and whether there is one."""
    if sampling.temperature == 0:
        logits = _penalised(logits, sampling, seen)
        token = logits.argmax(-1)
        return token, logits.gather(-1, token[:, None])[:, 0] > -math.inf    # False for nan too
    if _draws_by_kernel(logits, sampling):
        from chainrule.kernels.draw import draw_tokens

        return draw_tokens(logits, uniform, sampling.temperature, seen, sampling.repetition_penalty)
    return draw(distribution(logits, sampling, seen), uniform)


def _draws_by_kernel(logits: Tensor, sampling: Sampling) -> bool:
    return kernels.use_in_decoding(logits) and not sampling.cuts and 0 < sampling.temperature < math.inf


def distribution(logits: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """(B, V) -> (B, V): the probabilities to sample from. `seen` is True for tokens that the text already has."""
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
        ranked, order = _most_likely(probs, sampling)
        before = ranked.cumsum(-1) - ranked                   # the probability of all tokens that are more likely
        least = max(sampling.top_p, torch.finfo(before.dtype).tiny)    # as 0 it would leave no token at all
        enough = before >= least if sampling.top_p < 1 else torch.zeros_like(before, dtype=torch.bool)
        kept &= torch.zeros_like(kept).scatter(-1, order, ~enough)
    return kept


def _most_likely(probs: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """(B, N): the highest probabilities in order, and their tokens; `top_k` of them, or enough to have `top_p`."""
    size = probs.shape[-1]
    if sampling.top_k is None and probs.is_cuda:              # its sort is fast, and the host should not wait for it
        values, order = probs.sort(-1, descending=True)
        return values, order
    count = min(sampling.top_k or TOP_P_FIRST, size)
    ranked = probs.topk(count)
    while sampling.top_k is None and count < size and bool((ranked.values.sum(-1) < sampling.top_p).any()):
        count = min(8 * count, size)
        ranked = probs.topk(count)
    return ranked.values, ranked.indices


def draw(probs: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """(B, V), (B,) -> (B,), (B,): by inverse transform sampling, the token whose interval of the cumulative
    distribution contains the row's number, and whether there is one.

    Never a token of probability 0. The block of tokens is found first, so that the sums of a large vocabulary are few.
    """
    vocab, missing = probs.shape[-1], -probs.shape[-1] % BLOCK
    probs = pad(probs, (0, missing)) if missing else probs
    blocks = probs.view(len(probs), -1, BLOCK)                                            # (B, N, BLOCK)
    mass = blocks.sum(-1, dtype=torch.float64)
    shares = mass.cumsum(-1)
    total = shares[:, -1:]
    point = _below(uniform.to(total)[:, None] * total, total)                             # (B, 1)
    block = torch.searchsorted(shares, point, right=True).clamp(max=shares.shape[-1] - 1)
    inside = blocks.take_along_dim(block[..., None], 1)[:, 0].cumsum(-1, dtype=torch.float64)
    before = shares.gather(-1, block) - mass.gather(-1, block)
    place = torch.searchsorted(inside, _below(point - before, inside[:, -1:]).clamp(min=0), right=True)
    return (block * BLOCK + place)[:, 0].clamp(max=vocab - 1), total[:, 0] > 0


def _below(points: Tensor, end: Tensor) -> Tensor:
    """Rounding may move a point to the end of the cumulative distribution, or past it."""
    return torch.minimum(points, torch.nextafter(end, torch.zeros_like(end)))


def uniforms(seed: int, step: int, rows: int) -> Tensor:
    """(B,): a number from [0, 1) for each row. With one generator a step, those of the first rows do not depend on
    how many rows follow."""
    return torch.from_numpy(np.random.default_rng((seed, step)).random(rows))


def uniform_blocks(of_step: Callable[[int], Tensor], steps: int, device: torch.device) -> Iterator[Tensor]:
    """(T, B): the random numbers of the first `steps` steps, then those of as many more, and so on."""
    for first in count(0, steps):
        numbers = torch.stack([of_step(step) for step in range(first, first + steps)])
        # from memory that is not pinned, a copy may wait for all that the GPU still has to do
        yield (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)
