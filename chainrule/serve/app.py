"""The live page: its HTML, its modules, and the data of any view on any of the runs, computed when asked for.

    GET  /                    the page                  GET  /modules/NAME.js, /plotly.js
    GET  /api/runs            what there is to look at
    POST /api/views/NAME      {runs, text, options} -> what the view shows

It answers with one clear line to whatever goes wrong, and goes on. Nothing here asks anything of another machine.
"""

import json
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from string import Template
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from chainrule.errors import UserError, out_of_memory
from chainrule.inference.evaluate import count_parameters
from chainrule.serve.queue import Queue, Refusal
from chainrule.serve.runs import Shelf
from chainrule.viewer.page import WEB, plain, plotly, source, style
from chainrule.viewer.view import LIVE, View
from chainrule.viewer.views import every_view, find_view

# What a server does not do, and why: one line, with HTTP's number for it.

# Answers over HTTP: JSON, or `{"error": line}`. No browser keeps them, and no page brings in what is not ours.

OURS = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"    # charts are compiled
HEADERS = {
    "content-security-policy": OURS,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def answer(body: str, media_type: str = "application/json", status: int = 200) -> Response:
    return Response(body, status, HEADERS, media_type)


def refuse(status: int, line: str) -> Response:
    return answer(plain({"error": " ".join(line.split())}), status=status)


def as_json(value: Any) -> Response:
    return answer(plain(value))


# What is asked of a view over HTTP, read from the body of a request and checked.

BYTES = 3 << 20       # of a body
LETTERS = 500_000     # of a text; what a view has no room for it leaves out
CHOICES = 1000        # runs, or options
WANTED = 'the body is JSON, as {"runs": ["NAME", …], "text": "…", "options": {"NAME": "VALUE", …}}'


@dataclass(frozen=True)
class Asked:
    runs: tuple[str, ...]
    text: str
    options: dict[str, str]


async def read_asked(request: Request) -> Asked:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, f"{WANTED}, and its content-type says so.")
    try:
        given = json.loads(await _body(request))
    except (ValueError, RecursionError):
        raise Refusal(400, f"the body is not JSON; {WANTED}.") from None
    return check(given)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BYTES:
            raise Refusal(413, f"the question has more than {BYTES >> 20} MB. Give a shorter text.")
    return bytes(body)


def check(given: Any) -> Asked:
    if not isinstance(given, dict):
        raise Refusal(422, f"{WANTED}.")
    runs, text, options = given.get("runs"), given.get("text", ""), given.get("options", {})
    if not isinstance(runs, list) or not all(isinstance(run, str) for run in runs) or not 0 < len(runs) <= CHOICES:
        raise Refusal(422, f"runs: one or more names are wanted; {WANTED}.")
    if not isinstance(text, str):
        raise Refusal(422, f"text: a string is wanted; {WANTED}.")
    if len(text) > LETTERS:
        raise Refusal(413, f"the text has {len(text):,} characters, and {LETTERS:,} are the most. Give a part of it.")
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        raise Refusal(422, f"options: names with a string each are wanted; {WANTED}.")
    return Asked(tuple(dict.fromkeys(runs)), text, options)


# Only requests that name this server by a name of its own are answered.
#
# A page of a stranger can make a browser believe that the stranger's name is 127.0.0.1 (DNS rebinding) and so read what
# is served here; but its requests still say the stranger's name.

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OwnHosts:
    """Around an app: refuses the rest."""

    def __init__(self, app: ASGIApp, host: str):
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self.owns(said(scope)):
            line = "this server answers only to its own name; open it by the address that it printed."
            await refuse(421, line)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def owns(self, name: str) -> bool:
        """One that serves all addresses of the machine has all of them, and the machine's names."""
        if name in (*LOOPBACK, self.host.lower()):
            return True
        return self.host in ("0.0.0.0", "::") and (is_address(name) or name in machine_names())


def said(scope: Scope) -> str:
    """The name in the Host header, without its port."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def machine_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name}.local"}


T = TypeVar("T")

JAVASCRIPT = "text/javascript"
SMALL = 1e7                          # numbers of a model below which threads wait for each other longer than they help
THREADS = torch.get_num_threads()


def make_app(shelf: Shelf, text: str, host: str = "127.0.0.1", first: str | None = None) -> FastAPI:
    """`text`: what the page begins with; `host`: the name by which it is served; `first`: the view it begins with."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)    # pages of documentation come from elsewhere
    app.add_middleware(OwnHosts, host=host)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(UserError, _refused)
    app.add_exception_handler(HTTPException, _unknown)
    add_page(app, text, first)
    add_questions(app, shelf, Queue())
    return app


def add_page(app: FastAPI, text: str, first: str | None) -> None:
    @app.get("/")
    async def page() -> Response:
        return answer(live_page(text, first), "text/html")

    @app.get("/modules/{name}.js")
    async def module(name: str) -> Response:
        if name not in modules():
            raise Refusal(404, f"there is no module {name}.")
        return answer(source(f"{name}.js"), JAVASCRIPT)

    @app.get("/plotly.js")
    async def charts() -> Response:
        return answer(plotly(), JAVASCRIPT)


def add_questions(app: FastAPI, shelf: Shelf, queue: Queue) -> None:
    @app.get("/api/runs")
    async def runs(request: Request) -> Response:
        tell = [(name, partial(excused, partial(shelf.about, name))) for name in shelf.paths]
        return as_json([await queue.do(about, [name], request.is_disconnected) for name, about in tell])

    @app.post("/api/views/{name}")
    async def view(name: str, request: Request) -> Response:
        chosen = find_view(name)
        asked = await read_asked(request)
        runs = [shelf.known(run) for run in asked.runs]    # before a queue is made for any
        work = partial(excused, partial(show, chosen, shelf, asked))
        return answer(await queue.do(work, runs, request.is_disconnected))


def show(view: View, shelf: Shelf, asked: Asked) -> str:
    """JSON of what a view shows of those of the runs that it fits."""
    subjects = [subject for subject in map(shelf.subject, asked.runs) if view.fits(subject)]
    if not subjects:
        raise UserError(f"{view.name} does not fit {', '.join(asked.runs)}: it shows only what a model has.")
    chosen = subjects if view.several else subjects[:1]
    small = max(count_parameters(subject.model) for subject in chosen) < SMALL
    torch.set_num_threads(1 if small else THREADS)
    return plain({"data": view.make(chosen, asked.text, {**asked.options, LIVE: "true"})})


def excused(work: Callable[[], T]) -> T:
    """What `work` returns; whatever else goes wrong in it, the next question is answered."""
    try:
        return work()
    except UserError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise Refusal(507, "out of memory. A shorter text would fit.") from None
        traceback.print_exception(error, file=sys.stderr)
        raise Refusal(500, f"this failed, which is a bug: {type(error).__name__}: {error}") from None


def live_page(text: str, first: str | None) -> str:
    every = modules()
    views = [{"name": view.name, "title": view.title, "note": view.note, "several": view.several, "reads": view.reads}
             for view in every_view().values()]
    return Template(source("live.html")).substitute(
        style=style(every),
        imports=plain({"imports": {f"chainrule/{name}": f"/modules/{name}.js" for name in every}}),
        about=plain({"text": text, "views": views, "first": first}),
    )


def modules() -> list[str]:
    return sorted(file.name.removesuffix(".js") for file in WEB.iterdir() if file.name.endswith(".js"))


async def _refused(request: Request, error: Exception) -> Response:
    """What was asked for cannot be had, and why."""
    return refuse(error.status if isinstance(error, Refusal) else 400, str(error))


async def _unknown(request: Request, error: Exception) -> Response:
    """What no route answers to."""
    status, why = (error.status_code, error.detail) if isinstance(error, HTTPException) else (404, "not found")
    return refuse(status, f"{request.method} {request.url.path}: {why}.")
