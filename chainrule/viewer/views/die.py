"""The weighted die: what may come next after a text, by each model, the likeliest face first.

Every face's log-probability is sent, so that the page itself can weigh the die by temperature, top-k, top-p and min-p.
On a page that has a server one die is enough, for a click asks for the next; in a file there are those for each of
the last prefixes of the text and for what the likeliest faces would make of it, as many as have room.

Shapes: V vocabulary.
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
from chainrule.viewer.arrays import pack
from chainrule.viewer.subject import Reading, Subject
from chainrule.viewer.view import LIVE, Options, View

# What may follow texts that begin alike: their common beginning is read once, and each goes on from a copy of its
# state.
#
# Shapes: T tokens, V vocabulary.

LOOSE = 8    # last tokens of the beginning that are read again: what follows may spell them otherwise


@dataclass(frozen=True)
class Trunk:
    """A beginning that has been read."""

    tokens: Tensor    # (1, T)
    state: State


def grow(subject: Subject, text: str, limit: int) -> Trunk | None:
    tokens = subject.read(text, limit).tokens[:, :-LOOSE]
    return Trunk(tokens, _read(subject, tokens, subject.model.start(1))[1]) if tokens.shape[1] else None


def follow(subject: Subject, text: str, limit: int, trunk: Trunk | None = None) -> tuple[Tensor, Reading]:
    """(V,) logits of what may follow the text, as much of it as can be read."""
    reading = subject.read(text, limit)
    tokens, state = reading.tokens, None
    if trunk is not None and torch.equal(tokens[:, : trunk.tokens.shape[1]], trunk.tokens):
        tokens = tokens[:, trunk.tokens.shape[1] :]
        state = pick(trunk.state, torch.zeros(1, dtype=torch.long)) if tokens.shape[1] else None
    if state is None:
        tokens, state = reading.tokens, subject.model.start(1)
    return _read(subject, tokens, state)[0], reading


@torch.inference_mode()
def _read(subject: Subject, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    width = max(1, LOGITS // len(subject.run.tokenizer))    # tokens whose answers fit in memory
    with eval_mode(subject.model):
        for begin in range(0, tokens.shape[1], width):
            logits, state = subject.model.step(tokens[:, begin : begin + width], state)
    return logits[0, -1], state


LIMIT = 4096           # tokens that are read
NAMED = 512            # faces that have a name
NAMED_IN_FILE = 48
NEAR = 4               # tokens that say how the next is spelled
BROKEN = "\N{REPLACEMENT CHARACTER}"
WORD = re.compile(r"\s*\S+|\s+")
SHOWN = 200            # characters of the text before its last tokens
PREFIXES = 40          # tokens back from the end of the text
FACES = 6, 3           # that a file follows: from the end of the text, and one more step from there
LETTERS = 3000         # of the text, that a file's dice have read
ROOM = 1_200_000       # characters of JSON for all dice of a file


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    names = [subject.name for subject in subjects]
    if options.get(LIVE):
        now = [die(subject, text, NAMED) for subject in subjects]
        return {"models": names, "text": "", "pieces": [], "dice": {"0:": now}}
    left_out, text = max(0, len(text) - LETTERS), text[-LETTERS:]
    pieces = last_pieces(subjects[0].run.tokenizer, text)
    begin = text[: len(text) - sum(map(len, pieces))]
    return {"models": names, "text": begin[-SHOWN:], "pieces": pieces, "dice": within_room(subjects, begin, pieces),
            "left_out": left_out, "left_out_of": "characters"}


def last_pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """What the last tokens of the text spell."""
    if not tokenizer.lossless:
        return WORD.findall(text)[-PREFIXES:]
    feed = tokenizer.stream_decoder().feed
    pieces = [piece for token in tokenizer.encode(text)[-PREFIXES:].tolist() if (piece := feed(token))]
    while not text.endswith("".join(pieces)):    # the first began within a character
        del pieces[0]
    return pieces


def within_room(subjects: Sequence[Subject], text: str, pieces: Sequence[str]) -> dict[str, Any]:
    """Dice by `pieces read:faces taken`, as many as have room; the one at the end of the text in any case."""
    found, room = dict[str, Any](), ROOM
    trunks = [grow(subject, text, LIMIT) for subject in subjects]
    for count, taken in prefixes(found, pieces):
        prefix = text + "".join(pieces[:count]) + taken
        made = [die(subject, prefix, NAMED_IN_FILE, trunk) for subject, trunk in zip(subjects, trunks)]
        room -= sum(len(die["log_probs"]["data"]) + 24 * len(die["faces"]) for die in made)
        if found and room < 0:
            break
        found[f"{count}:{taken}"] = made
    return found


def prefixes(found: dict[str, Any], pieces: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The whole text; that and one face; its beginnings; that and two faces. `found`: what was made of those before."""
    end = len(pieces)
    yield end, ""
    first = list(likeliest(found.get(f"{end}:", []), FACES[0]))
    yield from ((end, face) for face in first)
    yield from ((count, "") for count in range(end - 1, -1, -1))
    for face in first:
        yield from ((end, face + other) for other in likeliest(found.get(f"{end}:{face}", []), FACES[1]))


def likeliest(made: Sequence[Any], count: int) -> list[str]:
    """What the first faces of each die spell."""
    spelled = [islice((text for _, text in die["faces"] if text), count) for die in made]
    return list(dict.fromkeys(text for texts in spelled for text in texts))


def die(subject: Subject, text: str, named: int, trunk: Trunk | None = None) -> dict[str, Any]:
    """(V,) log-probabilities from the greatest to the least, and of the first faces how they are shown and spelled."""
    lines = subject.run.tokenizer.lines and text.endswith("\n")
    spelled = f"{text}\n" if lines else text    # a tokenizer of lines drops the last newline
    logits, reading = follow(subject, spelled, LIMIT, trunk)
    log_probs, order = logits.float().log_softmax(-1).sort(descending=True, stable=True)
    tokens = order[:named].tolist()
    added = spellings(subject, reading.tokens[0, -NEAR:].tolist(), text, tokens)
    faces = [list(face) for face in zip(subject.show(tokens), added)]
    return {"log_probs": pack(log_probs), "faces": faces, "left_out": reading.left_out}


def spellings(subject: Subject, before: Sequence[int], text: str, tokens: Sequence[int]) -> list[str | None]:
    """What each token adds to the text; nothing where it ends the text, or is only a part of a character."""
    tokenizer, spelled = subject.run.tokenizer, list[str | None]()
    space = " " if tokenizer.lines and text.endswith((" ", "\t")) else ""    # which the text has already
    for token in tokens:
        pieces = tokenizer.stream_decoder()
        for earlier in before:
            pieces.feed(earlier)
        piece = pieces.feed(token).removeprefix(space)
        spelled.append(None if BROKEN in piece else piece or None)
    return spelled


VIEW = View(
    "die", "The weighted die",
    "What may come next, by each model's own probabilities. Click a face to write it, or roll.",
    lambda subject: subject.speaks, make, several=True,
)
