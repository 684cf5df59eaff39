"""Chat templates: the messages of a chat as the tokens that the model was trained to continue.

    {% for message in messages %}<|im_start|>{{ message.role }}\\n{{ message.content }}<|im_end|>\\n{% endfor %}

A template is Jinja, as in Hugging Face's tokenizers, and is rendered in a sandbox (template_sandbox.py). What the
template spells of special tokens (`<|im_start|>`) becomes their ids; what the messages spell of them stays ordinary
text, so that no user can write a turn of another role. For that, the first character of such a spelling is exchanged
for a private one while the template is rendered.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.text.template_sandbox import parse, render
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.unit import Ids

PROBE = "probe"                          # an answer, to see what follows it
PRIVATE = 0xF0000                        # the first code point of a plane for private use
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


@dataclass(frozen=True)
class ChatTemplate:
    source: str                          # the Jinja template
    tokenizer: Tokenizer
    bos: str                             # spelling of the token that begins a text: `bos_token` in the template
    eos: str                             # and of the one that ends it

    def __post_init__(self) -> None:
        parse(self.source)

    def encode(self, messages: Sequence[Mapping[str, str]], continues: bool = True) -> Ids:
        """The ids of a chat, with what begins the answer if it `continues`."""
        return self.tokenizer.encode_parts(list(self.parts(messages, continues)))

    def render(self, messages: Sequence[Mapping[str, str]], continues: bool = True) -> str:
        return "".join(part if isinstance(part, str) else self._names[part] for part in self.parts(messages, continues))

    def parts(self, messages: Sequence[Mapping[str, str]], continues: bool = True) -> Iterator[str | int]:
        """The rendered text: ordinary text, and the ids of special tokens."""
        hidden = hide_spellings([message["content"] for message in messages], self._special, self.source)
        given = [{**message, "content": text} for message, text in zip(messages, hidden.texts)]
        rendered = render(self.source, {
            "messages": given, "add_generation_prompt": continues, "bos_token": self.bos, "eos_token": self.eos,
            "tools": None, "documents": None,
        })
        for place, part in enumerate(self._spelled.split(rendered) if self._special else [rendered]):
            if place % 2:
                yield self._special[part]
            elif part:
                yield part.translate(hidden.back)

    @cached_property
    def end_of_turn(self) -> int | None:
        """The special token that the template puts after an answer; None: the end of the text, which is EOS."""
        messages = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": PROBE}]
        try:
            parts = list(self.parts(messages, continues=False))
        except UserError:
            return None
        places = [place for place, part in enumerate(parts) if isinstance(part, str) and part.strip().endswith(PROBE)]
        after = parts[places[-1] + 1] if places and places[-1] + 1 < len(parts) else BOUNDARY
        return None if isinstance(after, str) or after in (BOUNDARY, self._special.get(self.eos)) else after

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
