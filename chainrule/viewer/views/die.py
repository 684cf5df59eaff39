"""The weighted die: the distribution over the next token after a text, by each model, the most probable face first.

All log-probabilities are sent, so that the page itself applies temperature, top-k, top-p and min-p. A page with a
server needs one die, since a click asks for the next. A file has the dice of the last prefixes of the text and of its
most probable continuations, as many as its size allows; their common beginning is read once, and each goes on from a
copy of that state.

Shapes: T tokens, V vocabulary.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from chainrule.inference.forward import LOGITS, eval_mode
from chainrule.model import State, pick
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import TAB, Subject, TokenizedText
from chainrule.viewer.views import LIVE, Options, View

LIMIT = 4096                   # tokens that are read
NAMED = 512                    # faces that have a name
NAMED_IN_FILE = 48
NEAR = 4                       # tokens before a face that decide how it is spelled
REREAD = 8                     # last tokens of a common beginning that are read again: others may merge with them
BROKEN = "\N{REPLACEMENT CHARACTER}"
WORD = re.compile(r"\s*\S+|\s+")
SHOWN = 200                    # characters of the text before its last tokens
PREFIXES = 40                  # tokens back from the end of the text
FACES = 6, 3                   # continuations in a file: from the end of the text, and one more step from there
LETTERS = 3000                 # characters of the text that the dice of a file have read
FILE_CHARACTERS = 1_200_000    # of JSON, for all dice of a file


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subjects = [part for subject in subjects for part in subject.of_classes]
    names = [subject.name for subject in subjects]
    given = subjects[0].read_prompt(text, LIMIT).given
    more = {"input": dict(given)} if given else {}
    if options.get(LIVE):
        now = [die(subject, text, NAMED) for subject in subjects]
        return {"models": names, "text": "", "pieces": [], "dice": {"0:": now}} | more
    left_out, text = max(0, len(text) - LETTERS), text[-LETTERS:]
    pieces = last_pieces(subjects[0].run.tokenizer, text if given is None else given["text"])
    begin = text[: len(text) - sum(map(len, pieces))]
    return {"models": names, "text": begin[-SHOWN:], "pieces": pieces, "dice": dice_for_file(subjects, begin, pieces),
            "left_out": left_out, "left_out_of": "characters"} | more


def die(subject: Subject, text: str, named: int, beginning: "Beginning | None" = None) -> dict[str, Any]:
    """(V,) log-probabilities in descending order; of the first faces also what is displayed, and what they add."""
    lines = subject.run.tokenizer.lines and text.endswith("\n")
    spelled = f"{text}\n" if lines else text    # a tokenizer of lines drops the last newline
    logits, read = next_logits(subject, spelled, LIMIT, beginning)
    log_probs, order = logits.float().log_softmax(-1).sort(descending=True, stable=True)
    tokens = order[:named].tolist()
    added = added_texts(subject, read.tokens[0, -NEAR:].tolist(), text, tokens)
    tab = TAB if subject.task.source == "text" and text.count(TAB) < len(subject.split_source(text)[0]) else ""
    faces = [[shown, None if more is None else tab + more] for shown, more in zip(subject.show(tokens), added)]
    return {"log_probs": pack_array(log_probs, digits=21), "faces": faces, "left_out": read.left_out}


def added_texts(subject: Subject, before: Sequence[int], text: str, tokens: Sequence[int]) -> list[str | None]:
    """What each token adds to the text; None if it ends the text, or is only a part of a character."""
    tokenizer, added = subject.run.tokenizer, list[str | None]()
    space = " " if tokenizer.lines and text.endswith((" ", "\t")) else ""    # which the text has already
    for token in tokens:
        pieces = tokenizer.stream_decoder()
        for earlier in before:
            pieces.feed(earlier)
        piece = pieces.feed(token).removeprefix(space)
        added.append(None if BROKEN in piece else piece or None)
    return added


# The dice of a file


def dice_for_file(subjects: Sequence[Subject], text: str, pieces: Sequence[str]) -> dict[str, Any]:
    """Dice by `pieces read:faces taken`, as many as the file may have; the one at the end of the text in any case."""
    found, left = dict[str, Any](), FILE_CHARACTERS
    beginnings = [read_beginning(subject, text, LIMIT) for subject in subjects]
    for count, taken in prefixes(found, pieces):
        prefix = text + "".join(pieces[:count]) + taken
        made = [die(subject, prefix, NAMED_IN_FILE, beginning) for subject, beginning in zip(subjects, beginnings)]
        left -= sum(len(die["log_probs"]["data"]) + 24 * len(die["faces"]) for die in made)
        if found and left < 0:
            break
        found[f"{count}:{taken}"] = made
    return found


def prefixes(found: dict[str, Any], pieces: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The text; the text and one face; its beginnings; the text and two faces. `found`: the dice made so far."""
    end = len(pieces)
    yield end, ""
    first = list(most_probable(found.get(f"{end}:", []), FACES[0]))
    yield from ((end, face) for face in first)
    yield from ((count, "") for count in range(end - 1, -1, -1))
    for face in first:
        yield from ((end, face + other) for other in most_probable(found.get(f"{end}:{face}", []), FACES[1]))


def most_probable(dice: Sequence[Any], count: int) -> list[str]:
    """What the first faces of each die add to the text."""
    added = [islice((text for _, text in die["faces"] if text), count) for die in dice]
    return list(dict.fromkeys(text for texts in added for text in texts))


def last_pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """The texts of the last tokens."""
    if not tokenizer.lossless:
        return WORD.findall(text)[-PREFIXES:]
    feed = tokenizer.stream_decoder().feed
    pieces = [piece for token in tokenizer.encode(text)[-PREFIXES:].tolist() if (piece := feed(token))]
    while not text.endswith("".join(pieces)):    # the first began within a character
        del pieces[0]
    return pieces


# Reading


@dataclass(frozen=True)
class Beginning:
    """Tokens that several texts begin with, and the state after them."""

    tokens: Tensor    # (1, T)
    state: State


def read_beginning(subject: Subject, text: str, limit: int) -> Beginning | None:
    prompt = subject.read_prompt(text, limit)
    tokens = prompt.tokens[:, :-REREAD]
    return Beginning(tokens, _read(subject, tokens, subject.start(prompt))[1]) if tokens.shape[1] else None


def next_logits(
    subject: Subject, text: str, limit: int, beginning: Beginning | None = None
) -> tuple[Tensor, TokenizedText]:
    """(V,) logits of the token after the text, and as much of the text as was read."""
    prompt = subject.read_prompt(text, limit)
    read, tokens, state = prompt.read, prompt.tokens, None
    if beginning is not None and torch.equal(tokens[:, : beginning.tokens.shape[1]], beginning.tokens):
        tokens = tokens[:, beginning.tokens.shape[1] :]
        state = pick(beginning.state, torch.zeros(1, dtype=torch.long)) if tokens.shape[1] else None
    if state is None:
        tokens, state = read.tokens, subject.start(prompt)
    return _read(subject, tokens, state)[0], read


@torch.inference_mode()
def _read(subject: Subject, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """(V,) logits after the last of (1, T) tokens, and the state there."""
    width = max(1, LOGITS // len(subject.run.tokenizer))    # tokens whose logits fit in memory
    with eval_mode(subject.model):
        for begin in range(0, tokens.shape[1], width):
            logits, state = subject.model.step(tokens[:, begin : begin + width], state)
    return logits[0, -1], state


VIEW = View(
    "die", "The weighted die",
    "Which token may come next, by each model's probabilities. Click a face to append it, or roll the die.",
    lambda subject: subject.of_classes[0].predicts_next, _make, several=True,
    needs="a model that predicts the next token",
)
