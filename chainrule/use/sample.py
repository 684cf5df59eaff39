"""Rolling the weighted die again and again: sample a token, read it, and so on.

A seed repeats a sample, and a row does not depend on how many rows there are beside it.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, LanguageModel, State, join, pick
from chainrule.text.tokenizer import Tokenizer
from chainrule.use.die import Sampling, choose, numbers
from chainrule.use.reading import at_rest, on_device, read

Tokens = NDArray[np.integer]

PLAIN = Sampling()
BLOCK = 16    # tokens sampled between two looks at whether every row has met a stop text


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
    with at_rest(model):
        writing = Writing(model, prompts)
        seen = writing.seen(prompts) if sampling.repetition_penalty != 1 else None
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=writing.logits.device)
        for step in range(limit):
            column = choose(writing.logits, sampling, numbers(sampling.seed, step, len(prompts)), seen)
            if ends:
                column = column.masked_fill(ended, BOUNDARY)
                ended |= column == BOUNDARY
            yield column
            if step + 1 == limit or bool(ended.all()):
                return
            if seen is not None:
                seen.scatter_(1, column[:, None], (column != BOUNDARY)[:, None])
            writing.write(column)


class Writing:
    """Texts under way: what may follow each. Prompts are read alone and go on together.

    When a model with a context limit is full, the rows that are begin again from the last half of what they held.
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Tokens]):
        self.model = model
        texts = [np.append(BOUNDARY, prompt).astype(np.int64)[-(model.context or 0) :] for prompt in prompts]
        different = {text.tobytes(): text for text in texts}
        place = {key: index for index, key in enumerate(different)}
        answers = [read(model, on_device(model, text[None])) for text in different.values()]
        rows = torch.tensor([place[text.tobytes()] for text in texts])
        self.logits: Tensor = pick(torch.cat([logits for logits, _ in answers]), rows)    # (B, V)
        self.state: State = pick(join([state for _, state in answers]), rows)
        self.held = torch.tensor([len(text) for text in texts])                           # (B,) tokens in the state
        self.keep = max(1, (model.context or 0) // 2)
        self.recent = on_device(model, _flush_right([text[-self.keep :] for text in texts], self.keep))

    def write(self, column: Tensor) -> None:
        """Read one more token in each row."""
        if self.model.context is None:
            self.logits, self.state = self._step(column, self.state)
            return
        self.recent = torch.cat([self.recent, column[:, None]], 1)[:, 1:]
        full = self.held == self.model.context
        if full.any():
            self._begin_again(column, full)
        else:
            self.logits, self.state = self._step(column, self.state)
        self.held = torch.where(full, self.keep, self.held + 1)

    def seen(self, prompts: Sequence[Tokens]) -> Tensor:
        """(B, V): True for the tokens of each prompt. The boundary is no part of a text, so it is never seen."""
        seen = torch.zeros(self.logits.shape, dtype=torch.bool, device=self.logits.device)
        for row, prompt in zip(seen, prompts):
            row[on_device(self.model, prompt)] = True
        seen[:, BOUNDARY] = False
        return seen

    def _step(self, column: Tensor, state: State) -> tuple[Tensor, State]:
        logits, state = self.model.step(column[:, None], state)
        return logits[:, -1], state

    def _begin_again(self, column: Tensor, full: Tensor) -> None:
        again, others = full.nonzero()[:, 0], (~full).nonzero()[:, 0]
        answers = [read(self.model, pick(self.recent, again))]
        if len(others):
            answers.append(self._step(pick(column, others), pick(self.state, others)))
        order = torch.cat([again, others]).argsort()
        self.logits = pick(torch.cat([logits for logits, _ in answers]), order)
        self.state = pick(join([state for _, state in answers]), order)


def _flush_right(texts: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    rows = np.zeros((len(texts), width), np.int64)
    for row, text in zip(rows, texts):
        row[width - len(text) :] = text
    return rows


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
        self.pieces, self.stop = tokenizer.pieces(), stop
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
