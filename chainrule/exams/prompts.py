"""Few-shot prompts: a template with {text} and {label}, examples before the question, verbalisers, chat messages.

    Review: a charming journey .\\nSentiment: positive\\n\\nReview: bleak and desperate\\nSentiment:| negative

A prompt is K examples with their labels and then the question, up to its label. Each label's word (its verbaliser) is a
possible answer. In the channel direction (Min et al. 2022) the label comes first, and the text is the answer. The
tokens of an answer are those that the whole text has more than the prompt, as in lm-eval; where an answer melts into
the last token of the prompt, the answers of all labels begin one token earlier.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from chainrule.errors import UserError, did_you_mean
from chainrule.inference.score import Tokens
from chainrule.model import BOUNDARY
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

PLACEHOLDER = re.compile(r"\{([^{}\n]+)\}")
LABEL = "label"
SLOT = " label "         # the label's placeholder in a parsed template; a column of texts may have the name `label`


@dataclass(frozen=True)
class Item:
    """An example: its texts by the names that a template may use, and what is right."""

    texts: Mapping[str, str]
    answers: tuple[str, ...]         # its label; of a translation all that are right
    place: Place

    @property
    def about(self) -> tuple[str, ...]:
        """The input: equal for examples that ask the same."""
        return tuple(self.texts.values())


@dataclass(frozen=True)
class Template:
    """An example with placeholders, in three parts; only the second is scored."""

    before: str                      # up to the answer
    answer: str                      # the label; in the channel direction, the texts after the label
    after: str                       # after the answer of an example

    @classmethod
    def parse(
        cls, given: str, texts: Sequence[str], labels: Sequence[str] = (LABEL,), channel: bool = False
    ) -> "Template":
        """`texts`, `labels`: the placeholders that stand for a text, and those for the label. `\\n` is a line end."""
        given = given.replace("\\n", "\n").replace("\\t", "\t")
        found = [(match[1], *match.span()) for match in PLACEHOLDER.finditer(given)]
        names = [name for name, *_ in found]
        _check_names(names, texts, labels)
        _check_order([name in labels for name in names], texts[0], labels[0], channel)
        place = next(place for place, name in enumerate(names) if name in labels)
        begin, end = found[place + channel][1], found[-1][2]
        if channel and found[place][2] == begin:
            raise UserError(f"the template has nothing between {{{names[place]}}} and {{{names[place + 1]}}}, so their "
                            "tokens would melt. A space or a line end is enough.")
        usual = dict.fromkeys(labels, f"{{{SLOT}}}")
        parts = (given[:begin], given[begin:end], given[end:])
        return cls(*(PLACEHOLDER.sub(lambda match: usual.get(match[1], match[0]), part) for part in parts))

    @classmethod
    def by_names(cls, texts: Sequence[str], label: str, channel: bool = False) -> "Template":
        """The default: a line `Name: …` for each text and for the label, by the names of the columns."""
        names = (label, *texts) if channel else (*texts, label)
        lines = [f"{name.strip().capitalize()}: {{{name}}}" for name in names]
        return cls.parse("\n".join(lines), texts, (label,), channel)

    def __str__(self) -> str:
        return f"{self.before}{self.answer}{self.after}".replace(f"{{{SLOT}}}", f"{{{LABEL}}}")

    def question(self, texts: Mapping[str, str], word: str = "") -> str:
        """The text up to the answer; `word`: of the label, where it comes first."""
        return _filled(self.before, texts, word)

    def solution(self, texts: Mapping[str, str], word: str) -> str:
        """The answer: the label's word, or in the channel direction the texts."""
        return _filled(self.answer, texts, word)

    @property
    def domain(self) -> str:
        """What stands between the last text and the label: a prompt that says what kind of answer is wanted."""
        return PLACEHOLDER.split(self.before)[-1].lstrip()


def _check_names(names: Sequence[str], texts: Sequence[str], labels: Sequence[str]) -> None:
    known = dict.fromkeys((*texts, *labels))
    for name in names:
        if name not in known:
            raise UserError(f"the template has {{{name}}}, and these examples have "
                            f"{', '.join(f'{{{one}}}' for one in known)}.{did_you_mean(name, list(known))}")
    if not any(name in texts for name in names):
        raise UserError(f"the template has no {{{texts[0]}}}: the model would never see the text. "
                        f'A template is "Text: {{{texts[0]}}}\\nLabel: {{{labels[0]}}}".')


def _check_order(labelled: Sequence[bool], text: str, label: str, channel: bool) -> None:
    """`labelled`: which placeholders are those of the label. The last placeholder is always scored."""
    if labelled.count(True) == 1 and labelled[-1] is not channel:
        return
    order = (f'before a text: --channel scores the text after its label, as in "Label: {{{label}}}\\nText: {{{text}}}".'
             if channel else "after the texts: the model continues the text before it.")
    raise UserError(f"the template must have {{{label}}} once, and {order}")


def _filled(part: str, texts: Mapping[str, str], word: str) -> str:
    return PLACEHOLDER.sub(lambda match: word if match[1] == SLOT else texts[match[1]], part)


@dataclass(frozen=True)
class Question:
    """A prompt as tokens, and the tokens of each answer after it."""

    prompt: Tokens                   # from the boundary on
    answers: tuple[Tokens, ...]

    @property
    def size(self) -> int:
        """Tokens that are read: the last one of an answer is only predicted."""
        return len(self.prompt) + max(map(len, self.answers), default=1) - 1


# What an example is asked: one question with all labels as answers. In the channel direction a question for each label,
# with the text as its one answer.
Prompt = tuple[Question, ...]


class Writer(Protocol):
    """How examples and a question become tokens: as one text, or as a chat."""

    def encode(self, shots: Sequence[tuple[str, str]], question: str, answers: Sequence[str]) -> Question:
        """`shots`: the question and the answer of each example."""


@dataclass(frozen=True)
class PlainWriter:
    """One text, with a separator between the examples."""

    tokenizer: Tokenizer
    separator: str = "\n\n"
    after: str = ""
    wording: Callable[[str], str] = str    # of a word tokenizer, as in other exams

    def encode(self, shots: Sequence[tuple[str, str]], question: str, answers: Sequence[str]) -> Question:
        text = "".join(f"{asked}{label}{self.after}{self.separator}" for asked, label in shots) + question
        bare = text.rstrip(" ")                                   # the space belongs to the answer: " positive"
        space = text[len(bare) :]
        words = [self.wording(f"{space}{answer}") for answer in answers]
        prompt = self.wording(bare)
        first, *wholes = self.tokenizer.encode_many([prompt, *(prompt + word for word in words)])
        return _question(np.append(BOUNDARY, first), [np.append(BOUNDARY, whole) for whole in wholes])


@dataclass(frozen=True)
class ChatWriter:
    """Messages: a question is the user's, its label the assistant's."""

    template: ChatTemplate

    def encode(self, shots: Sequence[tuple[str, str]], question: str, answers: Sequence[str]) -> Question:
        turns = [turn for asked, label in shots for turn in (("user", asked.rstrip(" ")), ("assistant", label))]
        turns.append(("user", question.rstrip(" ")))
        parts = list(self.template.parts([{"role": role, "content": text} for role, text in turns]))
        return _question(self._ids(parts), [self._ids([*parts, answer]) for answer in answers])

    def _ids(self, parts: Sequence[str | int]) -> Tokens:
        ids = self.template.tokenizer.encode_parts(_joined(parts))
        return ids if len(ids) and ids[0] == BOUNDARY else np.append(BOUNDARY, ids)


def _joined(parts: Sequence[str | int]) -> list[str | int]:
    """With texts that follow one another as one text."""
    joined = list[str | int]()
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, str) and isinstance(last, str):
            joined[-1] = last + part
        else:
            joined.append(part)
    return joined


def _question(prompt: Tokens, wholes: Sequence[Tokens]) -> Question:
    """The prompt without the tokens that an answer changes, and what follows it in the text of each answer."""
    begin = min((shared_length([prompt, whole]) for whole in wholes), default=len(prompt))
    return Question(prompt[:begin].astype(np.int64), tuple(whole[begin:].astype(np.int64) for whole in wholes))


def shared_length(rows: Sequence[Tokens]) -> int:
    """How many tokens all rows have in common from their beginning on."""
    length = min(map(len, rows))
    same = np.all([row[:length] == rows[0][:length] for row in rows], axis=0)
    return length if same.all() else int(same.argmin())


def read_labels(given: str | None, names: Sequence[str]) -> dict[str, str]:
    """The word of each label, from `0=negative,1=positive`; a label that is not named is its own word."""
    words = {name: name for name in names}
    for pair in (given or "").split(","):
        label, equals, word = (part.strip() for part in pair.partition("="))
        if not pair.strip():
            continue
        if not equals or not word:
            raise UserError(f"--labels {given}: a label and its word are written 0=negative,1=positive.")
        if label not in words:
            raise UserError(f"--labels names the label {label}, and the examples have {', '.join(names)}.")
        words[label] = word
    if len(set(words.values())) < len(words):
        raise UserError(f"--labels {given} gives two labels the same word. Each needs its own.")
    return words
