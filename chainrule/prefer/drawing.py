"""Drawing pairs: two different answers of a model to a prompt, repeated by a seed, and drawn ahead by the engine.

An answer ends at the boundary, at the token by which the chat template ends a turn, or at a limit of tokens. Answers
that are equal or empty are drawn again, by the next rows of the same seed: a pair is repeated by its run,
prompt, seed and sampling.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.inference.forward import device_of
from chainrule.inference.generate import has_end
from chainrule.inference.sampling import Sampling
from chainrule.prefer.prompt_file import Placed, Prompt, as_chat
from chainrule.preferences.encoding import encode_prompt
from chainrule.preferences.records import Message
from chainrule.run import RECIPE, Run, load, weights_file
from chainrule.serve.endpoints.completions import Prompt as Encoded
from chainrule.serve.endpoints.completions import continuation
from chainrule.serve.engine import Engine, Limits
from chainrule.serve.requests import Request
from chainrule.serve.service import Served, continues_text, submit_all
from chainrule.serve.streams import Row

ROWS = 8           # answers that are drawn at a time: a call of the model has always so many rows,
MOST = 16          # answers that are drawn to find two that differ


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    ended: bool      # False: it was cut at the limit of tokens


@dataclass(frozen=True)
class Pair:
    id: str
    prompt: Prompt
    answers: tuple[Answer, Answer]
    seed: int
    source: dict[str, Any]    # of the answers: the run and how they were sampled
    compares: bool = False    # whether the answers are those of the model before and after tuning

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> "Pair":
        """The pair that was clicked on."""
        one, other = map(Answer, event["answers"], event["tokens"], event["ended"])
        return cls(event["pair"], event["prompt"], (one, other), event["seed"], event["source"],
                   event.get("compares", False))


class NoPair(UserError):
    """A prompt to which no two different answers were drawn."""


class Policy:
    """A run whose answers are compared."""

    def __init__(self, run: Run, sampling: Sampling, tokens: int, plain: bool = False):
        require_policy(run)
        self.chat = run.chat_template is not None and not plain
        self.sampling, self.tokens = sampling, tokens
        engine = Engine(run.model, Limits(rows=ROWS, step_rows=ROWS))
        self.served = Served(run.path.name, run, engine, int((run.path / RECIPE).stat().st_mtime))
        self.engine, self.device = engine, device_of(run.model)

    @property
    def run(self) -> Run:
        return self.served.run

    @cached_property
    def sha256(self) -> str:
        about = self.run.about
        return str(about["files"][weights_file(about)]["sha256"])

    @property
    def source(self) -> dict[str, Any]:
        return {"run": self.served.name, "run_sha256": self.sha256, "temperature": float(self.sampling.temperature),
                "top_p": float(self.sampling.top_p), "max_tokens": self.tokens}

    def encode(self, prompt: Prompt) -> list[int]:
        """As preference tuning will read it; the first token is the boundary."""
        if isinstance(prompt, str):
            return encode_prompt(self.run.tokenizer, None, prompt)
        messages = tuple(Message(message["role"], message["content"]) for message in prompt)
        return encode_prompt(self.run.tokenizer, self.served.chat_template, messages)

    def check(self, placed: Placed) -> None:
        """Refuses a prompt that leaves no place for an answer."""
        size, context = len(self.encode(placed.prompt)), self.served.context
        if context is not None and size >= context:
            raise UserError(f"{placed.place}: the prompt has {size} tokens, with the boundary that begins it, and the "
                            f"context of {self.served.name} is {context}, which leaves none for an answer. Shorten it.")

    def form(self, prompt: Prompt) -> Prompt:
        """The prompt in the form of all prompts of this policy."""
        if self.chat:
            return as_chat(prompt)
        if not isinstance(prompt, str):
            raise UserError(f"the prompt is a list of messages, and {self.served.name} reads plain text: it has no "
                            "chat template. Give texts, or a run with a template.")
        return prompt

    async def draw_pair(self, prompt: Prompt, seed: int) -> Pair:
        kept: list[Answer] = []
        for first in range(0, MOST, 2):
            for answer in await self.answers(prompt, seed, (first, first + 1)):
                if answer.text.strip() and all(answer.text != other.text for other in kept):
                    kept.append(answer)
            if len(kept) >= 2:
                return Pair(self.pair_id(prompt, seed), prompt, (kept[0], kept[1]), seed, self.source)
        raise NoPair(f"{MOST} answers to {shown(prompt)!r} are all equal or empty, so there is no pair. Raise "
                     "--temperature or --tokens.")

    def pair_id(self, prompt: Prompt, seed: int) -> str:
        return digest([self.source, prompt, seed])

    async def answers(self, prompt: Prompt, seed: int, rows: Sequence[int]) -> list[Answer]:
        """Rows of the same seed, drawn together."""
        text = prompt if isinstance(prompt, str) else None
        ids, end = self.encode(prompt), self.served.chat_template.end_of_turn if text is None else None
        request = partial(Request, prompt=ids, max_tokens=self.tokens, sampling=replace(self.sampling, seed=seed),
                          ends=has_end(self.run.tokenizer, False))
        generations = submit_all(self.engine, (request(row=row) for row in rows))
        texts = (continuation(self.served, Encoded(ids, text), ()) for _ in rows)
        drawn = [Row(row, generation, text, end, streams=False)
                 for row, generation, text in zip(rows, generations, texts)]
        return list(await asyncio.gather(*map(read_answer, drawn)))

    def close(self) -> None:
        self.engine.close(drain=False)


async def read_answer(row: Row) -> Answer:
    text, reason = "", None
    async for piece in row.pieces():
        text += piece.text
        reason = piece.finish_reason
    return Answer(text, row.tokens_out, reason == "stop")


def load_policy(
    path: Path, sampling: Sampling, tokens: int, device: torch.device | str = "cpu", plain: bool = False
) -> Policy:
    return Policy(load(path, device), sampling, tokens, plain)


def require_policy(run: Run) -> None:
    """Refuses a run that does not continue texts."""
    if not continues_text(run):
        raise UserError(f"{run.path} is a {run.recipe.kind} of --task {run.recipe.task}, which does not continue a "
                        "text, so it has no answers to compare. Give a run of --task lm or chat.")


def seed_of(base: int, prompt: Prompt, round: int) -> int:
    """A seed of its own for each pair of a session."""
    return int(digest([base, prompt, round])[:8], 16) >> 1


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def shown(prompt: Prompt, most: int = 60) -> str:
    """The prompt in a message: its last text, shortened."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return text if len(text) <= most else f"{text[: most - 1]}…"
