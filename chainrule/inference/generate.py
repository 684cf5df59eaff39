"""Rolling the weighted die again and again: sample a token, read it, and so on.

A seed repeats a sample, and a row does not depend on how many rows there are beside it.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.decoding import Tokens, Writing
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.sampling import Sampling, uniforms
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.text.tokenizers.tokenizer import Tokenizer

PLAIN = Sampling()
BLOCK = 16    # tokens sampled between two looks at whether every row has ended, or met a stop text


@torch.inference_mode()
def sample(
    model: LanguageModel, prompts: Sequence[Tokens], limit: int, sampling: Sampling = PLAIN, *, ends: bool = True
) -> Iterator[Tensor]:
    """Columns (B,) of at most `limit` tokens that go on from the prompts, which have no boundary of their own.

    A row that has come to the boundary stays there, and the sample is over when all have; with `ends=False` the
    boundary is a token like others.
    """
    if limit < 0:
        raise UserError(f"{limit} tokens cannot be sampled; ask for 0 or more.")
    if limit == 0 or not len(prompts):
        return
    with eval_mode(model):
        writing = Writing(model, prompts, sampling, ends)
        device = device_of(model)
        at_once = 1 if device.type == "cpu" else BLOCK      # a GPU is not asked every time whether all have ended
        luck = _luck(sampling.seed, len(prompts), at_once, device)
        uniform = next(luck)
        for first in range(0, limit, at_once):
            steps = range(first, min(first + at_once, limit))
            columns = torch.stack([writing.turn(number, limit - step) for number, step in zip(uniform, steps)])
            uniform = next(luck)                            # while a GPU is still at work
            writing.refuse_nothing()
            goes_on = (columns != BOUNDARY).any(1).tolist() if ends else [True] * len(columns)
            for column, going in zip(columns, goes_on):
                yield column
                if not going:
                    return


def _luck(seed: int, rows: int, steps: int, device: torch.device) -> Iterator[Tensor]:
    """(steps, B): the numbers of so many steps, and then those of as many more."""
    for first in count(0, steps):
        drawn = torch.stack([uniforms(seed, step, rows) for step in range(first, first + steps)])
        yield drawn.to(device, non_blocking=True)


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | Sequence[str] = "",
    limit: int = 256,
    sampling: Sampling = PLAIN,
    rows: int = 1,
) -> list[str]:
    """What follows the prompt, `rows` times; or what follows each of several prompts, all sampled together."""
    if rows < 1:
        raise UserError(f"{rows} rows cannot be sampled; ask for 1 or more.")
    prompts = [prompt] * rows if isinstance(prompt, str) else prompt
    texts = [Continuation(tokenizer, prompt, sampling.stop) for prompt in prompts]
    columns = sample(model, [text.prompt for text in texts], limit, sampling, ends=not tokenizer.lines)
    written = [""] * len(texts)
    while (block := list(islice(columns, BLOCK))) and not all(text.over for text in texts):
        for row, tokens in enumerate(torch.stack(block, 1).tolist()):
            written[row] += texts[row].add(tokens)
    return [begin + text.rest() for begin, text in zip(written, texts)]


def stream_text(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str = "", limit: int = 256, sampling: Sampling = PLAIN
) -> Iterator[str]:
    """What follows the prompt, as it comes: whole characters only, and no part of a stop text."""
    text = Continuation(tokenizer, prompt, sampling.stop)
    for column in sample(model, [text.prompt], limit, sampling, ends=not tokenizer.lines):
        if piece := text.add(column.tolist()):
            yield piece
        if text.over:
            return
    if piece := text.rest():
        yield piece


class Continuation:
    """The text of one row as its tokens come, up to its end or a stop text."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, stop: Sequence[str]):
        self.prompt: Tokens = tokenizer.encode(prompt)
        if tokenizer.lines and prompt.endswith("\n"):    # which a tokenizer takes for the end of a file
            self.prompt = np.append(self.prompt, BOUNDARY)
        self.pieces, self.stop = tokenizer.stream_decoder(), stop
        for token in self.prompt.tolist():               # what came before says whether a space comes first
            self.pieces.feed(token)
        self.space = " " if tokenizer.lines and prompt.endswith(" ") else ""    # the prompt has it already
        self.ends = not tokenizer.lines                  # is the boundary the end of the text?
        self.held = ""                                   # may be the beginning of a stop text
        self.over = False

    def add(self, tokens: Iterable[int]) -> str:
        """The text that is certain now."""
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
        """The text still held back, when nothing more comes."""
        certain = "" if self.over else self._settle(self.pieces.finish())
        certain, self.held, self.over = certain + self.held, "", True
        return certain

    def _settle(self, piece: str) -> str:
        """Adds to what is held, and lets go of all that no stop text can begin with."""
        self.held += piece
        if found := [place for text in self.stop if (place := self.held.find(text)) >= 0]:
            certain, self.held, self.over = self.held[: min(found)], "", True
            return certain
        begun = (size for text in self.stop for size in range(len(text)) if self.held.endswith(text[:size]))
        safe = len(self.held) - max(begun, default=0)
        certain, self.held = self.held[:safe], self.held[safe:]
        return certain
