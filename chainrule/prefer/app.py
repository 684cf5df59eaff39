"""The page of `chainrule prefer` as a FastAPI app: pairs to rate, clicks to save, figures, and tune now.

    GET  /, /modules/NAME.js          the page                GET  /api/state?rater=R     progress, agreement, tuning
    POST /api/pairs                   {rater, have, mode}     the next pairs
    POST /api/click, /api/undo        answered when it is on disk; the same id twice is one click
    POST /api/prompt, /api/more       a typed prompt; another round of pairs
    POST /api/tune, /api/cancel       tuning in the background; POST /api/policy: go on with the tuned model

Only this machine is answered, only under its own name, and only its own page may write.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from string import Template
from typing import Annotated, Any, Literal, TypeVar

from anyio import to_thread
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException

from chainrule.errors import UserError
from chainrule.prefer.agreement import measure_agreement, share_of
from chainrule.prefer.comparison import Comparison
from chainrule.prefer.drawing import Pair, load_policy
from chainrule.prefer.session import CLICKS, Session, as_shown
from chainrule.prefer.tuning import DONE, METHODS, Tuning
from chainrule.serve.app import JAVASCRIPT, as_http_error, bare_app, error_line, require_json, respond
from chainrule.serve.requests import EngineClosed, EngineError, EngineFull
from chainrule.settings import split_words
from chainrule.viewer.page import closure, read_web_file, script_json, style

T = TypeVar("T")
WEB = files("chainrule.prefer") / "web"
OWN = ("prefer", "saving", "figures")        # modules of the page that are here; the others are those of the live page
AHEAD = 3                                    # pairs that the page holds
FULL = 507                                   # status: the disk has no space for a click

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
Id = Annotated[str, StringConstraints(pattern=r"^[\w-]{8,64}$")]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    rater: Name


class PairsBody(Body):
    have: Annotated[list[str], Field(max_length=1000)] = []
    mode: Literal["prefer", "compare"] = "prefer"


class ClickBody(Body):
    id: Id
    pair: Annotated[str, Field(max_length=64)]
    choice: Literal["left", "right", "tie", "skip"]


class UndoBody(Body):
    id: Id


class PromptBody(Body):
    id: Id
    prompt: Annotated[str, Field(max_length=100_000)]


class TuneBody(Body):
    method: Literal["dpo", "ipo", "kto", "orpo", "simpo"] = "dpo"
    lora: bool = True
    settings: Annotated[str, Field(max_length=2000)] = ""


class Prefer:
    """What the routes share."""

    def __init__(self, session: Session, tuning: Tuning):
        self.session, self.tuning = session, tuning
        self.change = asyncio.Lock()      # of the policy, and of the comparison

    def figures(self, rater: str) -> dict[str, Any]:
        session = self.session
        session.clicks.refresh()
        rated = [event for event in session.clicks.standing() if event["event"] in CLICKS]
        clicks = [event for event in rated if not event.get("compares")]
        choices = [event for event in clicks if event["event"] == "choice"]
        units: dict[str, dict[str, int | None]] = {}
        for event in clicks:
            if event["event"] != "skip":
                units.setdefault(event["pair"], {})[event["rater"]] = event["chosen"]
        left = share_of(sum(event["chosen"] == event["left"] for event in choices), len(choices))
        comparison = session.comparison
        return {
            "run": session.policy.served.name, "out": str(session.clicks.pairs), "chat": session.policy.chat,
            "prompts": len(session.every_prompt()), "choices": len(choices),
            "ties": sum(event["event"] == "tie" for event in clicks),
            "mine": sum(event["rater"] == rater for event in clicks), "waiting": len(session.waiting_for(rater)),
            "raters": {name: sum(event["rater"] == name for event in clicks)
                       for name in sorted({event["rater"] for event in clicks})},
            "left": left.as_dict(), "agreement": measure_agreement(units), "tune": self.tuning.describe(),
            "comparison": comparison.result(rated, self._equal()) | {
                "waiting": len(session.waiting_for(rater, comparison))}
            if isinstance(comparison, Comparison) else None,
        }

    def _equal(self) -> int:
        """Prompts of the comparison with equal answers of both models."""
        comparison = self.session.comparison
        return sum(item.id in self.session.dropped for item in comparison.items()) if comparison else 0

    async def compare(self) -> None:
        """Loads the tuned model, once its training is done."""
        tuning, session = self.tuning, self.session
        async with self.change:
            if tuning.state != DONE or tuning.out is None or tuning.split is None:
                return
            known = session.comparison
            if isinstance(known, Comparison) and known.new.run.path == tuning.out:
                return
            old = session.policy
            plain = not old.chat
            new = await on_disk(partial(load_policy, tuning.out, old.sampling, old.tokens, old.device, plain))
            session.comparison = Comparison(old, new, tuning.split.prompts, tuning.split.held_out, session.seed)

    async def adopt(self) -> None:
        """Goes on with the tuned model as the policy."""
        await self.compare()
        comparison = self.session.comparison
        if not isinstance(comparison, Comparison):
            raise UserError("there is no tuned model yet; tune first.")
        self.session.policy = comparison.new


def make_app(session: Session, settings: Mapping[str, Any] = {}, device: str = "auto") -> FastAPI:
    app = bare_app("127.0.0.1")
    app.add_exception_handler(RequestValidationError, refuse_body)
    for error in (EngineClosed, EngineError, EngineFull):
        app.add_exception_handler(error, refuse_drawing)
    app.state.prefer = Prefer(session, Tuning(session.clicks.pairs, settings, device))
    app.state.tuning = app.state.prefer.tuning
    add_page(app)
    add_rating(app, app.state.prefer)
    add_tuning(app, app.state.prefer)
    return app


async def refuse_body(request: Request, error: Exception) -> Response:
    """The first fault of a body, by the name of its field."""
    fault: dict[str, Any] = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    field = ".".join(map(str, fault["loc"][1:])) if fault["type"] != "json_invalid" else ""
    return error_line(422, f"{field or 'the body'}: {fault['msg']}.")


async def refuse_drawing(request: Request, error: Exception) -> Response:
    return error_line(503, f"no answers can be drawn: {error}")


WRITES = [Depends(require_json)]


async def on_disk(work: Callable[[], T]) -> T:
    """What `work` returns, from a thread. Where the disk is full, the page keeps the click and sends it again."""
    try:
        return await to_thread.run_sync(partial(as_http_error, work, OSError))
    except OSError as error:
        raise HTTPException(FULL, f"not saved: {error.strerror}. Free some space; this page keeps your clicks and "
                                  "tries again.") from None


def add_page(app: FastAPI) -> None:
    @app.get("/")
    async def page() -> Response:
        return respond(page_text(), "text/html")

    @app.get("/modules/{name}.js")
    async def module(name: str) -> Response:
        if name not in modules():
            raise HTTPException(404, f"there is no module {name}.")
        return respond(read_own(f"{name}.js") if name in OWN else read_web_file(f"{name}.js"), JAVASCRIPT)


def modules() -> list[str]:
    return [*OWN, *closure(["draw", "panel", "theme", "preferences"])]


def read_own(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def page_text() -> str:
    names = modules()
    return Template(read_own("prefer.html")).substitute(
        style=style([name for name in names if name not in OWN]) + read_own("prefer.css"),
        imports=script_json({"imports": {f"chainrule/{name}": f"/modules/{name}.js" for name in names}}),
        about=script_json({"methods": METHODS}),
    )


def add_rating(app: FastAPI, prefer: Prefer) -> None:
    session = prefer.session

    async def state(rater: str) -> Response:
        await prefer.compare()
        return respond(script_json(await on_disk(partial(prefer.figures, rater))))

    @app.get("/api/state")
    async def figures(rater: str = "") -> Response:
        return await state(rater)

    @app.post("/api/pairs", dependencies=WRITES)
    async def pairs(body: PairsBody) -> Response:
        await prefer.compare()
        deck = session.comparison if body.mode == "compare" else None
        if body.mode == "compare" and deck is None:
            raise UserError("there is no tuned model to compare yet; tune first.")
        count = max(1, AHEAD - len(body.have))
        found = await session.next_pairs(body.rater, count, body.have, deck)
        return respond(script_json({"pairs": [as_shown(pair, body.rater) for pair in found]}))

    @app.post("/api/click", dependencies=WRITES)
    async def click(body: ClickBody) -> Response:
        pair = await session.find(body.pair)
        await on_disk(partial(session.click, pair, body.rater, body.choice, body.id))
        return await state(body.rater)

    @app.post("/api/undo", dependencies=WRITES)
    async def undo(body: UndoBody) -> Response:
        event = await on_disk(partial(session.undo, body.rater, body.id))
        if event is None:
            return respond(script_json({"pair": None}))
        return respond(script_json({"pair": as_shown(Pair.of_event(event), body.rater)}))

    @app.post("/api/prompt", dependencies=WRITES)
    async def prompt(body: PromptBody) -> Response:
        if not body.prompt.strip():
            raise UserError("the prompt is empty. Write a text.")
        await on_disk(partial(session.add_prompt, body.prompt, body.rater, body.id))
        return await state(body.rater)

    @app.post("/api/more", dependencies=WRITES)
    async def more(body: Body) -> Response:
        session.pairs += max(1, len(session.prompts))
        return await state(body.rater)


def add_tuning(app: FastAPI, prefer: Prefer) -> None:
    async def described() -> Response:
        return respond(script_json(await on_disk(prefer.tuning.describe)))

    @app.post("/api/tune", dependencies=WRITES)
    async def tune(body: TuneBody) -> Response:
        words, settings = split_words(body.settings.split())
        if words:
            raise UserError(f"{words[0]} is not a setting, which is a word such as train.lr=1e-4.")
        session = prefer.session
        await on_disk(partial(prefer.tuning.start, session.policy.run.path, session.every_prompt(), body.method,
                              body.lora, settings))
        return await described()

    @app.post("/api/cancel", dependencies=WRITES)
    async def cancel(body: Body) -> Response:
        prefer.tuning.cancel()
        return await described()

    @app.post("/api/policy", dependencies=WRITES)
    async def policy(body: Body) -> Response:
        await prefer.adopt()
        return await described()
