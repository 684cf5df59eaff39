"""Prompts to draw answers to, from a file of lines or of JSON lines, or typed by a rater.

A prompt is a text that the model continues, or the messages of a chat. All prompts of a session have the same form,
since a column of the file of pairs has one type: a run with a chat template reads chats, and a text is a user's message
there; `plain` reads texts.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from chainrule.errors import UserError

Message: TypeAlias = dict[str, str]
Prompt: TypeAlias = str | list[Message]

WANTED = 'a prompt on each line, or JSON lines such as {"prompt": "…"}'


@dataclass(frozen=True)
class Placed:
    prompt: Prompt
    place: str       # where it was read, for messages


def read_prompts(path: Path) -> list[Placed]:
    """The prompts of a file, each once."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}. Give a file with {WANTED}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text. Give a file with {WANTED}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UserError(f"{path} has no prompts. Give a file with {WANTED}.")
    as_json = path.suffix in (".jsonl", ".json") or lines[0][1].lstrip().startswith("{")
    placed = (Placed(_from_json(line, place) if as_json else line.strip("\r"), place) for place, line in lines)
    return list(each_once(placed))


def each_once(placed: Iterable[Placed]) -> Iterator[Placed]:
    seen = set()
    for one in placed:
        if (key := json.dumps(one.prompt)) not in seen:
            seen.add(key)
            yield one


def _from_json(line: str, place: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError:
        raise UserError(f"{place} is not JSON. Each line is an object such as {{\"prompt\": \"…\"}}.") from None
    if not isinstance(row, dict) or "prompt" not in row:
        raise UserError(f'{place} has no prompt. Each line is an object such as {{"prompt": "…"}}.')
    return check_prompt(row["prompt"], place)


def check_prompt(prompt: Any, place: str) -> Prompt:
    """A text, or messages of which the last is not the assistant's."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UserError(f"{place}: the prompt is empty. Write a text.")
        return prompt
    if not isinstance(prompt, list) or not prompt or not all(map(_is_message, prompt)):
        raise UserError(f'{place}: a prompt is a text, or a list of messages such as [{{"role": "user", "content": '
                        '"…"}].')
    if prompt[-1]["role"] == "assistant":
        raise UserError(f"{place}: the last message is the assistant's, so there is no answer to draw. End with a "
                        "user's message.")
    return [{"role": message["role"], "content": message["content"]} for message in prompt]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def as_chat(prompt: Prompt) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
