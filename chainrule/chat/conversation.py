"""A conversation with a model: its messages, and the KV cache, which is kept from turn to turn.

The messages become tokens by the run's chat template. The model reads only those tokens that its state does not hold
yet. Before each answer the state is copied, so that another answer can be drawn, or the last turn undone, without
reading the whole conversation again: what is read next begins at the longest copy that is its beginning.

Shapes: V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.decoding import DecodeLoop, Prefilled
from chainrule.inference.forward import eval_mode, on_device, prefill
from chainrule.inference.generate import Continuation, draw_columns, has_end
from chainrule.inference.sampling import Sampling, SamplingStrategy
from chainrule.model import BOUNDARY, LanguageModel, State, pick
from chainrule.run import Run, make_template
from chainrule.text.chat_template import PLAIN, ChatTemplate

COPIES = 8               # states that are kept, the last ones
ANSWER = 0.25            # share of the context that must be left for an answer, or earlier turns are dropped
TOKENS = 512             # of an answer at most, where it is not said

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """A text that was read: its tokens, the state after them, and the logits of the next."""

    tokens: Ids
    state: State
    logits: Tensor | None                 # (1, V); None: it was sampled, so the state must read on

    def copy(self) -> "Reading":
        return replace(self, state=pick(self.state, torch.zeros(1, dtype=torch.long)))

    def begins(self, tokens: Ids) -> bool:
        enough = len(self.tokens) < len(tokens) or (len(self.tokens) == len(tokens) and self.logits is not None)
        return enough and bool((tokens[: len(self.tokens)] == self.tokens).all())


class TurnCache:
    """The states of the texts that were read last, from which a text that begins like one of them goes on."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.readings: list[Reading] = []
        self.read_count = 0               # tokens that the model has read, those that it wrote excepted

    def read(self, tokens: Ids) -> Reading:
        """Reads a text, or as much of it as is new. The copy that is kept is not used up."""
        known = max((one for one in self.readings if one.begins(tokens)), key=lambda one: len(one.tokens), default=None)
        if known is not None and len(known.tokens) == len(tokens):
            self._keep(known)
            return known.copy()
        held = 0 if known is None else len(known.tokens)
        state = None if known is None else known.copy().state
        logits, state = prefill(self.model, on_device(self.model, tokens[None, held:]), state)
        self.read_count += len(tokens) - held
        made = Reading(tokens, state, logits)
        self._keep(made)
        return made.copy()

    def wrote(self, tokens: Ids, state: State) -> None:
        """A text that the model has written itself, all but its last token."""
        self._keep(Reading(tokens, state, None))

    def _keep(self, reading: Reading) -> None:
        others = [one for one in self.readings if one is not reading]
        self.readings = [*others, reading][-COPIES:]


@dataclass
class Answer:
    """An answer while it is drawn, and how it ended."""

    text: str = ""
    tokens: int = 0
    finish: str = "stop"                  # or: length (of the answer), context (it is full), interrupted
    dropped: int = 0                      # messages at the beginning that the model did not read


def trimmed(pieces: Iterator[str]) -> Iterator[str]:
    """A stream of text without the white space at its two ends, which is the template's."""
    begun, space = False, ""
    for piece in pieces:
        piece = space + piece if begun else piece.lstrip()
        certain = piece.rstrip()
        space = piece[len(certain) :]
        if certain:
            begun = True
            yield certain


class Conversation:
    def __init__(
        self, run: Run, sampling: Sampling | None = None, *, template: str | None = None, system: str = "",
        tokens: int = TOKENS,
    ):
        """`template`: Jinja in the place of the run's; `system`: the message before all others; `tokens`: of an answer
        at most."""
        self.run, self.model, self.limit = run, run.language_model, tokens
        if tokens < 1:
            raise UserError(f"{tokens} tokens are no answer; ask for 1 or more.")
        source = template or run.chat_template
        self.plain = source is None       # the run has no template, and none was given
        self.template: ChatTemplate = make_template(source or PLAIN, run.tokenizer, run.about)
        self.sampling = sampling or Sampling()
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self.cache = TurnCache(self.model)
        self.draws = 0                    # answers drawn so far to the last message: each has a seed of its own
        self.last = Answer()

    # The messages

    def say(self, text: str) -> Iterator[str]:
        """The user's next message: streams the answer."""
        self.prompt_of([*self.messages, {"role": "user", "content": text}])    # refused before it is kept
        self.messages.append({"role": "user", "content": text})
        self.draws = 0
        return self.answer()

    def again(self) -> Iterator[str]:
        """Another answer in the place of the last."""
        if not self.exchanges:
            raise UserError("there is no answer yet to draw again.")
        if self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        return self.answer()

    def undo(self) -> str:
        """Takes back the last message of the user and its answer; returns that message."""
        if not self.exchanges:
            raise UserError("there is nothing to undo.")
        while (message := self.messages.pop())["role"] != "user":
            pass
        return message["content"]

    def reset(self, system: str | None = None) -> None:
        """Begins again, with the same system message or another."""
        first = [message for message in self.messages if message["role"] == "system"]
        self.messages = first if system is None else [{"role": "system", "content": system}] if system else []

    @property
    def exchanges(self) -> int:
        return sum(message["role"] == "user" for message in self.messages)

    # The answer

    def prompt_of(self, messages: Sequence[dict[str, str]]) -> tuple[Ids, int]:
        """The tokens of a chat that asks for an answer, and how many of its messages were dropped to fit the context.

        The system message stays; the oldest turns are dropped, until a share of the context is left for the answer.
        """
        system = [message for message in messages[:1] if message["role"] == "system"]
        turns, context = list(messages[len(system) :]), self.model.context
        begins = [number for number, message in enumerate(turns) if message["role"] == "user"] or [0]
        for first in begins:
            ids = self.template.encode([*system, *turns[first:]]).astype(np.int64)
            ids = ids if len(ids) and ids[0] == BOUNDARY else np.append(BOUNDARY, ids)
            if context is None or len(ids) <= context * (1 - ANSWER):
                return ids, first
        if context is not None and len(ids) >= context:
            raise UserError(f"the message has {len(ids)} tokens with its template, and the model holds {context}. "
                            "Say it in fewer words.")
        return ids, begins[-1]

    def answer(self) -> Iterator[str]:
        """Draws an answer to the messages, piece by piece; when it ends, or is closed, it is the last message.

        Closing the stream keeps what was drawn so far.
        """
        prompt, dropped = self.prompt_of(self.messages)
        self.last = answer = Answer(dropped=dropped)
        try:
            for piece in trimmed(self._draw(prompt, answer)):
                answer.text += piece
                yield piece
        except GeneratorExit:
            answer.finish = "interrupted"
            raise
        except KeyboardInterrupt:
            answer.finish = "interrupted"
        finally:
            self.draws += 1
            self.messages.append({"role": "assistant", "content": answer.text.strip()})

    @torch.inference_mode()
    def _draw(self, prompt: Ids, answer: Answer) -> Iterator[str]:
        tokenizer, template = self.run.tokenizer, self.template
        sampling = replace(self.sampling, seed=self.sampling.seed + self.draws)
        stop = (*sampling.stop, *([template.next_turn] if template.next_turn else []))
        text, ends = Continuation(tokenizer, prompt[1:], stop), has_end(tokenizer, False)
        left = None if self.model.context is None else self.model.context - len(prompt)
        limit = self.limit if left is None else min(self.limit, left)
        answer.finish = "length" if limit == self.limit else "context"
        drawn: list[int] = []
        with eval_mode(self.model):
            reading = self.cache.read(prompt)
            assert reading.logits is not None
            prefilled = Prefilled(reading.logits, reading.state, np.array([len(prompt)]), self.model.context)
            loop = DecodeLoop(self.model, prefilled, SamplingStrategy(sampling, ends, [prompt[1:]]))
            for column in draw_columns(loop, limit, sampling.seed, ends=ends):
                drawn.append(token := int(column[0]))
                answer.tokens += 1
                if token == template.end_of_turn:
                    answer.finish = "stop"
                    break
                piece = text.add([token])
                if piece:
                    yield piece
                if text.over:
                    answer.finish = "stop"
                    break
            if rest := text.rest():
                yield rest
            if int(loop.held[0]) == len(prompt) + len(drawn) - 1:    # a GPU may have gone on
                self.cache.wrote(np.append(prompt, drawn[:-1]), loop.values["state"])
