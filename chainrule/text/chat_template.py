"""Chat templates: the messages of a chat as the tokens that the model was trained to continue.

    {% for message in messages %}<|im_start|>{{ message.role }}\\n{{ message.content }}<|im_end|>\\n{% endfor %}

A template is Jinja, as in Hugging Face's tokenizers, and is rendered in a sandbox (template_sandbox.py). What the
template spells of special tokens (`<|im_start|>`) becomes their ids; what the messages spell of them stays ordinary
text, so that no user can write a turn of another role. For that, the first character of such a spelling is exchanged
for a private one while the template is rendered.

The answers of a chat, which training learns from, are what the template marks by {% generation %}; where it has no
such block, what it adds to the beginning of each answer: incremental rendering.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.text.template_sandbox import GENERATION, parse, render
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.unit import Ids

PROBE = "probe"                          # an answer, to see what follows it
PRIVATE = 0xF0000                        # the first code point of a plane for private use
SPECIAL = "\0"                           # in the place of a special token
OTHER = "Use another: text.chat_template=chatml, plain or a file."
CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""
PLAIN = """\
{% for message in messages %}
{{ message['role'] + ': ' + message['content'] + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ 'assistant:' }}
{%- endif %}"""
BUILT_IN: Mapping[str, str] = {"chatml": CHATML, "plain": PLAIN}
MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")    # what begins an answer, in templates that mark answers

Message: TypeAlias = Mapping[str, str]
"""`role` (system, user or assistant) and `content`."""


class ChatTokens(NamedTuple):
    ids: Ids                             # of the whole chat
    answers: NDArray[np.bool_]           # which of them are an answer, or end one


@dataclass(frozen=True)
class ChatTemplate:
    source: str                          # the Jinja template
    tokenizer: Tokenizer
    bos: str                             # spelling of the token that begins a text: `bos_token` in the template
    eos: str                             # and of the one that ends it

    def __post_init__(self) -> None:
        parse(self.source)

    @classmethod
    def of(cls, source: str, tokenizer: Tokenizer, begin: int = BOUNDARY, end: int = BOUNDARY) -> "ChatTemplate":
        """A template for a model whose files, before it was imported, had these ids of BOS and EOS."""
        names = {id: name for name, id in tokenizer.special_tokens.items()}
        here = {begin: BOUNDARY, BOUNDARY: begin}.get(end, end)    # EOS: import exchanges BOS and id 0
        return cls(source, tokenizer, names.get(BOUNDARY, ""), names.get(here, ""))

    def encode(self, messages: Sequence[Message], continues: bool = True) -> Ids:
        """The ids of a chat, with what begins the answer if it `continues`."""
        return self.tokenizer.encode_parts(list(self.parts(messages, continues)))

    def render(self, messages: Sequence[Message], continues: bool = True) -> str:
        return "".join(part if isinstance(part, str) else self._names[part] for part in self.parts(messages, continues))

    def parts(self, messages: Sequence[Message], continues: bool = True) -> Iterator[str | int]:
        """The rendered text: ordinary text, and the ids of special tokens."""
        given, hidden = self._hide(messages)
        return self._split(self._render(given, continues), hidden)

    def _hide(self, messages: Sequence[Message]) -> "tuple[list[dict[str, str]], Hidden]":
        hidden = hide_spellings([message["content"] for message in messages], self._special, self.source)
        return [{**message, "content": text} for message, text in zip(messages, hidden.texts)], hidden

    def _render(self, given: Sequence[Message], continues: bool, marks: tuple[str, str] = ("", "")) -> str:
        """`marks`: put before and after what the template marks by {% generation %}."""
        return render(self.source, {
            "messages": list(given), "add_generation_prompt": continues, "bos_token": self.bos, "eos_token": self.eos,
            "tools": None, "documents": None, GENERATION[0]: marks[0], GENERATION[1]: marks[1],
        })

    def _split(self, rendered: str, hidden: "Hidden") -> Iterator[str | int]:
        for place, part in enumerate(self._spelled.split(rendered) if self._special else [rendered]):
            if place % 2:
                yield self._special[part]
            elif part:
                yield part.translate(hidden.back)

    # The answers of a chat

    def encode_answers(self, messages: Sequence[Message]) -> ChatTokens:
        """The ids of a whole chat, and which of them the assistant wrote: what it is trained on.

        The tokens are those of the whole text; an answer begins where they differ from those of its prompt.
        """
        given, hidden = self._hide(messages)
        text, spans = self._marked(given, hidden) if MARKS.search(self.source) else self._increments(given)
        ids = self.tokenizer.encode_parts(list(self._split(text, hidden)))
        answers = np.zeros(len(ids), np.bool_)
        for begin, end in spans:
            answers[self._tokens_of(text[:begin], ids, hidden) : self._tokens_of(text[:end], ids, hidden)] = True
        return ChatTokens(ids, answers)

    def _marked(self, given: Sequence[Message], hidden: "Hidden") -> tuple[str, list[tuple[int, int]]]:
        """The text, and where what the template marks begins and ends."""
        private = _unused("".join(chain(hidden.texts, hidden.back.values(), map(chr, hidden.back), [self.source])))
        begin, end = next(private), next(private)
        pieces = re.split(f"([{begin}{end}])", self._render(given, False, (begin, end)))
        text, places = "", list[int]()
        for piece in pieces:
            if piece in (begin, end):
                places.append(len(text))
            else:
                text += piece
        return text, list(zip(places[::2], places[1::2]))

    def _increments(self, given: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """The text, and of each answer what the template adds to the text that asks for it."""
        text, spans = self._render(given, False), list[tuple[int, int]]()
        for number, message in enumerate(given):
            if message["role"] == "assistant":
                asked, answered = self._render(given[:number], True), self._render(given[: number + 1], False)
                if not text.startswith(answered):
                    raise UserError("the chat template rewrites earlier turns when a chat goes on, so a whole chat "
                                    f"cannot be learned from. {OTHER}")
                if not answered.startswith(asked) or message["content"].strip() not in answered[len(asked) :]:
                    raise UserError("the chat template writes an answer otherwise than it asks for one "
                                    f"(add_generation_prompt). {OTHER}")
                spans.append((len(asked), len(answered)))
        return text, spans

    def _tokens_of(self, text: str, ids: Ids, hidden: "Hidden") -> int:
        """How many of the ids are those of the beginning `text`."""
        begin = self.tokenizer.encode_parts(list(self._split(text, hidden)))
        size = min(len(begin), len(ids))
        same = begin[:size] == ids[:size]
        count = size if same.all() else int(same.argmin())
        dropped = self.tokenizer.lines and text.endswith("\n") and count < len(ids) and ids[count] == BOUNDARY
        return count + int(dropped)      # words: a newline is a token, but not at the end of a text

    def as_targets(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """What the model is to predict where it reads these ids next: EOS is predicted as the boundary."""
        end = self._special.get(self.eos, BOUNDARY)
        return np.where(ids == end, BOUNDARY, ids).astype(np.int64)

    def check_roles(self, roles: Set[str]) -> None:
        """Refuses a template that leaves out what a role says."""
        asked = {"role": "user", "content": f"{PROBE} user"}
        for role in sorted(roles):
            own = {"role": role, "content": f"{PROBE} {role}"}
            chat = {"system": [own, asked], "assistant": [asked, own]}.get(role, [own])
            if own["content"] not in self.render(chat, role != "assistant"):
                raise UserError(f"the chat template drops what the {role} says. {OTHER}")

    @cached_property
    def end_of_turn(self) -> int | None:
        """The special token that the template puts after an answer; None: the end of the text, which is EOS."""
        after = self._after_answer
        return None if after in (None, BOUNDARY, self._special.get(self.eos)) else after

    @property
    def ends_answers(self) -> bool:
        """Whether it puts a special token after an answer; if not, only the boundary can end one."""
        return self._after_answer is not None

    @cached_property
    def _after_answer(self) -> int | None:
        messages = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": PROBE}]
        try:
            parts = list(self.parts(messages, continues=False))
        except UserError:
            return None
        places = [place for place, part in enumerate(parts) if isinstance(part, str) and part.strip().endswith(PROBE)]
        after = parts[places[-1] + 1] if places and places[-1] + 1 < len(parts) else ""
        return None if isinstance(after, str) else after

    @cached_property
    def next_turn(self) -> str:
        """Ordinary text with which the user's next turn begins after an answer; empty: it begins with a token."""
        messages = [{"role": role, "content": PROBE} for role in ("user", "assistant", "user")]
        try:
            parts = list(self.parts(messages, continues=False))
        except UserError:
            return ""
        texts = "".join(part if isinstance(part, str) else SPECIAL for part in parts).split(PROBE)
        return "" if len(texts) < 3 or SPECIAL in texts[2] else texts[2].rstrip()

    @cached_property
    def _special(self) -> dict[str, int]:
        return self.tokenizer.special_tokens

    @cached_property
    def _names(self) -> dict[int, str]:
        return {id: name for name, id in self._special.items()}

    @cached_property
    def _spelled(self) -> re.Pattern[str]:
        """Of several spellings at one place the longest, as `tokenizers` finds them."""
        return re.compile(f"({'|'.join(map(re.escape, sorted(self._special, key=len, reverse=True)))})")


@dataclass(frozen=True)
class Hidden:
    texts: list[str]                     # in which no special token is spelled, not even over the edge of a text
    back: dict[int, str]                 # for str.translate: the private characters, and those they stand for


def hide_spellings(texts: Sequence[str], special: Mapping[str, int], template: str) -> Hidden:
    """Texts with a private character in the place of one character of each special token that they spell.

    A text that ends with the beginning of a spelling, or begins with the end of one, could be completed by what the
    template puts beside it: these are changed too.
    """
    private = _unused("".join([*texts, template]))
    stand_in = {char: next(private) for name in special for char in (name[0], name[-1])}
    spelled = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
    begins, ends = ({cut for name in special for cut in cuts(name)} for cuts in (_begins, _ends))
    whole = (spelled.sub(lambda found: stand_in[found[0][0]] + found[0][1:], text) for text in texts)
    hidden = [_hide_begin(_hide_end(text, begins, stand_in), ends, stand_in) for text in whole]
    return Hidden(hidden, {ord(new): char for char, new in stand_in.items()})


def _begins(name: str) -> list[str]:
    return [name[:size] for size in range(1, len(name))]


def _ends(name: str) -> list[str]:
    return [name[size:] for size in range(1, len(name))]


def _hide_end(text: str, begins: Set[str], stand_in: Mapping[str, str]) -> str:
    """Where the text ends with the beginning of a name, before white space that a template may strip."""
    end = len(text.rstrip())
    for place in range(max(0, end - max(map(len, begins), default=0)), end):
        if text[place:end] in begins:
            text = text[:place] + stand_in[text[place]] + text[place + 1 :]
    return text


def _hide_begin(text: str, ends: Set[str], stand_in: Mapping[str, str]) -> str:
    """Where the text begins with the end of a name."""
    begin = len(text) - len(text.lstrip())
    for last in range(min(len(text), begin + max(map(len, ends), default=0)), begin, -1):
        if text[begin:last] in ends:
            text = text[: last - 1] + stand_in[text[last - 1]] + text[last:]
    return text


def _unused(text: str) -> Iterator[str]:
    held = set(text)
    return (chr(point) for point in range(PRIVATE, 0x10FFFE) if chr(point) not in held)


def find_template(given: str) -> str:
    """A template by the name of a built-in one, or from a file."""
    if given in BUILT_IN:
        return BUILT_IN[given]
    try:
        source = Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"the chat template {given} cannot be read: {reason}. Give a file of Jinja, or "
                        f"{' or '.join(BUILT_IN)}.") from None
    parse(source)
    return source
