"""Prompts to draw answers to, from a file of lines or of JSON lines, or typed by a rater.

A prompt is a text that the model continues, or the messages of a chat. All prompts of a session have the same form,
since a column of the file of pairs has one type: a run with a chat template reads chats, and a text is a user's message
there; `plain` reads texts.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from chainrule.errors import UserError
from chainrule.preferences import records
from chainrule.preferences.records import Content
from chainrule.text.sources import Source
from chainrule.text.tables import Place, numbered_lines

Message: TypeAlias = dict[str, str]
Prompt: TypeAlias = str | list[Message]

WANTED = 'a prompt on each line, or JSON lines such as {"prompt": "…"}'


@dataclass(frozen=True)
class Placed:
    prompt: Prompt
    place: str       # where it was read, for messages


def read_prompts(path: Path) -> list[Placed]:
    """The prompts of a file, each once."""
    if not path.is_file():
        raise UserError(f"there is no file {path}. Give a file with {WANTED}.")
    lines = [(number, line) for number, line in numbered_lines(Source(path), "strict") if line.strip()]
    if not lines:
        raise UserError(f"{path} has no prompts. Give a file with {WANTED}.")
    if path.suffix in (".jsonl", ".json") or lines[0][1].lstrip().startswith("{"):
        placed = [Placed(as_plain(record.prompt), str(record.place)) for record in records.read_prompts([Source(path)])]
    else:
        placed = [Placed(line.rstrip("\r\n"), str(Place(str(path), number))) for number, line in lines]
    for one in placed:
        if isinstance(one.prompt, str) and not one.prompt.strip():
            raise UserError(f"{one.place}: the prompt is empty. Write a text.")
    return list({json.dumps(one.prompt): one for one in reversed(placed)}.values())[::-1]


def as_plain(content: Content) -> Prompt:
    """As in the file."""
    return content if isinstance(content, str) else [message._asdict() for message in content]


def as_chat(prompt: Prompt) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
