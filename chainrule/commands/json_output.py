"""JSON output of commands (`--json`): one object on stdout; a long one is written while it is computed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Streamed:
    """An answer as pairs of a name and a value, each computed when it is written, so that memory stays bounded.

    A value that is an iterator gives the parts of one long list.
    """

    pairs: Iterator[tuple[str, Any]]


def json_pieces(answer: dict[str, Any] | Streamed) -> Iterator[str]:
    """The text of one JSON object; joined, it is what json.dumps gives."""
    if not isinstance(answer, Streamed):
        yield json.dumps(answer, allow_nan=False)
        return
    before = "{"
    for name, value in answer.pairs:
        yield f"{before}{json.dumps(name)}: "
        yield from _list_pieces(value) if isinstance(value, Iterator) else [json.dumps(value, allow_nan=False)]
        before = ", "
    yield "}"


def _list_pieces(parts: Iterator[list[Any]]) -> Iterator[str]:
    before = "["
    for part in filter(None, parts):
        yield before + json.dumps(part, allow_nan=False)[1:-1]
        before = ", "
    yield "[]" if before == "[" else "]"
