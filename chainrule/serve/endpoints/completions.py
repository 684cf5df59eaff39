"""POST /v1/completions: texts that continue prompts, with log-probabilities, whole or as a stream of events.

    choices are numbered prompt by prompt: n answers to the first prompt, then those to the second

With `echo` and `logprobs` every token of the prompt has its log-probability (the first has none: null), so this is also
how a text is scored. A log-probability is computed once, and `token_logprobs` and `top_logprobs` show the same number.
"""

import math
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from chainrule.inference.generate import Continuation, has_end
from chainrule.inference.sampling import Sampling
from chainrule.model import BOUNDARY
from chainrule.serve.api_errors import HEADERS, APIError
from chainrule.serve.app import require_json
from chainrule.serve.endpoints.schemas import ERRORS, Completion, CompletionBody, SamplingBody
from chainrule.serve.requests import Request as Generate
from chainrule.serve.requests import Token
from chainrule.serve.service import Served, Service, engine_of, submit_all
from chainrule.serve.streams import Piece, Row, aside, event_stream, merged, while_connected

MAX_TOKENS = 16          # as at OpenAI
LEAST = -9999.0          # in the place of -inf, which JSON has not


def add_completions(router: APIRouter, service: Service) -> None:
    @router.post("/v1/completions", dependencies=[Depends(require_json)], response_model=Completion,
                 responses=STREAMS | ERRORS)
    async def create_completion(body: CompletionBody, request: Request) -> Response:
        """Texts that continue prompts."""
        served = service.find(body.model)
        prompts = await aside(partial(prompts_of, served, body.prompt), size_of(body.prompt))
        completion = CompletionAnswer(served, body, prompts)
        rows = completion.submit(service)
        pieces = merged(rows, service, served)
        if body.stream:
            return event_stream(completion.chunks(pieces, rows), served.headers)
        answer = await while_connected(request, completion.whole(pieces, rows))
        headers = {**HEADERS, **served.headers}
        return await aside(lambda: JSONResponse(answer, headers=headers), answer["usage"]["total_tokens"])


STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"description": "with stream: true, events of the same form, and at the end data: [DONE]",
          "content": {"text/event-stream": {}}},
}


@dataclass(frozen=True)
class Prompt:
    ids: Sequence[int]
    text: str | None = None      # as it was given; None: it was given as ids


def prompts_of(served: Served, given: Any) -> list[Prompt]:
    """A text, ids, or a list of either."""
    if given is None:
        given = ""
    one = isinstance(given, str) or isinstance(given[0], int)
    return [read_prompt(served, prompt) for prompt in ([given] if one else given)]


def size_of(given: Any) -> int:
    """Characters, or ids, of all prompts."""
    return sum(map(size_of, given)) if isinstance(given, list) else len(given) if isinstance(given, str) else 1


def read_prompt(served: Served, given: str | Sequence[int]) -> Prompt:
    if isinstance(given, str):
        return Prompt(served.spelling.encode(given), given)
    return Prompt(served.spelling.known(given))


def sampling_of(body: SamplingBody) -> Sampling:
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature, top_k=body.top_k,
        top_p=1.0 if body.top_p is None else body.top_p, min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        seed=secrets.randbits(32) if body.seed is None else body.seed,
    )


def require_size(service: Service, served: Served, prompts: Sequence[Sequence[int]], n: int, max_tokens: int) -> None:
    """Refuses more than the limits allow."""
    limits, rows = service.limits, n * len(prompts)
    if rows > limits.choices:
        raise APIError(400, f"{len(prompts)} prompts with {n} answers each are {rows} texts, and one request may ask "
                            f"for {limits.choices}. Send several requests.", param="n", code="too_many_choices")
    most, longest = served.context or limits.tokens, max(map(tokens_read, prompts))
    if longest + max_tokens - 1 > most:      # the last token is answered and not read
        raise APIError(400, f"{longest} tokens of prompt, with the boundary that begins it, and {max_tokens} of answer "
                            f"do not fit in the context of {served.name}, which is {most}. Shorten the prompt or lower "
                            "max_tokens.",
                       param="prompt" if longest > most else "max_tokens", code="context_length_exceeded")


def tokens_read(prompt: Sequence[int]) -> int:
    """With the boundary that begins every text."""
    return len(prompt) + (not prompt or prompt[0] != BOUNDARY)


def room(service: Service, served: Served, prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that can follow the longest prompt; at least 1, which is then refused."""
    return max(1, 1 + (served.context or service.limits.tokens) - max(map(tokens_read, prompts)))


@dataclass
class CompletionAnswer:
    served: Served
    body: CompletionBody
    prompts: list[Prompt]
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def n(self) -> int:
        return self.body.n or 1

    def submit(self, service: Service) -> list[Row]:
        engine, body, tokenizer = engine_of(self.served), self.body, self.served.run.tokenizer
        prompts, max_tokens = [prompt.ids for prompt in self.prompts], body.max_tokens
        if max_tokens is None:
            max_tokens = min(MAX_TOKENS, room(service, self.served, prompts))
        require_size(service, self.served, prompts, self.n, max_tokens)
        request = partial(
            Generate, max_tokens=max_tokens, sampling=sampling_of(body), logprobs=body.logprobs,
            prompt_logprobs=bool(body.echo) and body.logprobs is not None, ends=has_end(tokenizer, False),
        )
        every = [(prompt, number) for prompt in self.prompts for number in range(self.n)]
        texts = [continuation(self.served, prompt, body.stops) for prompt, _ in every]
        generations = submit_all(engine, (request(prompt=prompt.ids, row=number) for prompt, number in every))
        return [Row(place, generation, text, streams=bool(body.stream))
                for place, (generation, text) in enumerate(zip(generations, texts))]

    async def whole(self, pieces: AsyncGenerator[Piece], rows: Sequence[Row]) -> dict[str, Any]:
        size = sum(len(prompt.ids) for prompt in self.prompts)
        async with aclosing(pieces):
            choices = await aside(partial(self.choices, rows), size)
            async for piece in pieces:
                choices[piece.row].add(piece)
        return await aside(lambda: self.answer([choice.take() for choice in choices]), size) | {
            "usage": usage_of(rows, self.n)}

    def choices(self, rows: Sequence[Row]) -> list["Choice"]:
        return [Choice(self.served, self.prompt(row.number), self.body, row.number) for row in rows]

    async def chunks(self, pieces: AsyncGenerator[Piece], rows: Sequence[Row]) -> AsyncGenerator[dict[str, Any]]:
        choices = self.choices(rows)
        usage = {"usage": None} if self.body.reports_usage else {}
        async with aclosing(pieces):
            async for piece in pieces:
                choice = choices[piece.row]
                choice.add(piece)
                if choice.has_news:
                    yield self.answer([choice.take()]) | usage
        if self.body.reports_usage:
            yield self.answer([]) | {"usage": usage_of(rows, self.n)}

    def prompt(self, row: int) -> Prompt:
        return self.prompts[row // self.n]

    def answer(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.served.name,
                "system_fingerprint": self.served.fingerprint, "choices": list(choices)}


def continuation(served: Served, prompt: Prompt, stops: Sequence[str]) -> Continuation:
    """The text of an answer; where words have spaces between them, a space that ends the prompt is not repeated."""
    text = Continuation(served.run.tokenizer, np.asarray(prompt.ids, np.int64), tuple(stops))
    text.space = " " * continues_space(served, prompt)
    return text


def continues_space(served: Served, prompt: Prompt) -> bool:
    """Whether a tokenizer that puts spaces between words finds one at the end of the prompt already."""
    return served.run.tokenizer.lines and (prompt.text or "").endswith(" ")


def usage_of(rows: Sequence[Row], n: int) -> dict[str, int]:
    """A prompt is counted once, however many answers it has."""
    prompt, completion = sum(row.generation.prompt_tokens for row in rows[::n]), sum(row.tokens_out for row in rows)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Choice:
    """A choice of the answer, from the pieces of its row; `take` returns what was added since the last time."""

    def __init__(self, served: Served, prompt: Prompt, body: CompletionBody, index: int):
        self.served, self.index, self.scored = served, index, body.logprobs is not None
        self.finish_reason: str | None = None
        self.tokens = list[tuple[Token, int]]()               # each with the place where it begins
        self.places = served.spelling.places()
        placed, read = list[int](), ""
        for id in prompt.ids if body.echo or self.scored else ():
            placed.append(self.places.length)
            read += self.places.feed(id)                      # whole characters: the answer may complete the last one
        given = prompt.text
        self.text = "" if not body.echo else read if given is None else given
        self.shift = len(self.text) - self.places.length      # from the places of tokens to those in the text
        if self.text and continues_space(served, prompt):
            self.shift -= 1
        self.offsets = iter((given and served.spelling.offsets(given, prompt.ids)) or placed)

    @property
    def has_news(self) -> bool:
        return bool(self.text or self.finish_reason or (self.scored and self.tokens))

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.finish_reason = piece.finish_reason
        if self.scored:
            self.tokens += [(token, self._place(token)) for token in piece.tokens]

    def _place(self, token: Token) -> int:
        if token.prompt:
            return next(self.offsets)
        place = self.shift + self.places.length
        self.places.feed(token.id)
        return max(0, place)

    def take(self) -> dict[str, Any]:
        logprobs = log_probabilities(self.served, self.tokens) if self.scored else None
        taken = {"index": self.index, "text": self.text, "logprobs": logprobs, "finish_reason": self.finish_reason}
        self.text, self.tokens = "", []
        return taken


def log_probabilities(served: Served, tokens: Sequence[tuple[Token, int]]) -> dict[str, Any]:
    spelling = served.spelling
    return {
        "tokens": [spelling[token.id] for token, _ in tokens],
        "token_logprobs": [finite(token.logprob) for token, _ in tokens],
        "top_logprobs": [None if token.logprob is None else dict(top_of(served, token)) for token, _ in tokens],
        "text_offset": [place for _, place in tokens],
    }


def top_of(served: Served, token: Token) -> Iterator[tuple[str, float]]:
    """The most probable tokens, and the token itself, which comes last if it is not among them."""
    yield from ((served.spelling[id], finite(logprob)) for id, logprob in token.top)
    if all(id != token.id for id, _ in token.top):
        yield served.spelling[token.id], finite(token.logprob)


def finite(logprob: float | None) -> Any:
    return LEAST if logprob == -math.inf else logprob
