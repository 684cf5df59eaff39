"""What is asked of a view over HTTP, read from the body of a request and checked."""

import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from chainrule.serve.refusal import Refusal

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
