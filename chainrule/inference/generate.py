"""Text generation by sampling: sample a token, feed it back, and so on; whole texts, or a stream of their characters.

A seed repeats a sample, and a row does not depend on how many other rows there are. The next-token table shows the
distribution from which the next token would be sampled.

On a GPU, blocks of steps are ordered ahead: the next block is at work while the host reads the tokens of the last.

Shapes: B rows, T steps.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.decoding import SYNC_EVERY, DecodeLoop, Tokens, prefill_prompts, sync_every
from chainrule.inference.forward import eval_mode, on_device
from chainrule.inference.sampling import (
    Sampling,
    SamplingStrategy,
    no_token_possible,
    require_possible,
    uniform_blocks,
    uniforms,
)
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.text.tokenizers.tokenizer import Tokenizer

DEFAULT = Sampling()
AHEAD = 2    # blocks of steps that a GPU has to do while the host waits for the first of them


@torch.inference_mode()
def sample(
    model: LanguageModel, prompts: Sequence[Tokens], limit: int, sampling: Sampling = DEFAULT, *, ends: bool = True
) -> Iterator[Tensor]:
    """(B,) tokens, at most `limit` times, that continue the prompts, which have no boundary of their own.

    They are on the host, wherever the model is. A row that has reached the boundary stays there, and the sample is over
    when all have; with `ends=False` the boundary is a token like any other.
    """
    if limit < 0:
        raise UserError(f"{limit} tokens cannot be sampled; ask for 0 or more.")
    if limit == 0 or not len(prompts):
        return
    with eval_mode(model):
        strategy = SamplingStrategy(sampling, ends, prompts)
        loop = DecodeLoop(model, prefill_prompts(model, prompts), strategy, strategy.settings)
        try:
            yield from draw_columns(loop, limit, sampling.seed, ends=ends)
        finally:
            loop.close()


def draw_columns(
    loop: DecodeLoop, limit: int, seed: int, *, ends: bool = True, left: int | None = None
) -> Iterator[Tensor]:
    """(B,) tokens by which the rows of a loop are continued, until all have ended, at most `limit` times.

    `left`: steps for which memory is reserved, where the loop will be used again for longer texts.
    """
    rows, device = len(loop.held), loop.values["tokens"].device
    at_once, more = sync_every(device), (left or limit) - limit
    random = uniform_blocks(lambda step: uniforms(seed, step, rows), at_once, device)
    for columns in _columns(loop, limit, more, random) if at_once == 1 else _blocks(loop, limit, more, at_once, random):
        goes_on = (columns != BOUNDARY).any(1).tolist() if ends else [True] * len(columns)
        for column, going in zip(columns.unbind(), goes_on):
            yield column
            if not going:
                return


def _columns(loop: DecodeLoop, limit: int, more: int, random: Iterator[Tensor]) -> Iterator[Tensor]:
    """(1, B) tokens of each step, on a CPU."""
    for step, uniform in zip(range(limit), random):
        columns = loop.next_tokens(uniform, limit - step + more)
        require_possible(loop)
        yield columns


def _blocks(loop: DecodeLoop, limit: int, more: int, at_once: int, random: Iterator[Tensor]) -> Iterator[Tensor]:
    """(T, B) tokens of a few steps at a time. What a GPU has drawn in advance may be thrown away."""
    drawn: deque[DrawnBlock] = deque()
    first = 0
    while first < limit or drawn:
        # without a graph, steps in advance would cost the host as much time as all others
        while first < limit and len(drawn) < (AHEAD if loop.replaying else 1):
            drawn.append(DrawnBlock(loop.next_tokens(next(random)[: limit - first], limit - first + more), loop))
            first += at_once
        yield drawn.popleft().wait()


class DrawnBlock:
    """(T, B) tokens on their way from the device to the host, and whether each row could be sampled so far."""

    def __init__(self, columns: Tensor, loop: DecodeLoop):
        self.loop = loop
        both = torch.cat([columns, loop.values["possible"].to(columns)[None]])    # (T + 1, B)
        self.both = both.to("cpu", non_blocking=True)                              # from a GPU: into pinned memory
        self.arrived: torch.cuda.Event | None = None
        if both.is_cuda:
            self.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.arrived.record(torch.cuda.current_stream(both.device))

    def wait(self) -> Tensor:
        if self.arrived is not None:
            self.arrived.synchronize()
        if not self.both[-1].all():
            raise no_token_possible(self.loop)
        return self.both[:-1].clone()    # pinned memory is scarce


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | Sequence[str] = "",
    limit: int = 256,
    sampling: Sampling = DEFAULT,
    rows: int = 1,
    past_end: bool = False,
) -> list[str]:
    """What follows the prompt, `rows` times; or what follows each of several prompts, all sampled together.

    A text ends at the boundary, which for words is the end of a line, `</s>`; `past_end`: the next text follows.
    """
    if rows < 1:
        raise UserError(f"{rows} rows cannot be sampled; ask for 1 or more.")
    prompts = [prompt] * rows if isinstance(prompt, str) else prompt
    texts = [Continuation(tokenizer, prompt, sampling.stop, past_end) for prompt in prompts]
    columns = sample(model, [text.prompt for text in texts], limit, sampling, ends=has_end(tokenizer, past_end))
    written = [""] * len(texts)
    while (block := list(islice(columns, SYNC_EVERY))) and not all(text.over for text in texts):
        for row, tokens in enumerate(torch.stack(block, 1).tolist()):
            written[row] += texts[row].add(tokens)
    return [begin + text.rest() for begin, text in zip(written, texts)]


def stream_text(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str = "", limit: int = 256, sampling: Sampling = DEFAULT,
    past_end: bool = False,
) -> Iterator[str]:
    """What follows the prompt, piece by piece: whole characters only, and no part of a stop text."""
    text = Continuation(tokenizer, prompt, sampling.stop, past_end)
    for column in sample(model, [text.prompt], limit, sampling, ends=has_end(tokenizer, past_end)):
        if piece := text.add(column.tolist()):
            yield piece
        if text.over:
            return
    if piece := text.rest():
        yield piece


def has_end(tokenizer: Tokenizer, past_end: bool) -> bool:
    """Whether the boundary ends a sample."""
    return tokenizer.boundary != "none" and not past_end


class Continuation:
    """The text of one row, token by token, up to its end or a stop text."""

    def __init__(self, tokenizer: Tokenizer, prompt: str | Tokens, stop: Sequence[str], past_end: bool = False):
        self.prompt: Tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self.space = ""
        if isinstance(prompt, str) and tokenizer.lines:
            if prompt.endswith("\n"):                    # a tokenizer drops it at the end of a file
                self.prompt = np.append(self.prompt, BOUNDARY)
            self.space = " " * prompt.endswith(" ")      # the prompt has it already
        self.pieces, self.stop = tokenizer.stream_decoder(), stop
        for token in self.prompt.tolist():               # it decides whether a space comes first
            self.pieces.feed(token)
        self.ends = has_end(tokenizer, past_end)         # is the boundary the end of the text?
        self.documents = tokenizer.boundary == "document"
        self.held = ""                                   # text that may begin a stop text
        self.over = False

    def add(self, tokens: Iterable[int]) -> str:
        """Adds tokens, and returns the text that is certain now."""
        certain = ""
        for token in tokens:
            if self.over:
                break
            if token == BOUNDARY and self.ends:
                certain += self.rest()
                break
            piece = "\n" if token == BOUNDARY and self.documents else self.pieces.feed(token)
            certain += self._settle(piece.removeprefix(self.space))
            self.space = ""
        return certain

    def rest(self) -> str:
        """The text still held back, when no more tokens come."""
        certain = "" if self.over else self._settle(self.pieces.finish())
        certain, self.held, self.over = certain + self.held, "", True
        return certain

    def _settle(self, piece: str) -> str:
        """Adds to the text held back, and returns the part that cannot begin a stop text."""
        self.held += piece
        if found := [place for text in self.stop if (place := self.held.find(text)) >= 0]:
            certain, self.held, self.over = self.held[: min(found)], "", True
            return certain
        begun = (size for text in self.stop for size in range(len(text)) if self.held.endswith(text[:size]))
        safe = len(self.held) - max(begun, default=0)
        certain, self.held = self.held[:safe], self.held[safe:]
        return certain


# The next-token table: p(w | context) of the most probable tokens. An n-gram estimated by maximum likelihood has
# p(w | h) = c(hw) / c(h·), and these counts are in the table too.

EQUAL = 1e-5    # relative: probabilities are stored as float32 logarithms


@dataclass(frozen=True)
class NextToken:
    token: str                  # as it is shown
    p: float
    counts: tuple[int, int] | None = None    # c(hw) and c(h·), where p is their ratio

    def as_dict(self) -> dict[str, Any]:
        return {"token": self.token, "p": self.p, **({} if self.counts is None else {"counts": list(self.counts)})}


@torch.inference_mode()
def next_tokens(model: LanguageModel, tokenizer: Tokenizer, prompt: str = "", top: int = 10) -> list[NextToken]:
    """The `top` most probable tokens after the prompt; those with probability 0 are left out."""
    if top < 1:
        raise UserError(f"a table of {top} tokens cannot be made; ask for 1 or more.")
    read = Continuation(tokenizer, prompt, ()).prompt
    with eval_mode(model):
        log_probs = prefill_prompts(model, [read]).logits[0].double().log_softmax(-1)
    if log_probs.isnan().any():
        raise UserError(f"the model gives {prompt!r} probability 0, so no token can follow it.")
    best, ids = (-log_probs).sort(stable=True)
    tokens = [(id, p) for id, p in zip(ids[:top].tolist(), (-best[:top]).exp().tolist()) if p > 0]
    if hasattr(model, "backoff"):
        return [NextToken(tokenizer.show(id), p, _counts(model, read, id, p)) for id, p in tokens]
    return [NextToken(tokenizer.show(id), p) for id, p in tokens]


def _counts(model: Any, read: Tokens, id: int, p: float) -> tuple[int, int] | None:
    """The counts of the longest context that was seen in training, if p is exactly their ratio."""
    text = on_device(model, np.array([BOUNDARY, *read, id]))
    seen = [step.counts for step in model.backoff(text) if step.counts is not None and int(step.counts.total[-1]) > 0]
    if not seen:
        return None
    ngram, total = int(seen[-1].ngram[-1]), int(seen[-1].total[-1])
    return (ngram, total) if abs(ngram / total - p) < EQUAL * p else None
