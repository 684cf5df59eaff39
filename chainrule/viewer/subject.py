"""A subject: a model that is viewed, under its name on the page, and how it reads a text, a source or a prompt.

A model that writes from a source reads `source ⇥ text`, with a tab between; where the source has two parts, as a
question and its context, a tab is between these too. A classifier that has a language model for each class stands for
several subjects, one for each (`of_classes`).

Shapes: T tokens including the boundary, S source tokens including their end, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.forward import device_of, eval_mode, on_device
from chainrule.model import BOUNDARY, LanguageModel, State, taps, watch
from chainrule.run import Run
from chainrule.tasks import find_task
from chainrule.tasks.classify import DELIMITER
from chainrule.tasks.task import Task

T = TypeVar("T")
UNITS = ("characters", "symbols", "bytes", "words")    # tokens that have a name; others are pieces of words

TAB = "\t"          # between a source and the text that is written from it
ANSWER = 128        # tokens that a model writes from a source by itself, at most
FRAMES = 4          # vectors of a blank source, where a source is no text


@dataclass(frozen=True)
class TokenizedText:
    """A text, or a source, as tokens; of a long one a part."""

    tokens: Tensor               # (1, T)
    shown: list[str]             # each token for people: white space made visible, bytes that are no text in hex
    left_out: int                # tokens that are not in it


@dataclass(frozen=True)
class Prompt:
    """A text that a model continues, and the source that it is written from, if it has one."""

    read: TokenizedText                    # the boundary and the text
    source: Tensor | None = None           # (1, S), or (1, S, F)
    given: Mapping[str, Any] | None = None    # source and text, as a page shows them in boxes of their own

    @property
    def tokens(self) -> Tensor:
        """(1, T)"""
        return self.read.tokens


@dataclass(frozen=True)
class Subject:
    name: str
    run: Run

    @property
    def model(self) -> Any:
        """Views use whatever parts a model has, once `fits` has found them; hence no narrower type."""
        return self.run.model

    @property
    def body(self) -> Any:
        """The encoder under a head, if the model has a head; else the model."""
        return getattr(self.model, "body", self.model)

    @property
    def task(self) -> Task:
        return find_task(self.run.recipe.task)

    @property
    def continues_text(self) -> bool:
        """Whether it is a language model of plain text, which can continue any text."""
        return isinstance(self.model, LanguageModel) and self.task.generates

    @property
    def encodes_text(self) -> bool:
        """Whether its body gives each token of a text a vector."""
        return hasattr(self.body, "encode") and getattr(self.run.recipe.model, "features", None) is None

    @property
    def reads_source(self) -> bool:
        """Whether it generates a text from a source that is a text."""
        return isinstance(self.model, LanguageModel) and self.task.source == "text"

    @property
    def writes_from_source(self) -> bool:
        """Whether it generates a text from a source: a text, a picture, vectors."""
        return isinstance(self.model, LanguageModel) and self.task.source is not None

    @property
    def predicts_next(self) -> bool:
        """Whether it predicts the next token of a text, with or without a source."""
        return self.continues_text or self.writes_from_source

    @property
    def tags_words(self) -> bool:
        """Whether it gives each word of a text a tag."""
        return self.task.name == "tag" and bool(self.run.labels) and self._reads_words

    @property
    def classifies(self) -> bool:
        """Whether it gives a text a class."""
        return self.task.name == "classify" and self._reads_words

    @property
    def _reads_words(self) -> bool:
        return getattr(self.run.recipe.text, "input", None) != "frames" and (
            getattr(self.run.recipe.model, "features", None) is None)

    @property
    def of_classes(self) -> "list[Subject]":
        """The language models of a classifier that has one for each class; else the subject itself, alone."""
        models = getattr(self.model, "models", None)
        if not self.classifies or models is None:
            return [self]
        recipe = replace(self.run.recipe, task="lm", head=None)
        return [Subject(f"{self.name}: {label}", replace(self.run, model=model, recipe=recipe, labels=()))
                for label, model in zip(self.run.labels, models, strict=True)]

    @property
    def unit(self) -> str:
        """What its tokens are, in the plural: characters, words, bytes, or tokens."""
        return self.run.tokenizer.unit if self.run.tokenizer.unit in UNITS else "tokens"

    @property
    def described(self) -> str:
        """Its kind and size: 'rnn with 3,075 parameters and a vocabulary of 259'."""
        size, vocab = sum(parameter.numel() for parameter in self.model.parameters()), len(self.run.tokenizer)
        about = f"{self.run.recipe.kind} with {size:,} parameters and a vocabulary of {vocab:,}"
        return about if self.task.name == "lm" else f"{about}, trained for --task {self.task.name}"

    def has(self, tap: str) -> bool:
        """Whether a tap of this name (its last part) is anywhere in the model."""
        return bool(self.taps(tap))

    def taps(self, tap: str) -> list[str]:
        """The paths of taps of this name, such as `blocks.3.attention.pattern`, from the first layer to the last."""
        return [path for path in taps(self.model) if path.rpartition(".")[2] == tap]

    def show(self, tokens: Sequence[int]) -> list[str]:
        shown = {token: self.run.tokenizer.show(token) for token in set(tokens)}    # most occur many times in a text
        return [shown[token] for token in tokens]

    def read(self, text: str, limit: int) -> TokenizedText:
        """The boundary and the end of the text: at most `limit` tokens, and no more than the model's context."""
        ids = self.run.tokenizer.encode(text)
        kept = ids[max(0, len(ids) - min(limit, self._context(limit)) + 1) :]
        return self._tokenized([BOUNDARY, *kept], len(ids) - len(kept))

    def read_source(self, text: str, limit: int) -> TokenizedText:
        """`x1 … xm 0`, as in training, of the first line of each part of the source; of a long one the beginning."""
        parts, encode = self.split_source(text)[0], self.run.tokenizer.encode
        ids = encode(parts[0]).tolist()
        for part in parts[1:]:
            ids += [self.run.tokenizer.id(DELIMITER), *encode(part).tolist()]
        kept = ids[: min(limit, self._context(limit)) - 1]
        return self._tokenized([*kept, BOUNDARY], len(ids) - len(kept))

    def split_source(self, text: str) -> tuple[list[str], str]:
        """The parts of the source, and the text after them: `source ⇥ text`. A source that is no text has no part."""
        if self.task.source != "text":
            return [], text
        count = 1 + (self.task.examples and DELIMITER in self.task.special_tokens)  # type: ignore[attr-defined]
        *parts, rest = [*text.split(TAB, count), *[""] * count][: count + 1]
        return [first_line(part) for part in parts], rest

    def read_prompt(self, text: str, limit: int, answer: bool = False) -> Prompt:
        """What a model that predicts the next token reads. `answer`: where only a source is given, the best text from
        it, as beam search finds it, is read after it."""
        if not self.writes_from_source:
            return Prompt(self.read(text, limit))
        parts, target = self.split_source(text)
        whole = min(limit, self._context(limit))
        source = self.read_source(text, whole if self.model.needs_source else whole // 2) if parts else None
        rows = self._blank_source() if source is None else source.tokens
        room = min(limit, self.model.max_tokens(rows) or limit)
        own = answer and not target.strip()
        ids = self._written(rows, room) if own else self.run.tokenizer.encode(target).tolist()
        kept = ids[max(0, len(ids) - room + 1) :]
        read = self._tokenized([BOUNDARY, *kept], len(ids) - len(kept))
        given = {"source": parts, "text": self.run.tokenizer.decode(ids) if own else target, "own": own,
                 "cut": 0 if source is None else source.left_out}
        return Prompt(read, rows, given)

    def _written(self, source: Tensor, room: int) -> list[int]:
        """The best text from a source, by beam search."""
        found = beam_search(self.model, Beam(limit=max(1, min(ANSWER, room - 1))), source=source)[0]
        return list(found.texts[0].tokens) if found.texts else []

    def _blank_source(self) -> Tensor:
        """Zeros in place of a picture or vectors, which cannot be typed."""
        settings = self.run.recipe.model
        shape = settings.picture or (FRAMES, settings.source_features)
        return torch.zeros((1, *shape), device=device_of(self.model))

    def start(self, prompt: Prompt) -> State:
        """The state before a prompt is read; of a source its encoding."""
        with torch.no_grad(), eval_mode(self.model):
            return self.model.start(1, prompt.source)

    def _context(self, limit: int) -> int:
        return getattr(self.model, "context", None) or limit

    def _tokenized(self, ids: Sequence[int], left_out: int) -> TokenizedText:
        tokens = np.array(ids, np.int64)
        return TokenizedText(on_device(self.model, tokens[None]), self.show(tokens.tolist()), left_out)

    def trace(self, tokens: Tensor, *names: str, source: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """(1, T, V) logits as the model reads (1, T) tokens, and the activations at those of the named taps that the
        tokens pass; what encodes the source is not among them."""
        with torch.no_grad(), eval_mode(self.model):
            state = self.model.start(len(tokens), source)
        return self.watched(lambda: self.model.step(tokens, state)[0], *names)

    def encoded(self, tokens: Tensor, *names: str) -> tuple[Tensor, dict[str, Tensor]]:
        """(1, T, D) as the body encodes (1, T) tokens, and the activations at the named taps."""
        return self.watched(lambda: self.body.encode(tokens), *names)

    def watched(self, act: Callable[[], T], *names: str) -> tuple[T, dict[str, Tensor]]:
        """What `act` returns, and the activations at the named taps, those of all its steps joined along T."""
        with torch.no_grad(), eval_mode(self.model), watch(self.model, *names) as seen:
            answer = act()
            return answer, {name: torch.cat(parts, 1) for name, parts in seen.items() if parts}


def first_line(text: str) -> str:
    """The first line that is not empty."""
    return next((line for line in text.splitlines() if line.strip()), "").strip()
