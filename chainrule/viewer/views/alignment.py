"""Alignment: the attention of every generated token to the tokens of the source, and the beam search that found them.

    α_t = softmax(e_t);   c_t = Σ_i α_ti h_i        row t of the map: the weights before token t was generated

Every text that the beam finished can be chosen. A Transformer has such a map for each head of each layer; the page
draws their mean, or one of them.

Shapes: T generated tokens and their end, S source tokens and their end, L layers, H heads.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.beam import Beam, Branch, Hypothesis, beam_search
from chainrule.inference.forward import on_device
from chainrule.model import BOUNDARY
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject, TokenizedText, first_line
from chainrule.viewer.views import Options, View

SOURCE, TEXT = 96, 96      # tokens of a source, and of a generated text, at most
WIDEST = 12                # hypotheses that a tree can show side by side
TEXTS = 10                 # finished texts whose maps are shown, at most
MEANS = HEADS = 500_000    # bytes of mean maps, and of maps of single heads; the best text always has its mean

Tree = Sequence[Sequence[Branch]]


@dataclass(frozen=True)
class Finished:
    """A finished text, by the place of its end in the tree."""

    step: int
    place: int
    tokens: tuple[int, ...]       # without boundaries
    log_prob: float
    score: float                  # length-normalised; texts are ranked by it


def _fits(subject: Subject) -> bool:
    return subject.reads_source and bool(_taps(subject))


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject, beam = subjects[0], _beam(options)
    source = subject.read_source(text, SOURCE)
    found = beam_search(subject.model, beam, source=source.tokens, tree=True)[0]
    tree = found.tree or ()
    texts = rank_texts(tree, beam, found.texts)[:TEXTS]
    maps = [_maps(subject, source, one.tokens) for one in texts]                      # each (L, H, T, S)
    sizes = np.cumsum([4 * one.numel() for one in maps])
    kept = max(1, int((sizes <= MEANS * maps[0].shape[1]).sum()))
    return {
        "name": subject.name,
        "cut": source.left_out,
        "lines": sum(1 for line in text.splitlines() if line.strip()) - bool(first_line(text)),
        "source": source.shown,
        "beam": {"width": beam.width, "alpha": beam.alpha},
        "tree": [[_node(subject, branch, step, tree) for branch in branches] for step, branches in enumerate(tree)],
        "texts": [_text_json(subject, *each) for each in zip(texts[:kept], maps, (sizes <= HEADS).tolist())],
        "layers": maps[0].shape[0], "heads": maps[0].shape[1],
    }


def _beam(options: Options) -> Beam:
    width, alpha = options.get("width") or f"{Beam.width}", options.get("alpha") or f"{Beam.alpha}"
    try:
        paths, power = int(width), float(alpha)
    except ValueError:
        raise UserError(f"width={width} alpha={alpha}: a width is a whole number, alpha a number.") from None
    beam = Beam(paths, power, best=paths, limit=TEXT)
    if beam.width > WIDEST:
        raise UserError(f"width={width} is too wide to be drawn; at most {WIDEST}.")
    return beam


# The tree


def finished(tree: Tree, beam: Beam) -> Iterator[Finished]:
    for step, branches in enumerate(tree):
        for place, branch in enumerate(branches):
            if branch.token == BOUNDARY:
                tokens = tuple(tree[at][here].token for at, here in path(tree, step, place)[:-1])
                yield Finished(step, place, tokens, branch.score, branch.score / beam.length_penalty(step + 1))


def rank_texts(tree: Tree, beam: Beam, best: Sequence[Hypothesis]) -> list[Finished]:
    """Every finished text: the best ones in the order of the beam search, and the others by their scores."""
    ended = {one.tokens: one for one in finished(tree, beam)}
    first = [ended.pop(text.tokens) for text in best]
    return first + sorted(ended.values(), key=lambda one: -one.score)


def path(tree: Tree, step: int, place: int) -> list[tuple[int, int]]:
    """The places of all tokens from the first to this one."""
    places = [(step, place)]
    while step:
        place, step = tree[step][place].parent, step - 1
        places.append((step, place))
    return places[::-1]


def _node(subject: Subject, branch: Branch, step: int, tree: Tree) -> dict[str, Any]:
    before = tree[step - 1][branch.parent].score if step else 0.0
    return {
        "shown": subject.run.tokenizer.show(branch.token), "end": branch.token == BOUNDARY, "parent": branch.parent,
        "log_prob": branch.score, "own": branch.score - before,
    }


def _text_json(subject: Subject, one: Finished, maps: Tensor, heads: bool) -> dict[str, Any]:
    shown = [*subject.show(one.tokens), subject.run.tokenizer.show(BOUNDARY)]
    return {
        "step": one.step, "place": one.place, "shown": shown, "text": subject.run.tokenizer.decode(one.tokens),
        "log_prob": one.log_prob, "score": one.score, "means": pack_array(maps.mean(1)),
        "heads": pack_array(maps) if heads and maps.shape[1] > 1 else None,
    }


# The maps


def _taps(subject: Subject) -> list[str]:
    return subject.taps("alignment") or [tap for tap in subject.taps("pattern") if ".cross." in tap]


def _maps(subject: Subject, source: TokenizedText, tokens: Sequence[int]) -> Tensor:
    """(L, H, T, S): row t has the weights before token t was generated."""
    model, where = subject.model, _taps(subject)
    row = on_device(model, np.array([[BOUNDARY, *tokens]]))
    _, seen = subject.watched(lambda: model.step(row, model.start(1, source.tokens)), *where)
    size = math.prod(row.shape), source.tokens.shape[1]
    return torch.stack([seen[tap].float().cpu().view(-1, *size) for tap in where])


VIEW = View(
    "alignment", "Alignment",
    "The text is a source, from which the model generates. The map shows which source tokens each generated token "
    "attended to, the tree how the beam search found it.",
    _fits, _make,
    needs="a model that generates from a source text with attention, such as a seq2seq or a transformer",
)
