"""Running text out of JSON lines: every line is an object, and the text in it a document of its own."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chainrule.errors import UserError

SUFFIXES = (".jsonl", ".ndjson")
TEXTS = ("text", "sentence", "review", "content", "comment", "tweet", "document", "body", "message", "utterance")
"""Names that people give to the field of the text, likeliest first."""

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")    # the two halves of a character beyond U+FFFF


def json_texts(path: Path, pieces: Iterable[str]) -> Iterator[str]:
    """The text of each line, none empty, from what the file at `path` holds."""
    for number, line in enumerate(whole_lines(pieces), 1):
        if line.strip() and (text := _text_in(path, number, read_object(path, number, line))):
            yield text


def whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Lines with their ends. Only \\n ends a line."""
    begun = ""
    for piece in pieces:
        *whole, begun = (begun + piece).split("\n")
        yield from (line + "\n" for line in whole)
    if begun:
        yield begun


def read_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).split(":")[0]
        raise UserError(f"{path} line {number} is not JSON: {reason}. Each line is an object of its own.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} line {number} is JSON but no object; a row reads {{\"text\": …, \"label\": …}}.")
    if SURROGATE.search(line) and not _is_text(value):
        raise UserError(f"{path} line {number} has half of a surrogate pair, which is no character. Leave it out, or "
                        "write U+FFFD in its place.")
    return value


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_in(path: Path, number: int, fields: dict[str, Any]) -> str:
    named = {name.lower(): value for name, value in fields.items()}
    found = next((named[name] for name in TEXTS if name in named), None)
    if not isinstance(found, str):
        has = ", ".join(list(fields)[:8]) or "nothing"
        raise UserError(f"{path} line {number} has no text to learn from: it has {has}, and a text is known by one of "
                        f"the names {', '.join(TEXTS)}.")
    return found
