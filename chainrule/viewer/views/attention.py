"""Attention: every head of every layer as a small map, and one head in full, between the tokens of a text.

    X' = softmax(Q Kᵀ / √d_k + M) V        what is drawn is the softmax: row t says how much token t takes of each other

Small maps are the largest weights of their neighbourhoods, in one byte; the head that was chosen is exact, and so are
as many others as a page should hold. A pattern is looked at while it passes: all of them might not fit in memory.

Shapes: T queries, C keys, H heads, L layers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from chainrule.errors import UserError
from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.forward import eval_mode, on_device
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.model import BOUNDARY, watch
from chainrule.tasks.encoding import EXTRACT
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.unit import visible
from chainrule.viewer.arrays import pack
from chainrule.viewer.source import read_source, writes_about_text
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View

# Tokens that are pieces of one word, found by the text that they make: a word goes on from letter to letter.
#
# Pieces of one character (a byte of an emoji) stay together whatever it is.

def words_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[tuple[int, str]]:
    """Words in order: how many tokens each has, and what it looks like."""
    words: list[tuple[int, str]] = []
    pieces, waiting, before = tokenizer.stream_decoder(), 0, ""
    for token in tokens:
        text, waiting = pieces.feed(token), waiting + 1
        if token == BOUNDARY or tokenizer.lines:
            words += [(1, "\ufffd")] * (waiting - 1) + [(1, tokenizer.show(token))]
            waiting, before = 0, ""
        elif text:
            if before[-1:].isalnum() and text[0].isalnum():
                size, shown = words.pop()
                words.append((size + waiting, shown + visible(text)))
            else:
                words.append((waiting, visible(text)))
            waiting, before = 0, text
    return words + [(1, "\ufffd")] * waiting


LIMIT = 1024          # tokens that are drawn
SMALL = 64            # pixels of a small map, at most
EXACT = 1_000_000     # bytes of heads that are exact beside the chosen one, at most; as text they are a third more
WRITTEN = 12          # tokens that a model adds to the text, where nothing else is asked
ANSWER = 128          # tokens that it writes about a source, at most

Head: TypeAlias = tuple[str, int, int]
"""The name of a part, the numbers of a layer and of a head in it, from 1."""


def fits(subject: Subject) -> bool:
    model = subject.model
    reads = subject.speaks or writes_about_text(subject) or hasattr(getattr(model, "body", model), "encode")
    return subject.has("pattern") and reads and getattr(model, "letters", None) is None


@dataclass(frozen=True)
class Told:
    """Tokens that look, or that are looked at."""

    tokens: list[int]
    written: int | None = None     # where those begin that the model wrote itself


@dataclass(frozen=True)
class Scene:
    """What a model reads: how, and which tokens are there."""

    act: Callable[[], Any]
    texts: dict[str, Told]
    left_out: int = 0              # tokens before these
    cut: int = 0                   # tokens behind those of a source


@dataclass
class Part:
    """The layers of one stack."""

    name: str
    taps: list[str]
    queries: str                   # names of texts
    keys: str
    heads: int
    size: int                      # d_k
    maps: list[Tensor] = field(default_factory=list)              # of each layer: (H, at most SMALL, at most SMALL)
    exact: list[dict[str, Any]] = field(default_factory=list)


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    scene = _scene(subject, text, options)
    parts = _parts(subject)
    chosen = _chosen(parts, options)
    _look(subject, scene, parts, chosen)
    return {
        "name": subject.name,
        "left_out": scene.left_out,
        "cut": scene.cut,
        "speaks": subject.speaks,
        "asked": {"tokens": _number(options, "tokens", WRITTEN), "seed": _number(options, "seed", 1)},
        "chosen": dict(zip(("part", "layer", "head"), chosen)),
        "texts": {name: _shown(subject, told) for name, told in scene.texts.items()},
        "parts": [_drawn(part) for part in parts],
    }


def _drawn(part: Part) -> dict[str, Any]:
    maps = torch.stack(part.maps)                                                    # (L, H, …)
    return {
        "name": part.name, "queries": part.queries, "keys": part.keys, "size": part.size,
        "layers": len(part.taps), "heads": part.heads, "maps": pack(maps.numpy(), "uint8"), "exact": part.exact,
    }


def _shown(subject: Subject, told: Told) -> dict[str, Any]:
    words = words_of(subject.run.tokenizer, told.tokens)
    return {"shown": subject.show(told.tokens), "written": told.written, "words": words}


# What is read


def _scene(subject: Subject, text: str, options: Options) -> Scene:
    if subject.speaks:
        return _going_on(subject, text, _number(options, "tokens", WRITTEN), _number(options, "seed", 1))
    if not writes_about_text(subject):
        return _whole(subject, text)
    apart = any(".cross." in tap for tap in subject.taps("pattern"))
    return _about_source(subject, text) if apart else _in_one_row(subject, text)


def _going_on(subject: Subject, text: str, more: int, seed: int) -> Scene:
    """The end of the text, and so many tokens that the model goes on with."""
    model, room = subject.model, min(LIMIT, subject.model.context or LIMIT)
    more = min(more, room // 2)
    read = subject.read(text, room - more)
    given = read.tokens[0].tolist()
    lines = subject.run.tokenizer.lines
    columns = sample(model, [np.array(given[1:], np.int64)], more, Sampling(seed=seed), ends=not lines)
    tokens = given + [int(column) for column in columns]
    row = on_device(model, np.array([tokens]))
    return Scene(lambda: model.step(row, model.start(1)), {"text": Told(tokens, len(given))}, read.left_out)


def _about_source(subject: Subject, text: str) -> Scene:
    """A source, and the likeliest text about it."""
    model, source = subject.model, read_source(subject, text, LIMIT)
    found = beam_search(model, Beam(limit=ANSWER), source=source.tokens)[0]
    tokens = [BOUNDARY, *found.texts[0].tokens]
    row = on_device(model, np.array([tokens]))
    texts = {"source": Told(source.tokens[0].tolist()), "text": Told(tokens, 1)}
    return Scene(lambda: model.step(row, model.start(1, source.tokens)), texts, cut=source.left_out)


def _in_one_row(subject: Subject, text: str) -> Scene:
    """A source and the likeliest text about it, by a model that goes on from the one to the other."""
    model, source = subject.model, read_source(subject, text, min(LIMIT, subject.model.context) // 2)
    found = beam_search(model, Beam(limit=ANSWER), source=source.tokens)[0]
    given = [BOUNDARY, *source.tokens[0, :-1].tolist()]
    tokens = [*given, BOUNDARY, *found.texts[0].tokens]
    row = on_device(model, np.array([tokens]))
    return Scene(lambda: model.step(row, model.start(1)), {"text": Told(tokens, len(given))}, cut=source.left_out)


def _whole(subject: Subject, text: str) -> Scene:
    """A text that is read from both sides, or for its class, which has a token of its own at the end."""
    end = [token] if (token := subject.run.tokenizer.id(EXTRACT)) is not None else []
    read = subject.read(text, min(LIMIT, subject.model.context or LIMIT) - len(end))
    tokens = read.tokens[0].tolist() + end
    row = on_device(subject.model, np.array([tokens]))
    body = getattr(subject.model, "body", subject.model)
    return Scene(lambda: body.encode(row), {"text": Told(tokens)}, read.left_out)


# Which stacks there are, and which head is looked at


def _parts(subject: Subject) -> list[Part]:
    """Layers that are alike but for their number, named by what looks at what."""
    alike: dict[str, list[str]] = {}
    for tap in subject.taps("pattern"):
        alike.setdefault(re.sub(r"\.\d+\.", ".", tap), []).append(tap)
    parts = [_part(subject, where) for where in alike.values()]
    return sorted(parts, key=lambda part: (part.queries == "text", part.keys == "source"))


def _part(subject: Subject, where: list[str]) -> Part:
    attention = subject.model.get_submodule(where[0].rpartition(".")[0])
    heads = attention.out.in_features // attention.size
    if ".cross." in where[0]:
        return Part("cross", where, "text", "source", heads, attention.size)
    if where[0].startswith("encoder."):
        return Part("source", where, "source", "source", heads, attention.size)
    return Part("text", where, "text", "text", heads, attention.size)


def _chosen(parts: Sequence[Part], options: Options) -> Head:
    """Where a number is too great, the last: the next run may have fewer layers."""
    by_name = {part.name: part for part in parts}
    name = options.get("part") or parts[-1].name
    if name not in by_name:
        raise UserError(f"part={name} is not in this model; it has {', '.join(by_name)}.")
    part = by_name[name]
    layer, head = _number(options, "layer", 1), _number(options, "head", 1)
    return name, min(max(layer, 1), len(part.taps)), min(max(head, 1), part.heads)


def _number(options: Options, name: str, otherwise: int) -> int:
    given = options.get(name, "")
    if given and not (given.isdecimal() and given.isascii() and len(given) < 10):
        raise UserError(f"{name}={given} is not a number from 0 on.")
    return int(given) if given else otherwise


# What is kept of the patterns


def _look(subject: Subject, scene: Scene, parts: Sequence[Part], chosen: Head) -> None:
    """Lets the model read, and keeps of each layer's pattern what is drawn."""
    room = EXACT

    def keep(part: Part, layer: int, pattern: Tensor) -> None:
        nonlocal room
        part.maps.append(small(pattern))
        for head, weights in enumerate(pattern, 1):
            mine = (part.name, layer, head) == chosen
            if mine or room > 2 * weights.numel():    # bytes, if half of it is enough
                held = below_diagonal(weights)
                part.exact.append({"layer": layer, "head": head, "weights": pack(held)})
                room -= 0 if mine else 4 * held.numel()

    places = {tap: (part, layer) for part in parts for layer, tap in enumerate(part.taps, 1)}
    _passing(subject, scene.act, {tap: partial(keep, *place) for tap, place in places.items()})


def _passing(subject: Subject, act: Callable[[], Any], looks: Mapping[str, Callable[[Tensor], None]]) -> None:
    """Calls each look with the (H, T, C) pattern that passes through its tap, and holds none of them."""

    def look(name: str, pattern: Tensor) -> None:
        looks[name](pattern[0].cpu())

    model = subject.model
    with torch.no_grad(), eval_mode(model), watch(model, *looks, callback=look):
        act()


def small(pattern: Tensor) -> Tensor:
    """(H, T, C) -> (H, at most SMALL, at most SMALL) bytes: 255 √(the largest weight of a neighbourhood)."""
    shape = [min(size, SMALL) for size in pattern.shape[1:]]
    return (255 * adaptive_max_pool2d(pattern.float(), shape).sqrt()).round().byte()


def below_diagonal(weights: Tensor) -> Tensor:
    """(T, C), or (T (T + 1) / 2,) without the other half where nobody looks ahead."""
    square = weights.shape[0] == weights.shape[1]
    if not square or weights.triu(1).any():
        return weights
    rows, columns = torch.tril_indices(*weights.shape)
    return weights[rows, columns]


VIEW = View(
    "attention", "Attention",
    "Every head of every layer, small; choose one to see how much each token takes of each other.",
    fits, make,
)
