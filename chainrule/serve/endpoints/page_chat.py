"""The chat of the live page: POST /api/chat streams an answer as lines of JSON.

    {"run", "messages", "temperature", "seed", "tokens"}  ->  {"piece": text} …  {"done": how it ended}

The page sends the whole conversation each time, so undoing a turn needs no request. The server keeps a conversation for
each run, whose cache holds what its model has read, so only what is new is read. A client that leaves stops its answer.
"""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import torch
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from chainrule.chat.conversation import TOKENS, Conversation
from chainrule.errors import UserError
from chainrule.inference.sampling import Sampling
from chainrule.serve.app import HEADERS, TEXT_CHARACTERS, Queue, as_http_error, require_json
from chainrule.serve.engine import threads_for
from chainrule.serve.server import Runs
from chainrule.viewer.page import script_json

MESSAGES = 4096


class PageMessage(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=TEXT_CHARACTERS)]


class ChatQuestion(BaseModel):
    """The body of a request for an answer."""

    model_config = ConfigDict(frozen=True)

    run: str
    messages: Annotated[list[PageMessage], Field(min_length=1, max_length=MESSAGES)]
    temperature: Annotated[float, Field(ge=0, le=math.inf)] = 1.0
    seed: Annotated[int, Field(ge=0, le=1 << 53)] = 1
    tokens: Annotated[int, Field(ge=1, le=1 << 16)] = TOKENS


class PageChat:
    """Conversations by run. The queue lets one request at a time use a run."""

    def __init__(self, runs: Runs):
        self.runs, self.conversations = runs, dict[str, Conversation]()

    def conversation(self, question: ChatQuestion) -> Conversation:
        run = self.runs.subject(question.run).run
        kept = self.conversations.get(question.run)
        if kept is None or kept.run is not run:              # it may have been trained again since
            kept = self.conversations[question.run] = Conversation(run)
        kept.messages = [message.model_dump() for message in question.messages]
        kept.sampling, kept.limit = Sampling(temperature=question.temperature, seed=question.seed), question.tokens
        kept.draws = 0
        if kept.messages[-1]["role"] != "user":
            raise UserError("the last message must be the user's; it is what is answered.")
        return kept

    def answer(self, question: ChatQuestion, send: "Send", gone: threading.Event) -> None:
        """Sends the pieces of an answer, and how it ended; stops where the client is gone."""
        conversation = self.conversation(question)
        torch.set_num_threads(threads_for(conversation.model))
        with closing(conversation.answer()) as pieces:    # type: ignore[type-var]
            for piece in pieces:
                send({"piece": piece})
                if gone.is_set():
                    return
        last = conversation.last
        send({"done": {"finish": last.finish, "tokens": last.tokens, "dropped": last.dropped,
                       "context": conversation.model.context}})


class Send:
    """From the thread of a model to the server's own: what is sent waits in a queue, None at the end."""

    def __init__(self) -> None:
        self.loop, self.waiting = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

    def __call__(self, value: dict[str, Any] | None) -> None:
        self.loop.call_soon_threadsafe(self.waiting.put_nowait, value)


def add_page_chat(app: FastAPI | APIRouter, runs: Runs, queue: Queue) -> None:
    chats = PageChat(runs)

    @app.post("/api/chat", dependencies=[Depends(require_json)])
    async def chat(question: ChatQuestion) -> StreamingResponse:
        runs.known(question.run)
        return stream_lines(partial(chats.answer, question), question.run, queue)


# Streams of lines

Work: TypeAlias = Callable[[Send, threading.Event], None]    # sends values; the event says that the client has gone

_under_way = set[asyncio.Task[None]]()                       # which holds each until it ends


def stream_lines(work: Work, run: str, queue: Queue) -> StreamingResponse:
    """What `work` sends, a line of JSON each, once the run is free. A client that leaves stops it."""
    send, gone = Send(), threading.Event()
    task = asyncio.create_task(_answer(work, run, queue, send, gone))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return StreamingResponse(_lines(send, gone), headers=HEADERS, media_type="application/x-ndjson")


async def _answer(work: Work, run: str, queue: Queue, send: Send, gone: threading.Event) -> None:
    async def has_gone() -> bool:
        return gone.is_set()

    try:
        await queue.do(partial(as_http_error, partial(work, send, gone)), [run], has_gone)
    except UserError as error:
        send({"error": " ".join(str(error).split())})
    except HTTPException as error:
        send({"error": error.detail})
    finally:
        send(None)


async def _lines(send: Send, gone: threading.Event) -> AsyncIterator[str]:
    try:
        while (value := await send.waiting.get()) is not None:
            yield script_json(value) + "\n"
    finally:
        gone.set()
