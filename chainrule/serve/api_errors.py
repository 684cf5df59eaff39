"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`, one line each, with the right status.

Clients retry 408, 409, 429 and everything from 500 on. What would fail again is therefore 400, or it says
`x-should-retry: false`.
"""

import sys
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from chainrule.errors import UserError, out_of_memory
from chainrule.serve.app import PHRASES, handle_error
from chainrule.serve.requests import EngineClosed, EngineError, EngineFull

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
RETRY = {"retry-after": "1"}
NO_RETRY = {"x-should-retry": "false"}
PAGE = ("/api/", "/modules/")    # paths of the live page, whose errors are `{"error": line}`
GONE = 499                       # the client left before the answer


class APIError(Exception):
    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] = {},
    ):
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        line = " ".join(str(self).encode("utf-8", "backslashreplace").decode().split())
        return {"error": {"message": line, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body(), self.status, {**HEADERS, **self.headers})


def too_late(seconds: float) -> APIError:
    return APIError(504, f"this took more than {seconds:g} seconds, which is the limit for one request. Ask for less.",
                    code="timeout", headers=NO_RETRY)


def as_api_error(error: Exception) -> APIError:
    """Any error as one that can be answered; a bug's traceback goes to stderr."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, RequestValidationError):
        return invalid(error)
    if isinstance(error, HTTPException):
        return APIError(error.status_code, str(error.detail), headers=error.headers or {})
    if isinstance(error, UserError):
        return APIError(400, str(error))
    if isinstance(error, EngineError):
        return APIError(500, str(error), headers=NO_RETRY)
    if isinstance(error, EngineFull):
        return APIError(429, str(error), code="queue_full", headers={"retry-after": str(error.retry_after)})
    if isinstance(error, EngineClosed):
        return APIError(503, str(error), headers=RETRY)
    if out_of_memory(error):
        return APIError(507, "out of memory. A shorter text or fewer choices would fit.", headers=NO_RETRY)
    traceback.print_exception(error, file=sys.stderr)
    return APIError(500, f"this failed, which is a bug: {type(error).__name__}: {error}", headers=NO_RETRY)


def on_page(path: str) -> bool:
    return path == "/" or path.startswith(PAGE)


async def answer_error(request: Request, error: Exception) -> Response:
    path = request.url.path
    if on_page(path) and isinstance(error, HTTPException | RequestValidationError | UserError):
        return await handle_error(request, error)
    if isinstance(error, HTTPException) and error.detail in PHRASES:    # the framework's own, such as "Not Found"
        known = " GET /openapi.json lists what is here." if error.status_code == 404 else ""
        error = HTTPException(error.status_code, f"{request.method} {path}: {error.detail}.{known}", error.headers)
    return as_api_error(error).response()


FORMS = {
    "prompt": "a text, a list of token ids, or a list of these, which is not empty",
    "stop": "a text or a list of texts",
    "input": "a text, a list of token ids, or a list of these, which is not empty",
}
"""What a field may be, where it may have several forms and the validator would name only one of them."""


def invalid(error: RequestValidationError) -> APIError:
    """The first fault of a body, by the name of its field."""
    fault: dict[str, Any] = error.errors()[0]
    if fault["type"] == "json_invalid":
        return APIError(400, f"the body is not JSON: {fault['ctx']['error']}.")
    place = [str(part) for part in fault["loc"][1:]]
    if fault["type"] in ("unknown_field", "unsupported"):
        return APIError(400, fault["msg"], param=".".join([*place, fault["ctx"]["name"]]), code=fault["type"])
    if not place:
        return APIError(400, "the body must be a JSON object, with content-type: application/json.")
    message = fault["msg"].removeprefix("Value error, ")
    if place[0] in FORMS:
        return APIError(400, f"{place[0]} must be {FORMS[place[0]]}; {'.'.join(place)}: {message}.", param=place[0])
    return APIError(400, f"{'.'.join(place)}: {message.rstrip('.')}.", param=place[0])
