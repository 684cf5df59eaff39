"""Attention patterns: every head of every layer as a small map, and one head in full, between the tokens of a text.

    X' = softmax(Q Kᵀ / √d_k + M) V        the softmax is drawn: row t has the weights with which token t attends

A small map has the largest weight of each neighbourhood, in one byte. The chosen head is exact, and as many others as
a page should hold. Patterns are reduced as they are computed: all of them might not fit in memory.

Shapes: T queries, C keys, H heads, L layers.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from chainrule.errors import UserError
from chainrule.inference.analysis.head_scores import TITLES, HeadScores, score_heads
from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.forward import eval_mode, on_device
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.model import BOUNDARY, watch
from chainrule.tasks.classify import EXTRACT
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.unit import visible
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, Table, View

LIMIT = 1024          # tokens that are drawn
SMALL = 64            # pixels of a small map, at most
EXACT = 1_000_000     # bytes of exact heads beside the chosen one, at most; base64 takes a third more
WRITTEN = 12          # tokens by which the model continues the text, by default
ANSWER = 128          # tokens that it generates from a source, at most

Head: TypeAlias = tuple[str, int, int]
"""The name of a part, the numbers of a layer and of a head in it, from 1."""


def _fits(subject: Subject) -> bool:
    reads = subject.continues_text or subject.reads_source or subject.encodes_text
    return subject.has("pattern") and reads and getattr(subject.model, "char_cnn", None) is None


@dataclass(frozen=True)
class TokenRow:
    """Tokens that attend, or that are attended to."""

    tokens: list[int]
    written: int | None = None     # index of the first token that the model generated itself


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass: the call that runs it, and the tokens in it."""

    run: Callable[[], Any]
    texts: dict[str, TokenRow]
    left_out: int = 0              # tokens of the text before these
    cut: int = 0                   # tokens of the source after these


@dataclass
class Part:
    """The layers of one stack, and what is kept of their patterns."""

    name: str
    taps: list[str]
    queries: str                   # names of texts
    keys: str
    heads: int
    size: int                      # d_k
    qkv: bool = True               # whether queries, keys and values are maps of x, and not x itself
    scaled: bool = True            # whether scores are divided by √d_k
    compressed: list[int] = field(default_factory=list)           # numbers of the layers with a key for several tokens
    stride: int | None = None      # tokens of such a key
    maps: list[Tensor] = field(default_factory=list)              # of each layer: (H, at most SMALL, at most SMALL)
    exact: list[dict[str, Any]] = field(default_factory=list)


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    forward = _forward(subject, text, options)
    parts = _parts(subject)
    chosen = _chosen(parts, options)
    _collect_patterns(subject, forward, parts, chosen)
    return {
        "name": subject.name,
        "left_out": forward.left_out,
        "cut": forward.cut,
        "continues": subject.continues_text,
        "asked": {"tokens": _number(options, "tokens", WRITTEN), "seed": _number(options, "seed", 1)},
        "chosen": dict(zip(("part", "layer", "head"), chosen)),
        "texts": {name: _row_json(subject, row) for name, row in forward.texts.items()},
        "parts": [_part_json(part) for part in parts],
        "titles": TITLES,
        "scores": [head.as_dict() for head in _scores(subject, forward)],
    }


def _scores(subject: Subject, forward: ForwardPass) -> list[HeadScores]:
    """Of the heads of a model that reads one text; none for those that read a source, or too short a text."""
    tokens = forward.texts["text"].tokens
    if subject.reads_source or len(tokens) < 2:
        return []
    model, taps = subject.model, subject.taps("pattern")

    def read(rows: Tensor) -> Any:
        return model.step(rows, model.start(len(rows))) if subject.continues_text else subject.body.encode(rows)

    return score_heads(model, subject.run.tokenizer, read, taps, tokens, getattr(model, "context", None))


def _table(subjects: Sequence[Subject], text: str, options: Options) -> Table:
    """The score of each head, and the name of those that have one."""
    forward = _forward(subjects[0], text, {"tokens": "0", **options})
    heads = _scores(subjects[0], forward)
    if not heads:
        raise UserError(f"{subjects[0].name}: heads are named for models that read one text, of one token or more.")
    lines = ["layer head  " + " ".join(f"{name:>10}" for name in TITLES)]
    for head in heads:
        scores = " ".join(f"{'–' if score is None else f'{score:.3f}':>10}" for score in head.scores.values())
        lines.append(f"{head.layer:>5} {head.head:>4}  {scores}  {head.name or ''}".rstrip())
    return Table(lines, {"heads": [head.as_dict() for head in heads]})


def _part_json(part: Part) -> dict[str, Any]:
    maps = torch.stack(part.maps)                                                    # (L, H, …)
    return {
        "name": part.name, "queries": part.queries, "keys": part.keys, "size": part.size,
        "layers": len(part.taps), "heads": part.heads, "maps": pack_array(maps.numpy(), "uint8"), "exact": part.exact,
        "qkv": part.qkv, "scaled": part.scaled, "compressed": part.compressed, "stride": part.stride,
    }


def _row_json(subject: Subject, row: TokenRow) -> dict[str, Any]:
    words = word_spans(subject.run.tokenizer, row.tokens)
    return {"shown": subject.show(row.tokens), "written": row.written, "words": words}


# The forward pass


def _forward(subject: Subject, text: str, options: Options) -> ForwardPass:
    if subject.continues_text:
        return _continuation(subject, text, _number(options, "tokens", WRITTEN), _number(options, "seed", 1))
    if not subject.reads_source:
        return _encoding(subject, text)
    apart = any(".cross." in tap for tap in subject.taps("pattern"))
    return _from_source(subject, text) if apart else _source_in_context(subject, text)


def _continuation(subject: Subject, text: str, more: int, seed: int) -> ForwardPass:
    """The end of the text, and `more` tokens that the model samples after it."""
    model, limit = subject.model, min(LIMIT, subject.model.context or LIMIT)
    more = min(more, limit // 2)
    read = subject.read(text, limit - more)
    given = read.tokens[0].tolist()
    ends = subject.run.tokenizer.boundary == "document"
    columns = sample(model, [np.array(given[1:], np.int64)], more, Sampling(seed=seed), ends=ends)
    tokens = given + [int(column) for column in columns]
    row = on_device(model, np.array([tokens]))
    return ForwardPass(lambda: model.step(row, model.start(1)), {"text": TokenRow(tokens, len(given))}, read.left_out)


def _from_source(subject: Subject, text: str) -> ForwardPass:
    """A source, and the best text from it by beam search: encoder and decoder."""
    model, source = subject.model, subject.read_source(text, LIMIT)
    found = beam_search(model, Beam(limit=ANSWER), source=source.tokens)[0]
    tokens = [BOUNDARY, *found.texts[0].tokens]
    row = on_device(model, np.array([tokens]))
    texts = {"source": TokenRow(source.tokens[0].tolist()), "text": TokenRow(tokens, 1)}
    return ForwardPass(lambda: model.step(row, model.start(1, source.tokens)), texts, cut=source.left_out)


def _source_in_context(subject: Subject, text: str) -> ForwardPass:
    """A source, and the best text from it, by a decoder that has both in one context."""
    model, source = subject.model, subject.read_source(text, min(LIMIT, subject.model.context) // 2)
    found = beam_search(model, Beam(limit=ANSWER), source=source.tokens)[0]
    given = [BOUNDARY, *source.tokens[0, :-1].tolist()]
    tokens = [*given, BOUNDARY, *found.texts[0].tokens]
    row = on_device(model, np.array([tokens]))
    texts = {"text": TokenRow(tokens, len(given))}
    return ForwardPass(lambda: model.step(row, model.start(1)), texts, cut=source.left_out)


def _encoding(subject: Subject, text: str) -> ForwardPass:
    """A text that is encoded: bidirectionally, or for a label, whose token stands at the end."""
    end = [token] if (token := subject.run.tokenizer.id(EXTRACT)) is not None else []
    read = subject.read(text, min(LIMIT, subject.model.context or LIMIT) - len(end))
    tokens = read.tokens[0].tolist() + end
    row = on_device(subject.model, np.array([tokens]))
    return ForwardPass(lambda: subject.body.encode(row), {"text": TokenRow(tokens)}, read.left_out)


# The stacks, and the chosen head


def _parts(subject: Subject) -> list[Part]:
    """Layers whose paths differ only in their number are one part; its name says which tokens attend to which."""
    alike: dict[str, list[str]] = {}
    for tap in subject.taps("pattern"):
        alike.setdefault(re.sub(r"\.\d+\.", ".", tap), []).append(tap)
    parts = [_part(subject, paths) for paths in alike.values()]
    return sorted(parts, key=lambda part: (part.queries == "text", part.keys == "source"))


def _part(subject: Subject, paths: list[str]) -> Part:
    layers: list[Any] = [subject.model.get_submodule(path.rpartition(".")[0]) for path in paths]
    first, scaled = layers[0], layers[0].scale is None
    if ".cross." in paths[0]:
        return Part("cross", paths, "text", "source", first.heads, first.head_size, scaled=scaled)
    compressed = [number for number, layer in enumerate(layers, 1) if layer.kind == "compressed"]
    stride = layers[compressed[0] - 1].stride if compressed else None
    side = "source" if paths[0].startswith("encoder.") else "text"
    return Part(
        side, paths, side, side, first.heads, first.head_size, first.project is not None, scaled, compressed, stride
    )


def _chosen(parts: Sequence[Part], options: Options) -> Head:
    """A number that is too large means the last: the address may come from a run with more layers."""
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
        raise UserError(f"{name}={given} is not a whole number of at least 0.")
    return int(given) if given else otherwise


# What is kept of the patterns


def _collect_patterns(subject: Subject, forward: ForwardPass, parts: Sequence[Part], chosen: Head) -> None:
    """Runs the forward pass, and keeps of each layer's pattern what is drawn."""
    left, places = EXACT, {tap: (part, layer) for part in parts for layer, tap in enumerate(part.taps, 1)}

    def keep(tap: str, pattern: Tensor) -> None:
        nonlocal left
        (part, layer), pattern = places[tap], pattern[0].cpu()        # (H, T, C)
        part.maps.append(small_map(pattern))
        for head, weights in enumerate(pattern, 1):
            is_chosen = (part.name, layer, head) == chosen
            if is_chosen or left > 2 * weights.numel():               # bytes, if its lower triangle is enough
                exact = lower_triangle(weights)
                part.exact.append({"layer": layer, "head": head, "weights": pack_array(exact, digits=13)})
                left -= 0 if is_chosen else 4 * exact.numel()

    with torch.no_grad(), eval_mode(subject.model), watch(subject.model, *places, callback=keep):
        forward.run()


def small_map(pattern: Tensor) -> Tensor:
    """(H, T, C) -> (H, at most SMALL, at most SMALL) bytes: 255 √(the largest weight of a neighbourhood)."""
    shape = [min(size, SMALL) for size in pattern.shape[1:]]
    return (255 * adaptive_max_pool2d(pattern.float(), shape).sqrt()).round().byte()


def lower_triangle(weights: Tensor) -> Tensor:
    """(T, C), or (T (T + 1) / 2,) without the upper half if the pattern is causal."""
    square = weights.shape[0] == weights.shape[1]
    if not square or weights.triu(1).any():
        return weights
    rows, columns = torch.tril_indices(*weights.shape)
    return weights[rows, columns]


def word_spans(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[tuple[int, str]]:
    """The words that the tokens spell, in order: the number of tokens of each, and its text.

    A word continues from one letter or digit to the next; the bytes of one character (an emoji) stay together.
    """
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


VIEW = View(
    "attention", "Attention",
    "Every head of every layer is a small map; choose one to see how much each token attends to each other.",
    _fits, _make, table=_table, needs="a model with attention, such as a gpt, an encoder or a transformer",
)
