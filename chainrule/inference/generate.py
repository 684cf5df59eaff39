"""Text generation by sampling: sample a token, feed it back, and so on; whole texts, or a stream of their characters.

A seed repeats a sample, and a row does not depend on how many other rows there are.

Shapes: B rows, T steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.decoding import SYNC_EVERY, DecodeLoop, Tokens, prefill_prompts, sync_every
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.sampling import Sampling, SamplingStrategy, require_possible, uniform_blocks, uniforms
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.text.tokenizers.tokenizer import Tokenizer

DEFAULT = Sampling()


@torch.inference_mode()
def sample(
    model: LanguageModel, prompts: Sequence[Tokens], limit: int, sampling: Sampling = DEFAULT, *, ends: bool = True
) -> Iterator[Tensor]:
    """(B,) tokens, at most `limit` times, that continue the prompts, which have no boundary of their own.

    A row that has reached the boundary stays there, and the sample is over when all have; with `ends=False` the
    boundary is a token like any other.
    """
    if limit < 0:
        raise UserError(f"{limit} tokens cannot be sampled; ask for 0 or more.")
    if limit == 0 or not len(prompts):
        return
    with eval_mode(model):
        loop = DecodeLoop(model, prefill_prompts(model, prompts), SamplingStrategy(sampling, ends, prompts))
        device = device_of(model)
        at_once = sync_every(device)
        random = uniform_blocks(lambda step: uniforms(sampling.seed, step, len(prompts)), at_once, device)
        uniform = next(random)
        for first in range(0, limit, at_once):
            columns = loop.next_tokens(uniform[: limit - first], limit - first)
            uniform = next(random)                          # while a GPU is still at work
            require_possible(loop)
            goes_on = (columns != BOUNDARY).any(1).tolist() if ends else [True] * len(columns)
            for column, going in zip(columns, goes_on):
                yield column
                if not going:
                    return


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | Sequence[str] = "",
    limit: int = 256,
    sampling: Sampling = DEFAULT,
    rows: int = 1,
) -> list[str]:
    """What follows the prompt, `rows` times; or what follows each of several prompts, all sampled together."""
    if rows < 1:
        raise UserError(f"{rows} rows cannot be sampled; ask for 1 or more.")
    prompts = [prompt] * rows if isinstance(prompt, str) else prompt
    texts = [Continuation(tokenizer, prompt, sampling.stop) for prompt in prompts]
    columns = sample(model, [text.prompt for text in texts], limit, sampling, ends=not tokenizer.lines)
    written = [""] * len(texts)
    while (block := list(islice(columns, SYNC_EVERY))) and not all(text.over for text in texts):
        for row, tokens in enumerate(torch.stack(block, 1).tolist()):
            written[row] += texts[row].add(tokens)
    return [begin + text.rest() for begin, text in zip(written, texts)]


def stream_text(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str = "", limit: int = 256, sampling: Sampling = DEFAULT
) -> Iterator[str]:
    """What follows the prompt, piece by piece: whole characters only, and no part of a stop text."""
    text = Continuation(tokenizer, prompt, sampling.stop)
    for column in sample(model, [text.prompt], limit, sampling, ends=not tokenizer.lines):
        if piece := text.add(column.tolist()):
            yield piece
        if text.over:
            return
    if piece := text.rest():
        yield piece


class Continuation:
    """The text of one row, token by token, up to its end or a stop text."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, stop: Sequence[str]):
        self.prompt: Tokens = tokenizer.encode(prompt)
        if tokenizer.lines and prompt.endswith("\n"):    # a tokenizer drops it at the end of a file
            self.prompt = np.append(self.prompt, BOUNDARY)
        self.pieces, self.stop = tokenizer.stream_decoder(), stop
        for token in self.prompt.tolist():               # it decides whether a space comes first
            self.pieces.feed(token)
        self.space = " " if tokenizer.lines and prompt.endswith(" ") else ""    # the prompt has it already
        self.ends = not tokenizer.lines                  # is the boundary the end of the text?
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
            piece = self.pieces.feed(token)
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
