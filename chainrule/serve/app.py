"""The live page: its HTML, its modules, and the data of any view on any of the runs, computed when asked for.

    GET  /                    the page                  GET  /modules/NAME.js, /plotly.js
    GET  /api/runs            what there is to look at
    POST /api/views/NAME      {runs, text, options} -> what the view shows

It answers with one clear line to whatever goes wrong, and goes on. Nothing here asks anything of another machine.
"""

import sys
import traceback
from collections.abc import Callable
from functools import partial
from string import Template
from typing import TypeVar

import torch
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from chainrule.errors import UserError, out_of_memory
from chainrule.look.page import WEB, plain, plotly, source, style
from chainrule.look.view import LIVE, View
from chainrule.look.views import every_view, find_view
from chainrule.serve.answers import answer, as_json, refuse
from chainrule.serve.asked import Asked, read_asked
from chainrule.serve.hosts import OwnHosts
from chainrule.serve.queue import Queue
from chainrule.serve.refusal import Refusal
from chainrule.serve.shelf import Shelf
from chainrule.use.evaluate import count_parameters

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
