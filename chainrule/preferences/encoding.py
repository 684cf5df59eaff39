"""Encoding of prompts and answers: rows of tokens whose targets are the answer's tokens alone.

    0 prompt answer end        end: the boundary, or the token by which the chat template ends a message

Prompt and answer are encoded apart, as they are when the model answers. Chats are written by the run's chat template:
the prompt with what begins the answer, the answer up to where the server would stop.

Shapes: N examples, B rows, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.preferences.records import Content, Message, texts_of
from chainrule.tasks.batching import Ids, Ragged, concatenate_rows, ragged, to_tensor
from chainrule.tasks.task import Truncate
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer


def encode_prompt(tokenizer: Tokenizer, template: ChatTemplate | None, prompt: Content) -> list[int]:
    """The tokens that are read before an answer is written; the first is the boundary."""
    if isinstance(prompt, str):
        ids = _encode_text(tokenizer, prompt)
    else:
        ids = _template(template).encode(_dicts(prompt), continues=True).tolist()
    return ids if ids[:1] == [BOUNDARY] else [BOUNDARY, *ids]


def encode_answer(
    tokenizer: Tokenizer, template: ChatTemplate | None, prompt: Content, answer: Content, end: bool = True,
    read: bool = False,
) -> list[int]:
    """The tokens of an answer, with the token that ends it; `end` False: it was cut off before its end.

    `read`: the end is read, not predicted; in imported models that is another id than the boundary.
    """
    if isinstance(prompt, str):
        return _encode_text(tokenizer, "".join(texts_of(answer))) + [BOUNDARY] * end
    template, answer = _template(template), (Message("assistant", answer),) if isinstance(answer, str) else answer
    parts = _after(list(template.parts(_dicts(prompt), True)), list(template.parts(_dicts(prompt + answer), False)))
    last = BOUNDARY
    if template.ends_answers:
        place = max(place for place, part in enumerate(parts) if isinstance(part, int))
        after, parts = np.array(parts[place]), parts[:place]
        last = int(after if read else template.as_targets(after))
    return [*tokenizer.encode_parts(parts).tolist(), *[last] * end]


def _encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Where lines are texts of their own, what came as one text stays one line."""
    return [*tokenizer.encode(" ".join(text.split("\n")) if tokenizer.lines else text).tolist()]


def _template(template: ChatTemplate | None) -> ChatTemplate:
    if template is None:
        raise UserError("these are messages of a chat, and the run has no chat template to write them with.")
    return template


def _dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [message._asdict() for message in messages]


def _after(prompt: list[str | int], whole: list[str | int]) -> list[str | int]:
    """The parts of `whole` after those of `prompt`, with which it begins."""
    for place, part in enumerate(prompt):
        if place >= len(whole):
            raise UserError(CHANGED)
        here = whole[place]
        if here == part:
            continue
        last = place == len(prompt) - 1
        if last and isinstance(here, str) and isinstance(part, str) and here.startswith(part):
            return [here[len(part) :], *whole[place + 1 :]]
        raise UserError(CHANGED)
    return whole[len(prompt) :]


CHANGED = ("the chat template does not write the prompt as it is before an answer: the whole chat does not begin with "
           "the prompt. Choose another template.")


def refuse_dropped(template: ChatTemplate, prompt: Sequence[Message], place: Place) -> None:
    """A template must write what the user said."""
    rendered = template.render(_dicts(prompt), True)
    said = next((message.content for message in reversed(prompt) if message.role == "user"), "").strip()
    if said and said not in rendered:
        raise UserError(f"{place}: the chat template drops the prompt: {said[:40]!r} is not in what it writes. "
                        "Choose another template.")


@dataclass(frozen=True)
class Rows:
    """Prompts, and an answer to each."""

    prompts: Ragged
    answers: Ragged

    @cached_property
    def whole(self) -> Ragged:
        return concatenate_rows([self.prompts, self.answers])

    @cached_property
    def lengths(self) -> Ids:
        """Of what is read: all tokens but the last."""
        return self.whole.lengths - 1

    def batch(self, rows: Ids, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T) tokens, and targets that are IGNORE in the prompt (teacher forcing); (B,) lengths."""
        both = self.whole.padded(rows, width + 1, BOUNDARY).astype(np.int64)
        place, lengths = np.arange(width), self.lengths[rows]
        counted = (place >= self.prompts.lengths[rows, None] - 1) & (place < lengths[:, None])
        targets = np.where(counted, both[:, 1:], IGNORE)
        return torch.from_numpy(both[:, :-1].copy()), torch.from_numpy(targets), to_tensor(lengths)

    def whole_batch(self, rows: Ids, width: int) -> tuple[Tensor, Tensor]:
        """(B, T) all tokens, also the last; (B,) lengths: for a model that reads whole answers."""
        return to_tensor(self.whole.padded(rows, width, BOUNDARY)), to_tensor(self.whole.lengths[rows])

    def rolled(self, limit: int | None) -> "Rows":
        """Each prompt with the answer to the one before it, cut to the limit."""
        answers = self.answers.take(np.roll(np.arange(len(self.answers)), 1))
        if limit is not None:
            answers = answers.truncated(np.minimum(answers.lengths, limit + 1 - self.prompts.lengths), ends=False)
        return Rows(self.prompts, answers)


def fit_rows(
    prompts: Sequence[list[int]], answers: Sequence[Sequence[list[int]]], limit: int | None, truncate: Truncate,
    places: Sequence[Place],
) -> tuple[list[Rows], tuple[str, ...]]:
    """Rows of prompts with each of several lists of answers, within `limit` tokens; and what was cut.

    A prompt loses its beginning after the boundary, since its end is what is answered.
    """
    longest = np.max([[len(answer) for answer in each] for each in answers], axis=0)
    sizes = np.array([len(prompt) for prompt in prompts]) + longest - 1
    notes: tuple[str, ...] = ()
    if limit is not None and sizes.max() > limit:
        worst = int(sizes.argmax())
        if truncate == "false" or longest.max() > limit:
            raise UserError(f"{places[worst]}: prompt and answer have {sizes[worst]} tokens ({len(prompts[worst])} of "
                            f"the prompt), and the model holds {limit}. {_cure(int(longest.max()), limit)}")
        room = [limit + 1 - int(size) for size in longest]
        cut = sum(len(prompt) > most for prompt, most in zip(prompts, room))
        prompts = [_shortened(prompt, most, truncate) for prompt, most in zip(prompts, room)]
        notes = (f"{cut:,} of {len(prompts):,} prompts are longer than the {limit} tokens that the model holds leave "
                 "room for: their beginning is cut",)
    return [Rows(ragged(prompts_of(prompts)), ragged(prompts_of(each))) for each in answers], notes


def _cure(longest: int, limit: int) -> str:
    if longest > limit:
        return f"The longest answer alone has {longest}. Remove such lines, or take a model with a longer context."
    return "Take text.truncate=true to keep the end of long prompts, or a model with a longer context."


def _shortened(prompt: list[int], most: int, truncate: Truncate) -> list[int]:
    """The boundary and the end of a prompt; with `ends` also its beginning."""
    if len(prompt) <= most:
        return prompt
    begin = max(1, most // 2) if truncate == "ends" else 1
    return prompt[:begin] + (prompt[begin - most :] if most > begin else [])


def prompts_of(rows: Sequence[list[int]]) -> list[NDArray[Any]]:
    return [np.asarray(row, np.int32) for row in rows]


@dataclass(frozen=True)
class PairBatch(Batch):
    """One row is a pair: the chosen answer as `tokens` and `targets`, the rejected one as `source`."""

    rejected_targets: Tensor | None = None       # (B, T)
    reference_chosen: Tensor | None = None       # (B,) log p of the answer under the reference
    reference_rejected: Tensor | None = None
    margin: Tensor | None = None                 # (B,) by how much the chosen one is better, where it is known

    def joined(self) -> Batch:
        """2B rows: the chosen answers, then the rejected ones."""
        assert self.source is not None
        assert self.rejected_targets is not None
        return join_rows(self, Batch(self.source, self.rejected_targets, self.source_lengths))


@dataclass(frozen=True)
class RatedBatch(Batch):
    """One row is an answer that was liked or not; `source` is its prompt with another's answer."""

    labels: Tensor | None = None                 # (B,) True: liked
    reference: Tensor | None = None              # (B,) log p of the answer under the reference
    mismatched_targets: Tensor | None = None     # (B, T) of `source`
    reference_mismatched: Tensor | None = None   # (B,)

    def mismatched(self) -> Batch:
        assert self.source is not None
        assert self.mismatched_targets is not None
        return Batch(self.source, self.mismatched_targets, self.source_lengths)

    def joined(self) -> Batch:
        """2B rows: the answers, then the mismatched ones."""
        return join_rows(self, self.mismatched())


def join_rows(first: Batch, second: Batch) -> Batch:
    """The rows of two batches of the same width, one after the other."""
    assert first.lengths is not None
    assert second.lengths is not None
    return Batch(torch.cat([first.tokens, second.tokens]), torch.cat([first.targets, second.targets]),
                 torch.cat([first.lengths, second.lengths]))


def counted_rows(batch: Batch) -> Tensor:
    """(B,): rows that are not there only because each rank has as many as any other."""
    return (batch.targets != IGNORE).any(1)


class EncodedAnswers:
    """What encoded pairs and encoded rated answers have in common."""

    rows: list[Rows]                             # the two answers of pairs; or the answer, and another's
    reference: NDArray[np.float32] | None        # (N, 2) log p of both under the reference

    def __len__(self) -> int:
        return len(self.rows[0].prompts)

    @property
    def sizes(self) -> tuple[Ids, ...]:
        """Both rows of an example are as wide as the longer one."""
        return (np.maximum(*(rows.lengths for rows in self.rows)),)

    @property
    def tokens(self) -> NDArray[Any]:
        return self.rows[0].whole.flat

    @property
    def target_count(self) -> int:
        return len(self)

    def references(self, rows: Ids) -> tuple[Tensor | None, Tensor | None]:
        if self.reference is None:
            return None, None
        first, second = self.reference[rows].T
        return torch.from_numpy(first.copy()), torch.from_numpy(second.copy())


@dataclass(frozen=True)
class EncodedPairs(EncodedAnswers):
    rows: list[Rows]
    margins: NDArray[np.float32] | None = None       # (N,)
    notes: tuple[str, ...] = ()
    reference: NDArray[np.float32] | None = None

    def batch(self, rows: Ids, widths: Sequence[int]) -> PairBatch:
        tokens, targets, lengths = self.rows[0].batch(rows, widths[0])
        source, rejected_targets, source_lengths = self.rows[1].batch(rows, widths[0])
        chosen, rejected = self.references(rows)
        margin = None if self.margins is None else torch.from_numpy(self.margins[rows])
        return PairBatch(tokens, targets, lengths, source=source, source_lengths=source_lengths,
                         rejected_targets=rejected_targets, reference_chosen=chosen, reference_rejected=rejected,
                         margin=margin)


@dataclass(frozen=True)
class EncodedRated(EncodedAnswers):
    rows: list[Rows]
    labels: NDArray[np.bool_]                        # (N,)
    notes: tuple[str, ...] = ()
    reference: NDArray[np.float32] | None = None

    def batch(self, rows: Ids, widths: Sequence[int]) -> RatedBatch:
        tokens, targets, lengths = self.rows[0].batch(rows, widths[0])
        source, mismatched_targets, source_lengths = self.rows[1].batch(rows, widths[0])
        own, mismatched = self.references(rows)
        return RatedBatch(tokens, targets, lengths, source=source, source_lengths=source_lengths,
                          labels=torch.from_numpy(self.labels[rows]), reference=own,
                          mismatched_targets=mismatched_targets, reference_mismatched=mismatched)
