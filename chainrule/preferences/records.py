"""Records of preferences, as TRL's files have them: JSON lines with pairs of answers, rated answers, or prompts alone.

    {"prompt": …, "chosen": …, "rejected": …}        pairs; without a prompt it is what both answers begin with
    {"prompt": …, "completion": …, "label": true}    answers that were liked or not
    {"prompt": …}                                    to be answered

Prompts and answers are texts, or lists of messages: [{"role": "user", "content": …}]. `chosen_ended`, `rejected_ended`
or `ended` (false) says that an answer was cut off at a length, as `chainrule prefer` writes it, so that its last token
is not its end. Other keys are left alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from chainrule.errors import UserError
from chainrule.progress import say
from chainrule.text.sources import Source
from chainrule.text.tables import Place, numbered_lines, read_object

SHOWN = 6    # keys in a message


class Message(NamedTuple):
    role: str
    content: str


Content: TypeAlias = str | tuple[Message, ...]
"""A text, or the messages of a chat."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be answered."""

    prompt: Content
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.prompt

    @property
    def written(self) -> tuple[str, ...]:
        return texts_of(self.prompt)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to a prompt, of which one was preferred."""

    prompt: Content
    chosen: Content
    rejected: Content
    place: Place = field(compare=False)
    margin: float = 0.0              # by how much, where the file says it
    chosen_ended: bool = True        # False: it was cut off at a length
    rejected_ended: bool = True

    @property
    def about(self) -> object:
        return self.prompt

    @property
    def written(self) -> tuple[str, ...]:
        return texts_of(self.prompt) + texts_of(self.chosen) + texts_of(self.rejected)


@dataclass(frozen=True, slots=True)
class Rated:
    """An answer to a prompt that was liked, or not."""

    prompt: Content
    completion: Content
    label: bool
    place: Place = field(compare=False)
    ended: bool = True               # False: it was cut off at a length

    @property
    def about(self) -> object:
        return self.prompt

    @property
    def written(self) -> tuple[str, ...]:
        return texts_of(self.prompt) + texts_of(self.completion)


def texts_of(content: Content) -> tuple[str, ...]:
    return (content,) if isinstance(content, str) else tuple(message.content for message in content)


def read_pairs(sources: Sequence[Source], errors: str = "strict") -> Iterator[Pair]:
    for place, record in records_of(sources, errors):
        if "chosen" not in record or "rejected" not in record:
            raise UserError(f"{place} has {_keys(record)}; a pair has prompt, chosen and rejected"
                            f"{_of_another_kind(record)}.")
        yield _pair(record, place)


def read_rated(sources: Sequence[Source], errors: str = "strict") -> list[Rated]:
    """Rated answers. A pair is read as two: all chosen answers first, then all rejected ones."""
    rated, rejected = list[Rated](), list[Rated]()
    for place, record in records_of(sources, errors):
        if "chosen" in record and "rejected" in record:
            pair = _pair(record, place)
            rated.append(Rated(pair.prompt, pair.chosen, True, place, pair.chosen_ended))
            rejected.append(Rated(pair.prompt, pair.rejected, False, place, pair.rejected_ended))
        elif {"prompt", "completion", "label"} <= record.keys():
            prompt, completion = (_content(record[name], place, name) for name in ("prompt", "completion"))
            _refuse_mixed(place, prompt=prompt, completion=completion)
            label, ended = _label(record["label"], place), _ended(record, "ended", place)
            rated.append(Rated(prompt, completion, label, place, ended))
        else:
            raise UserError(f"{place} has {_keys(record)}; a rated answer has prompt, completion and label (true or "
                            "false), a pair has prompt, chosen and rejected.")
    return rated + rejected


def read_prompts(sources: Sequence[Source], errors: str = "strict") -> Iterator[Prompt]:
    for place, record in records_of(sources, errors):
        if "prompt" not in record:
            raise UserError(f"{place} has {_keys(record)}; a prompt is {{\"prompt\": …}}.")
        prompt = _content(record["prompt"], place, "prompt")
        _refuse_answered(prompt, place)
        yield Prompt(prompt, place)


def records_of(sources: Iterable[Source], errors: str = "strict") -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of JSON lines, and where each stands. A last line that is still being written is left out."""
    found = False
    for source in sources:
        for number, line in numbered_lines(source, errors):
            if line.strip() and not (_unfinished(line) and _left_out(source.path, number)):
                found = True
                yield Place(str(source.path), number), read_object(source.path, number, line)
    if not found:
        names = ", ".join(str(source.path) for source in sources)
        raise UserError(f"{names}: there are no records in it; each line is one, such as "
                        '{"prompt": …, "chosen": …, "rejected": …}.')


def _unfinished(line: str) -> bool:
    """A last line that another process has not written to its end."""
    if line.endswith("\n"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return line.lstrip().startswith("{")
    return False


def _left_out(path: Path, number: int) -> bool:
    say(f"{path} line {number} has no end, so it is left out: another process may still be writing it.")
    return True


def _pair(record: Mapping[str, Any], place: Place) -> Pair:
    chosen, rejected = (_content(record[name], place, name) for name in ("chosen", "rejected"))
    if "prompt" in record:
        prompt = _content(record["prompt"], place, "prompt", may_be_empty=True)
    else:
        prompt, chosen, rejected = _implicit_prompt(chosen, rejected)
    _refuse_mixed(place, prompt=prompt, chosen=chosen, rejected=rejected)
    _refuse_answered(prompt, place)
    if chosen == rejected:
        raise UserError(f"{place}: chosen and rejected are equal, so the pair says nothing. Remove the line.")
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not any(text.strip() for text in texts_of(answer)):
            raise UserError(f"{place}: the answer in {name} is empty. Fill it in, or remove the line.")
    ended = (_ended(record, f"{name}_ended", place) for name in ("chosen", "rejected"))
    return Pair(prompt, chosen, rejected, place, _margin(record.get("margin"), place), *ended)


def _ended(record: Mapping[str, Any], name: str, place: Place) -> bool:
    value = record.get(name, True)
    if not isinstance(value, bool):
        raise UserError(f"{place}: {name} is {value!r}; it is true, or false for an answer that was cut off.")
    return value


def _implicit_prompt(chosen: Content, rejected: Content) -> tuple[Content, Content, Content]:
    """What both begin with, as TRL takes it: whole messages, or characters without a space at the end."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        size = _common(chosen, rejected)
        size -= 0 < size < min(len(chosen), len(rejected)) and chosen[size - 1] == " "
        return chosen[:size], chosen[size:], rejected[size:]
    size = _common(chosen, rejected)
    prompt = tuple(part for part in chosen[:size] if isinstance(part, Message))
    return prompt, chosen[size:], rejected[size:]


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second)))


def _content(value: Any, place: Place, name: str, may_be_empty: bool = False) -> Content:
    if isinstance(value, str):
        if not value.strip() and not may_be_empty and name != "prompt":
            raise UserError(f"{place}: the answer in {name} is empty. Fill it in, or remove the line.")
        return value
    if not isinstance(value, list):
        raise UserError(f"{place} has {_what(value)} where {name} should be: a text, or a list of messages.")
    if not value and not may_be_empty:
        raise UserError(f"{place}: the list of messages in {name} is empty. Fill it in, or remove the line.")
    return tuple(_message(message, place, name) for message in value)


def _message(value: Any, place: Place, name: str) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise UserError(f"{place}: a message in {name} is {{\"role\": \"user\", \"content\": …}}; there is "
                        f"{_what(value)} without a role.")
    if not isinstance(value.get("content"), str):
        raise UserError(f"{place}: the content of a message in {name} is {_what(value.get('content'))}; it must be a "
                        "text.")
    return Message(value["role"], value["content"])


def _refuse_mixed(place: Place, **contents: Content) -> None:
    """All of a record are texts, or all are messages."""
    kinds = {name: isinstance(content, str) for name, content in contents.items()}
    if len(set(kinds.values())) > 1:
        said = " and ".join(f"{name} is {'a text' if text else 'a list of messages'}" for name, text in kinds.items())
        raise UserError(f"{place} mixes two formats: {said}. All are texts, or all are lists of messages.")


def _refuse_answered(prompt: Content, place: Place) -> None:
    if not isinstance(prompt, str) and prompt and prompt[-1].role == "assistant":
        raise UserError(f"{place}: the last message of the prompt is the assistant's, so it is answered already. "
                        "Move it to the answers.")


def _label(value: Any, place: Place) -> bool:
    if value not in (True, False):
        raise UserError(f"{place} has the label {value!r:.30}; a label is true or false.")
    return bool(value)


def _margin(value: Any, place: Place) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise UserError(f"{place} has the margin {value!r:.30}; a margin is a number.")
    return float(value)


def _keys(record: Mapping[str, Any]) -> str:
    names = [str(name)[:30] for name in list(record)[:SHOWN]]
    return f"the keys {', '.join(names)}" + (", …" if len(record) > SHOWN else "") if names else "no keys"


def _of_another_kind(record: Mapping[str, Any]) -> str:
    return "; rated answers are for train.method=kto" if {"completion", "label"} <= record.keys() else ""


def _what(value: Any) -> str:
    names = {"NoneType": "no value", "dict": "an object", "list": "a list", "str": "a text", "bool": "true or false"}
    return names.get(type(value).__name__, "a number")


R = TypeVar("R", Pair, Rated, Prompt)


def refuse_two_formats(records: Sequence[R]) -> bool:
    """Whether the records are chats; all must be, or none."""
    chats = [not isinstance(record.prompt, str) for record in records]
    if len(set(chats)) > 1:
        other = records[chats.index(not chats[0])]
        raise UserError(f"{other.place} has {'messages' if not chats[0] else 'texts'}, and {records[0].place} has "
                        f"{'messages' if chats[0] else 'texts'}. A file of preferences has one of the two formats.")
    return chats[0]
