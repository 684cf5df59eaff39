"""Answers over HTTP: JSON, or `{"error": line}`. No browser keeps them, and no page brings in what is not ours."""

from typing import Any

from starlette.responses import Response

from chainrule.look.page import plain

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
