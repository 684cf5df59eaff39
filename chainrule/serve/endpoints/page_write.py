"""Write on, of the live page: POST /api/write streams what a run writes after a text, as lines of JSON.

    {"run", "text", "tokens", "temperature", "top_p", "seed"}
    ->  {"piece": [text, bits, tokens]} …  {"done": how it ended}

The page sends a request for each model, so that they write at the same time. A client that leaves stops its text.
"""

import math
import threading
from contextlib import closing
from functools import partial
from typing import Annotated

import torch
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from chainrule.errors import UserError
from chainrule.inference.sampling import Sampling
from chainrule.serve.app import TEXT_CHARACTERS, Queue, require_json
from chainrule.serve.endpoints.page_chat import Send, stream_lines
from chainrule.serve.engine import threads_for
from chainrule.serve.server import Runs
from chainrule.viewer.views.write import TOKENS, VIEW, as_json, write_on


class WriteQuestion(BaseModel):
    """The body of a request for a continuation."""

    model_config = ConfigDict(frozen=True)

    run: str
    text: Annotated[str, Field(max_length=TEXT_CHARACTERS)] = ""
    tokens: Annotated[int, Field(ge=1, le=1 << 16)] = TOKENS
    temperature: Annotated[float, Field(ge=0, le=math.inf)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, le=1 << 53)] = 1


def add_page_write(app: FastAPI | APIRouter, runs: Runs, queue: Queue) -> None:
    @app.post("/api/write", dependencies=[Depends(require_json)])
    async def write(question: WriteQuestion) -> StreamingResponse:
        runs.known(question.run)
        return stream_lines(partial(write_pieces, runs, question), question.run, queue)


def write_pieces(runs: Runs, question: WriteQuestion, send: Send, gone: threading.Event) -> None:
    """Sends the pieces of a text, and whether it came to its end; stops where the client is gone."""
    subject = runs.subject(question.run)
    if not VIEW.fits(subject):
        raise UserError(f"{subject.name} cannot write on: {VIEW.why_not([subject])}.")
    torch.set_num_threads(threads_for(subject.model))
    sampling = Sampling(temperature=question.temperature, top_p=question.top_p, seed=question.seed)
    last = ""
    with closing(write_on(subject.run, question.text, question.tokens, sampling)) as pieces:    # type: ignore[type-var]
        for piece in pieces:
            last = piece[0]
            send({"piece": as_json(piece)})
            if gone.is_set():
                return
    send({"done": {"finish": "length" if last else "stop"}})
