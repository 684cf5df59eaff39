"""POST /v1/chat/completions: the next message of a chat, by the run's chat template, whole or as a stream of deltas.

The messages become tokens (text/chat_template.py), and the model continues them, up to the boundary, a stop text, or
the special token by which the template ends a message.
"""

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeAlias

from anyio import to_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from chainrule.inference.generate import has_end
from chainrule.model import BOUNDARY
from chainrule.serve.api_errors import HEADERS
from chainrule.serve.app import require_json
from chainrule.serve.endpoints.completions import (
    STREAMS,
    Prompt,
    continuation,
    finite,
    require_size,
    sampling_of,
    usage_of,
)
from chainrule.serve.endpoints.schemas import ERRORS, Answer, Body, SamplingBody, Usage
from chainrule.serve.requests import Request as Generate
from chainrule.serve.requests import Token
from chainrule.serve.service import Served, Service, engine_of, submit_all
from chainrule.serve.streams import Piece, Row, event_stream, merged, while_connected
from chainrule.text.tokenizers.spelling import REPLACED

MAX_TOKENS = 2048        # of an answer, where the request does not say


def add_chat(router: APIRouter, service: Service) -> None:
    @router.post("/v1/chat/completions", dependencies=[Depends(require_json)], response_model=ChatCompletion,
                 responses=STREAMS | ERRORS)
    async def create_chat_completion(body: ChatBody, request: Request) -> Response:
        """The next message of a chat."""
        served = service.find(body.model)
        engine_of(served)
        ids = await to_thread.run_sync(partial(encode_chat, served, body.texts))
        chat = ChatAnswer(served, body, Prompt(ids))
        rows = chat.submit(service)
        pieces = merged(rows, service, served)
        if body.stream:
            return event_stream(chat.chunks(pieces, rows), served.headers)
        answer = await while_connected(request, chat.whole(pieces, rows))
        return JSONResponse(answer, headers={**HEADERS, **served.headers})


def encode_chat(served: Served, messages: Sequence[Mapping[str, str]], continues: bool = True) -> list[int]:
    ids: list[int] = served.chat_template.encode(messages, continues).tolist()
    return ids


@dataclass
class ChatAnswer:
    served: Served
    body: "ChatBody"
    prompt: Prompt
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def submit(self, service: Service) -> list[Row]:
        body, n, max_tokens = self.body, self.body.n or 1, self._max_tokens(service)
        require_size(service, self.served, [self.prompt.ids], n, max_tokens)
        end = self.served.chat_template.end_of_turn
        request = partial(
            Generate, prompt=self.prompt.ids, max_tokens=max_tokens, sampling=sampling_of(body),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None, ends=self._ends,
        )
        texts = [continuation(self.served, self.prompt, body.stops) for _ in range(n)]
        generations = submit_all(engine_of(self.served), (request(row=number) for number in range(n)))
        return [Row(number, generation, text, end, streams=bool(body.stream))
                for number, (generation, text) in enumerate(zip(generations, texts))]

    def _max_tokens(self, service: Service) -> int:
        """What was asked for; else what the context leaves, up to a limit."""
        given = self.body.max_completion_tokens or self.body.max_tokens
        if given is not None:
            return given
        left = (self.served.context or service.limits.tokens) - len(self.prompt.ids)
        return max(1, min(MAX_TOKENS, left))

    @property
    def _ends(self) -> bool:
        return has_end(self.served.run.tokenizer, False)

    async def whole(self, pieces: AsyncIterator[Piece], rows: Sequence[Row]) -> dict[str, Any]:
        texts, tokens = [""] * len(rows), [list[Token]() for _ in rows]
        reasons: list[str | None] = [None] * len(rows)
        async for piece in pieces:
            texts[piece.row] += piece.text
            tokens[piece.row] += piece.tokens
            reasons[piece.row] = piece.finish_reason
        choices = [
            {"index": index, "message": {"role": "assistant", "content": text, "refusal": None},
             "logprobs": self._logprobs(tokens[index]), "finish_reason": reasons[index]}
            for index, text in enumerate(texts)
        ]
        return self._answer("chat.completion", choices) | {"usage": usage_of(rows, len(rows))}

    async def chunks(self, pieces: AsyncIterator[Piece], rows: Sequence[Row]) -> AsyncGenerator[dict[str, Any]]:
        """The role first, then the text as it comes, then how it ended, and the usage if it is asked for."""
        usage = {"usage": None} if self.body.reports_usage else {}
        for row in rows:
            yield self._chunk(row.number, {"role": "assistant", "content": "", "refusal": None}) | usage
        async for piece in pieces:
            logprobs = self._logprobs(piece.tokens)
            if piece.text or (logprobs and logprobs["content"]):
                yield self._chunk(piece.row, {"content": piece.text}, logprobs) | usage
            if piece.finish_reason is not None:
                yield self._chunk(piece.row, {}, finish_reason=piece.finish_reason) | usage
        if self.body.reports_usage:
            yield self._answer("chat.completion.chunk", []) | {"usage": usage_of(rows, len(rows))}

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._answer("chat.completion.chunk", [choice])

    def _answer(self, what: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": what, "created": self.created, "model": self.served.name,
                "system_fingerprint": self.served.fingerprint, "choices": list(choices)}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        """Of the tokens of the message; the token that ends it is not part of it."""
        if not self.body.logprobs:
            return None
        most = self.body.top_logprobs or 0
        ends = (BOUNDARY if self._ends else None, self.served.chat_template.end_of_turn)
        written = [token for token in tokens if token.id not in ends]
        return {"refusal": None, "content": [
            {**self._token(token.id, token.logprob),
             "top_logprobs": [self._token(id, logprob) for id, logprob in token.top[:most]]}
            for token in written
        ]}

    def _token(self, id: int, logprob: float | None) -> dict[str, Any]:
        spelling = self.served.run.tokenizer.bytes_of(id)
        text = self.served.run.tokenizer.decode([id]) if spelling is None else REPLACED
        known = text.encode() if REPLACED not in text else spelling
        return {"token": self.served.spelling[id], "logprob": finite(logprob),
                "bytes": None if known is None else list(known)}


# The body and the answer

ROLES = ("system", "developer", "user", "assistant")
MessageRole = Literal["system", "developer", "user", "assistant"]


def unsupported(name: str, line: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{line}", {"name": name, "line": line})


class TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    role: MessageRole = Field(description="system (or developer), user or assistant")
    content: str | Annotated[list[TextPart], Field(min_length=1)] = Field(description="a text, or parts of one")
    type: Literal["text", "message"] | None = Field(None, description="accepted; changes nothing")
    refusal: None = None
    audio: None = None
    name: None = Field(None, description="not supported: null only")
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="not supported: empty only")

    @model_validator(mode="before")
    @classmethod
    def refuse_what_is_not_text(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        role, content = given.get("role"), given.get("content")
        if not isinstance(role, str) or role not in ROLES:
            raise unsupported("role", f"a message of the role {str(role)[:50]} is not supported; the roles are "
                                      f"{', '.join(ROLES)}.")
        for name in ("tool_calls", "function_call", "audio", "refusal", "name"):
            if given.get(name):
                raise unsupported(name, f"{name} of a message is not supported by this server.")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") != "text":
                raise unsupported("content", f"a part of the type {str(part.get('type'))[:50]} is not supported: this "
                                             "server reads text.")
        if not isinstance(content, str | list):
            raise unsupported("content", "the content of a message must be a text, or a list of parts of one.")
        return given

    @property
    def text(self) -> dict[str, str]:
        """For the template, which knows no developer."""
        role = "system" if self.role == "developer" else self.role
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": role, "content": "\n".join(parts)}


Messages: TypeAlias = Annotated[list[Message], Field(min_length=1, max_length=4096)]


class ChatBody(SamplingBody):
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        None, description="tokens of the answer at most (default: what the context leaves, up to 2048)")
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        None, description="the older name of max_completion_tokens")
    logprobs: bool | None = Field(None, description="natural log-probabilities of the answer's tokens")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="so many of the most probable tokens at each place, with logprobs: true")
    safety_identifier: str | None = Field(None, description="accepted; changes nothing")
    prompt_cache_key: str | None = Field(None, description="accepted; changes nothing")
    service_tier: Literal["auto", "default"] | None = Field(None, description="accepted; changes nothing")
    parallel_tool_calls: bool | None = Field(None, description="accepted; there are no tools")
    tools: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="not supported: empty only")
    tool_choice: Literal["none", "auto"] | None = Field(None, description="accepted; there are no tools")
    functions: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="not supported: empty only")
    function_call: Literal["none", "auto"] | None = Field(None, description="accepted; there are no functions")
    response_format: dict[str, str] | None = Field(None, description='not supported: {"type": "text"} only')
    modalities: list[Literal["text"]] | None = Field(None, description="text only")
    audio: None = Field(None, description="not supported")
    prediction: None = Field(None, description="not supported")
    reasoning_effort: None = Field(None, description="not supported")
    verbosity: None = Field(None, description="not supported")
    web_search_options: None = Field(None, description="not supported")

    @classmethod
    def neutral(cls) -> dict[str, tuple[Any, ...]]:
        nothing = ("audio", "prediction", "reasoning_effort", "verbosity", "web_search_options")
        return super().neutral() | dict.fromkeys(nothing, (None,)) | {
            "tools": (None, []), "functions": (None, []), "tool_choice": (None, "none", "auto"),
            "function_call": (None, "none", "auto"), "response_format": (None, {"type": "text"}),
            "modalities": (None, ["text"]), "service_tier": (None, "auto", "default"),
        }

    @model_validator(mode="after")
    def fields_agree(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise unsupported("top_logprobs", "top_logprobs needs logprobs: true; give both.")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise unsupported("max_tokens", "max_tokens and max_completion_tokens are the same setting, and differ "
                                            "here. Give one of them.")
        return self

    @property
    def texts(self) -> list[dict[str, str]]:
        return [message.text for message in self.messages]


class TokenizeBody(Body):
    """Of /tokenize."""

    model: str | None = None
    prompt: str | None = Field(None, description="a text")
    messages: Messages | None = Field(None, description="a chat, in the place of a text")
    add_generation_prompt: bool | None = Field(
        None, description="whether a chat ends with what begins the answer (default: true)")
    add_special_tokens: bool | None = Field(None, description="accepted; no token is added to a text")
    return_token_strs: bool | None = Field(None, description="whether the answer has token_strs")

    @model_validator(mode="after")
    def has_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise unsupported("prompt", "give prompt or messages, and not both.")
        return self


class TokenLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Answer):
    content: list[ContentLogprob]
    refusal: None


class ChatMessage(Answer):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
