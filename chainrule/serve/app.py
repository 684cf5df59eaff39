"""The live page as a FastAPI app: its HTML, its JavaScript modules, and the data of any view of any run.

    GET  /                    the page                  GET  /modules/NAME.js
    GET  /api/runs            the runs, and the views that fit each
    POST /api/views/NAME      {runs, text, options} -> the data that the view draws
    POST /api/chat            a conversation -> the answer, as a stream (endpoints/page_chat.py)
    POST /api/write           a text -> what a run writes after it, as a stream (endpoints/page_write.py)

Requests wait in a queue, one at a time for each model. Only trusted hosts are answered. Every error is one line,
`{"error": line}`, and the server goes on. It contacts no other machine.
"""

import asyncio
import socket
import sys
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from string import Template
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import torch
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chainrule.errors import UserError, out_of_memory
from chainrule.serve.engine import threads_for
from chainrule.serve.server import Runs
from chainrule.viewer.hues import hues_of
from chainrule.viewer.page import module_names, read_web_file, script_json, style
from chainrule.viewer.views import LIVE, View, every_view, find_view

# A queue of requests to models: one at a time for each model, since watching a model's taps needs it undisturbed.
#
# Waiting requests hold no thread, so several hundred may wait; more are refused with status 503. Work runs in worker
# threads, so the server's own thread stays free to answer others.

T = TypeVar("T")

LIMIT = 1000    # requests that wait or are being answered


class Queue:
    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.waiting = limit, 0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def do(self, work: Callable[[], T], models: Iterable[str], gone: Callable[[], Awaitable[bool]]) -> T:
        """What `work` returns, once these models are free; it is skipped if the client has gone by then."""
        if self.waiting >= self.limit:
            raise HTTPException(503, f"{self.waiting} requests are waiting already. Try again in a moment.")
        self.waiting += 1
        try:
            async with AsyncExitStack() as stack:
                for name in sorted(set(models)):    # always in the same order, so that there is no deadlock
                    await stack.enter_async_context(self._locks[name])
                if await gone():
                    raise HTTPException(499, "the client has gone.")
                return await to_thread.run_sync(work, abandon_on_cancel=True)
        except asyncio.CancelledError:
            raise HTTPException(503, "the server has been stopped.") from None
        finally:
            self.waiting -= 1


# Trusted hosts: only requests whose Host header names this server are answered, against DNS rebinding.
#
# A stranger's web page can make its own name resolve to 127.0.0.1 and so read what is served here, but its requests
# still carry the stranger's name. Starlette's TrustedHostMiddleware compares the header with a fixed list: it cannot
# accept every IP address, which a server on all addresses (0.0.0.0) must do, since a rebinding attack needs a name and
# a machine does not know every address by which it is reached. It also answers in plain text, without our headers.

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALL_ADDRESSES = ("0.0.0.0", "::")


class TrustedHosts:
    """Middleware: answers `refusal` to a request that names another host. `host`: where the server listens."""

    def __init__(self, app: ASGIApp, host: str, refusal: Response):
        self.app, self.host, self.refusal = app, host.lower(), refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trusted = scope["type"] != "http" or self.trusts(host_name(scope))
        await (self.app if trusted else self.refusal)(scope, receive, send)

    def trusts(self, name: str) -> bool:
        if name in (*LOOPBACK, self.host):
            return True
        return self.host in ALL_ADDRESSES and (is_address(name) or name in machine_names())


def host_name(scope: Scope) -> str:
    """The name or address in the Host header, without its port and without the brackets of IPv6."""
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



BODY_BYTES = 3 << 20
TEXT_CHARACTERS = 500_000            # a view shortens a text that is too long for it
CHOICES = 1000                       # runs, or options
JAVASCRIPT = "text/javascript"

SAME_ORIGIN = "default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": SAME_ORIGIN,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Question(BaseModel):
    """The body of a request for a view."""

    model_config = ConfigDict(strict=True, frozen=True)

    runs: Annotated[list[str], Field(min_length=1, max_length=CHOICES)]
    text: Annotated[str, Field(max_length=TEXT_CHARACTERS)] = ""
    options: Annotated[dict[str, str], Field(max_length=CHOICES)] = {}


def make_app(runs: Runs, text: str, host: str = "127.0.0.1", first: str | None = None) -> FastAPI:
    """`text`: what the page begins with; `host`: the name by which it is served; `first`: the view it begins with."""
    app = bare_app(host)
    add_page(app, text, first)
    add_live(app, runs, Queue())
    return app


def bare_app(host: str) -> FastAPI:
    """Without paths; errors are `{"error": line}`; large bodies, other hosts and pages of other sites are refused."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None,    # their pages load scripts from other machines
                  dependencies=[Depends(require_own_origin)])
    app.add_middleware(BodyLimit)
    app.add_middleware(TrustedHosts, host=host, refusal=error_line(
        421, "this server answers only to its own name; open it by the address that it printed."))
    for error in (HTTPException, RequestValidationError, UserError):
        app.add_exception_handler(error, handle_error)
    return app


def add_page(app: FastAPI | APIRouter, text: str, first: str | None) -> None:
    @app.get("/")
    async def page() -> Response:
        return respond(live_page(text, first), "text/html")

    @app.get("/modules/{name}.js")
    async def module(name: str) -> Response:
        if name not in module_names():
            raise HTTPException(404, f"there is no module {name}.")
        return respond(read_web_file(f"{name}.js"), JAVASCRIPT)


def add_live(app: FastAPI | APIRouter, runs: Runs, queue: Queue) -> None:
    """What the page asks of its server: views, answers of a chat, and texts that go on."""
    from chainrule.serve.endpoints.page_chat import add_page_chat
    from chainrule.serve.endpoints.page_write import add_page_write

    add_api(app, runs, queue)
    add_page_chat(app, runs, queue)
    add_page_write(app, runs, queue)


def add_api(app: FastAPI | APIRouter, runs: Runs, queue: Queue) -> None:
    @app.get("/api/runs")
    async def describe_runs(request: Request) -> Response:
        work = {name: partial(as_http_error, partial(runs.about, name)) for name in runs.paths}
        every = [await queue.do(work[name], [name], request.is_disconnected) for name in work]
        hues = hues_of({about["name"]: about.get("kind", "") for about in every})
        return respond(script_json([about | {"hue": hues[about["name"]]} for about in every]))

    @app.post("/api/views/{name}", dependencies=[Depends(require_json)])
    async def view(name: str, question: Question, request: Request) -> Response:
        chosen, asked = find_view(name), [runs.known(run) for run in question.runs]    # before a lock is made for any
        work = partial(as_http_error, partial(view_data, chosen, runs, question))
        return respond(await queue.do(work, asked, request.is_disconnected))


def require_json(request: Request) -> None:
    """Also a protection: without asking the server first, a browser sends no JSON of another site's page."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body must be JSON, with content-type: application/json.")


def require_own_origin(request: Request) -> None:
    """Refuses what the page of another site posts. Programs send no Origin."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    if request.method not in ("GET", "HEAD") and origin is not None and origin.partition("//")[2] != host:
        raise HTTPException(403, "this request comes from the page of another site, which may not ask here.")


def view_data(view: View, runs: Runs, question: Question) -> str:
    """JSON of what a view draws, of those of the runs that it fits."""
    every = [runs.subject(name) for name in dict.fromkeys(question.runs)]
    subjects = [subject for subject in every if view.fits(subject)]
    if not subjects:
        raise UserError(f"{view.name} does not fit {', '.join(question.runs)}: {view.why_not(every)}.")
    chosen = subjects if view.several else subjects[:1]
    torch.set_num_threads(max(threads_for(subject.model) for subject in chosen))
    return script_json({"data": view.make(chosen, question.text, {**question.options, LIVE: "true"})})


def live_page(text: str, first: str | None) -> str:
    modules = module_names()
    views = [{"name": view.name, "title": view.title, "note": view.note, "several": view.several, "reads": view.reads,
              "needs": view.needs, "group": view.group} for view in every_view().values()]
    return Template(read_web_file("live.html")).substitute(
        style=style(modules),
        imports=script_json({"imports": {f"chainrule/{name}": f"/modules/{name}.js" for name in modules}}),
        about=script_json({"text": text, "views": views, "first": first}),
    )


def respond(body: str, media_type: str = "application/json", status: int = 200) -> Response:
    return Response(body, status, HEADERS, media_type)


# Errors

PHRASES = {status.phrase for status in HTTPStatus}
STATUS = {"json_invalid": 400, "string_unicode": 400}    # of faults of a body; others: 422


def error_line(status: int, line: str) -> Response:
    return respond(script_json({"error": " ".join(line.split())}), status=status)


async def handle_error(request: Request, error: Exception) -> Response:
    """One line for whatever the request or its work raised."""
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if not isinstance(error, HTTPException):
        return error_line(400, str(error))
    standard = error.detail in PHRASES    # the framework's own, such as "Not Found"
    return error_line(error.status_code, f"{request.method} {request.url.path}: {error.detail}." if standard
                      else error.detail)


def _invalid(error: RequestValidationError) -> Response:
    """The first fault of a body, by the name of its field."""
    fault: dict[str, Any] = error.errors()[0]
    if fault["type"] == "string_too_long":
        most, given = fault["ctx"]["max_length"], len(fault["input"])
        return error_line(413, f"the text has {given:,} characters, and {most:,} are the most. Give a part of it.")
    field = ".".join(str(part) for part in fault["loc"][1:2] if fault["type"] != "json_invalid")
    line = f'{field or "the body"}: {fault["msg"]}. The body is JSON such as ' \
           '{"runs": ["NAME"], "text": "…", "options": {"NAME": "VALUE"}}.'
    return error_line(STATUS.get(fault["type"], 422), line)


def as_http_error(work: Callable[[], T], passed: type[Exception] = UserError) -> T:
    """What `work` returns. An error that is not the user's gets an HTTP status, and its traceback goes to stderr.

    `passed`: errors that the caller answers.
    """
    try:
        return work()
    except (UserError, passed):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise HTTPException(507, "out of memory. A shorter text would fit.") from None
        traceback.print_exception(error, file=sys.stderr)
        raise HTTPException(500, f"this failed, which is a bug: {type(error).__name__}: {error}") from None


class BodyLimit:
    """Middleware: refuses a body of more than `most` bytes before all of it is in memory."""

    def __init__(self, app: ASGIApp, most: int = BODY_BYTES):
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.most:
                raise HTTPException(413, f"the body has more than {self.most >> 20} MB. Give a shorter text.")
            return message

        await self.app(scope, limited, send)
