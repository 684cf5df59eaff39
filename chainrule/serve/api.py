"""`chainrule serve`: OpenAI's interface and the live page in one FastAPI app.

    GET  /v1/models                    POST /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/predict
    GET  /tokenizer_info               POST /tokenize, /detokenize
    GET  /health, /metrics, /openapi.json, and the live page at /

Every request passes the gate: the host must be trusted, the key must be right if there is one, and the server must not
be ending. Browsers of other sites get no access (CORS) unless their origin was named.
"""

import base64
import binascii
import hmac
import time
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.evaluate import count_parameters
from chainrule.serve.api_errors import HEADERS, RETRY, APIError, answer_error, as_api_error, on_page
from chainrule.serve.app import BodyLimit, TrustedHosts, add_live, add_page
from chainrule.serve.endpoints.chat import add_chat
from chainrule.serve.endpoints.completions import add_completions
from chainrule.serve.endpoints.embeddings import add_embeddings
from chainrule.serve.endpoints.predict import add_predict
from chainrule.serve.endpoints.schemas import ERRORS, Health, ModelAnswer, ModelList
from chainrule.serve.endpoints.tokens import add_tokens
from chainrule.serve.server import Runs
from chainrule.serve.service import Served, Service

OPEN = ("/health",)                      # paths that need no key
EXPOSED = ("x-chainrule-signature", "retry-after")
ROUTES = (add_completions, add_chat, add_embeddings, add_predict, add_tokens)
"""Each adds its paths to a router: `add(router, service)`."""


def make_server(
    service: Service, runs: Runs, text: str = "", *, host: str = "127.0.0.1", key: str | None = None,
    cors: Sequence[str] = (),
) -> FastAPI:
    """`runs`, `text`: what the live page shows; `key`: what clients must send; `cors`: origins that may ask."""
    app = FastAPI(title="chainrule serve", version=__version__, docs_url=None, redoc_url=None)    # no other machines
    app.add_middleware(BodyLimit, most=service.limits.body)
    if key is None:
        app.add_middleware(TrustedHosts, host=host, refusal=APIError(
            421, "this server answers only to its own name; use the address that it printed, or give it a --key."
        ).response())
    app.add_middleware(Gate, service=service, key=key)
    if cors:
        app.add_middleware(CORSMiddleware, allow_origins=list(cors), allow_methods=["GET", "POST"],
                           allow_headers=["*"], expose_headers=list(EXPOSED))
    app.add_middleware(Counted, service=service)
    for error in (APIError, HTTPException, RequestValidationError, UserError, RuntimeError):
        app.add_exception_handler(error, answer_error)
    page, router = APIRouter(include_in_schema=False), APIRouter()
    add_page(page, text, None)
    add_live(page, runs, service.queue)    # which views, predictions and embeddings share
    add_models(router, service)
    add_figures(router, service)
    for add in ROUTES:
        add(router, service)
    app.include_router(page)
    app.include_router(router)
    return app


def add_models(router: APIRouter, service: Service) -> None:
    @router.get("/v1/models", response_model=ModelList, responses=ERRORS)
    async def list_models() -> Response:
        """The runs that are served."""
        return JSONResponse({"object": "list", "data": [describe(one) for one in service.served.values()]},
                            headers=HEADERS)

    @router.get("/v1/models/{name:path}", response_model=ModelAnswer, responses=ERRORS)
    async def describe_model(name: str) -> Response:
        """One run."""
        served = service.find(name)
        return JSONResponse(describe(served), headers={**HEADERS, **served.headers})


def describe(served: Served) -> dict[str, object]:
    recipe = served.run.recipe
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "chainrule",
            "kind": recipe.kind, "task": recipe.task, "parameters": count_parameters(served.run.model),
            "max_model_len": served.context}


def add_figures(router: APIRouter, service: Service) -> None:
    @router.get("/health", response_model=Health, responses=ERRORS)
    async def health() -> Response:
        """Whether requests are accepted."""
        return JSONResponse({"status": "ok"}, headers=HEADERS)

    @router.get("/metrics", response_class=Response, responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}, **ERRORS})
    async def metrics() -> Response:
        """Figures of the server."""
        return Response(service.metrics.text(), headers=HEADERS, media_type="text/plain; version=0.0.4; charset=utf-8")


class Gate:
    """Middleware: refuses requests without the right key, and new ones while the server is ending.

    Programs send the key as `Authorization: Bearer KEY`. A browser that opens the page asks its user for it: HTTP's
    basic authentication, with the key as the password and any user name. The page alone accepts that.
    """

    def __init__(self, app: ASGIApp, service: Service, key: str | None):
        self.app, self.service, self.key = app, service, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self.service.stop_by is not None:
            refusal = APIError(503, "the server is ending, and takes no new requests.", headers=RETRY)
            return await refusal.response()(scope, receive, send)
        page = on_page(scope["path"])
        if self.key is not None and scope["path"] not in OPEN and not self.allows(scope, page):
            asks = 'Basic realm="chainrule: the key is the password", charset="UTF-8"' if page else "Bearer"
            refusal = APIError(401, "this server needs its key: send the header Authorization: Bearer KEY.",
                               code="invalid_api_key", headers={"www-authenticate": asks})
            return await refusal.response()(scope, receive, send)
        self.service.under_way += 1
        try:
            await self.app(scope, receive, send)
        except Exception as error:    # a bug; passed on, it would close the connection
            await as_api_error(error).response()(scope, receive, send)
        finally:
            self.service.under_way -= 1

    def allows(self, scope: Scope, page: bool) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, given = header.strip().partition(b" ")
        if scheme.lower() == b"basic" and page:
            given = password(given)
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(given.strip(), (self.key or "").encode())


def password(given: bytes) -> bytes:
    try:
        return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


class Counted:
    """Middleware: counts requests by path and status, and measures their time."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.metrics = app, service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, began = 0, time.perf_counter()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, counted)
        finally:
            path = getattr(scope.get("route"), "path", "other")    # as it is declared: there are few of these
            self.metrics.requests.labels(path, str(status or 500)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)
