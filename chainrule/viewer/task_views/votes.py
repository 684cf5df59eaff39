"""Votes for a class: p(class) as the text is read token by token, without each token, and by the gradient.

    read so far     p(class | 0 w_1 … w_t E)                    after each token
    left out        log p(class | all) − log p(class | all but w_t)     positive: the token speaks for the class
    gradient        |∂ log p(class) / ∂x_t|                     how much the token's embedding matters (saliency)

A reward model has one number in place of classes, and its differences are those of the reward.

Shapes: T tokens, R rows that are read, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.inference.analysis.gradients import gradients_by_time
from chainrule.inference.forward import device_of, eval_mode
from chainrule.model import BOUNDARY, Batch
from chainrule.tasks.classify import EXTRACT, Labelled
from chainrule.text.tables import Place
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import TAB, Subject
from chainrule.viewer.task_views.tagged_words import cut_note
from chainrule.viewer.views import Options, View

LIMIT = 96           # tokens of the text that are shown
AT_ONCE = 1 << 13    # tokens of one call
PLACE = Place("text", 1)
REWARD = "reward"


@dataclass(frozen=True)
class Row:
    """A text as the classifier reads it."""

    ids: list[int]
    text: list[int]           # places of the tokens that are words of the text
    end: list[int]            # ids that end every row
    truth: str | None         # the class after a tab, where the text has one
    left_out: int = 0


def rewards(subject: Subject) -> bool:
    return subject.task.name == "reward"


def _fits(subject: Subject) -> bool:
    return subject.classifies or rewards(subject)


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    row = read_row(subject, text)
    whole, prefixes, without = votes(subject, row)
    return {
        "name": subject.name,
        "classes": list(subject.run.labels) or [REWARD],
        "reward": rewards(subject),
        "truth": row.truth,
        "tokens": subject.show([row.ids[place] for place in row.text]),
        "apart": subject.run.tokenizer.lines,           # whether words stand apart, and spaces are no tokens
        "whole": pack_array(whole),                     # (C,) log p, or the reward
        "prefixes": pack_array(prefixes),               # (T + 1, C) first of no token at all
        "without": pack_array(without),                 # (T, C)
        "gradient": saliency(subject, row, whole),      # T norms for each class; None: it has no gradient
    } | cut_note(row.left_out, "tokens")


def read_row(subject: Subject, text: str) -> Row:
    """The tokens as in training, of at most LIMIT words of the text: the beginning."""
    if rewards(subject):
        read = subject.read(text, 1 << 20).tokens[0, 1:].tolist()
        room = _room(subject, 2)
        ids = [BOUNDARY, *read[:room], BOUNDARY]
        return Row(ids, list(range(1, len(ids) - 1)), [BOUNDARY], None, max(0, len(read) - room))
    tokenizer, labels = subject.run.tokenizer, subject.run.labels
    parts = [" ".join(part.split()) for part in text.split(TAB)]
    truth = parts.pop() if len(parts) > 1 and parts[-1] in labels else None
    special = {BOUNDARY, *(tokenizer.id(name) for name in subject.task.special_tokens)}  # type: ignore[attr-defined]
    left_out, room = 0, _room(subject, 1 + len(parts[:2]))
    for number, part in enumerate(parts[:2]):
        tokens = tokenizer.encode(part).tolist()
        share = max(1, room // len(parts[:2]))
        left_out += max(0, len(tokens) - share)
        parts[number] = tokenizer.decode(tokens[:share]) if len(tokens) > share else part
    example = Labelled(tuple(parts[:2]), None, PLACE)
    encoded = subject.task.encode([example], subject.run.recipe, tokenizer, labels)  # type: ignore[attr-defined]
    ids = encoded.rows[0].tolist()
    extract = tokenizer.id(EXTRACT)
    end = [extract] if extract is not None and ids[-1] == extract else []
    return Row(ids, [place for place, token in enumerate(ids) if token not in special], end, truth, left_out)


def _room(subject: Subject, special: int) -> int:
    return min(LIMIT, (getattr(subject.model, "context", None) or getattr(subject.body, "context", None) or 1 << 20)
               - special)


def votes(subject: Subject, row: Row) -> tuple[Tensor, Tensor, Tensor]:
    """(C,) of the whole text; (T + 1, C) of what was read up to each token; (T, C) without each token."""
    until = [[*row.ids[: place + 1], *row.end] for place in row.text]
    prefixes = [[row.ids[0], *row.end], *until]
    shorter = [row.ids[:place] + row.ids[place + 1 :] for place in row.text]
    found = class_scores(subject, [row.ids, *prefixes, *shorter])
    return found[0], found[1 : 1 + len(prefixes)], found[1 + len(prefixes) :]


@torch.no_grad()
def class_scores(subject: Subject, rows: Sequence[Sequence[int]]) -> Tensor:
    """(R, C): log p(class) of each row of tokens; of a reward model its reward."""
    size = max(1, AT_ONCE // max(map(len, rows)))
    with eval_mode(subject.model):
        parts = [_scores(subject, padded(rows[at : at + size])) for at in range(0, len(rows), size)]
    return torch.cat(parts)


def _scores(subject: Subject, batch: Batch) -> Tensor:
    answers: Tensor = subject.model(batch.to(device_of(subject.model))).double().cpu()
    return answers[:, None] if answers.dim() == 1 else answers.log_softmax(-1).nan_to_num(nan=-1e4, neginf=-1e4)


def padded(rows: Sequence[Sequence[int]], target: int = 0) -> Batch:
    lengths = [len(row) for row in rows]
    tokens: NDArray[np.int64] = np.full((len(rows), max(lengths)), BOUNDARY, np.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    targets = torch.full((len(rows),), target)
    return Batch(torch.from_numpy(tokens), targets, torch.tensor(lengths))


def saliency(subject: Subject, row: Row, whole: Tensor) -> list[list[float]] | None:
    """For each class the norm of its gradient at each token's embedding; None: the model is trained by counting."""
    if rewards(subject) or subject.model.learns_by != "gradient" or not row.text:
        return None
    found = []
    for number in range(len(whole)):
        batch = padded([row.ids], number).to(device_of(subject.model))
        with eval_mode(subject.model):
            norms = gradients_by_time(subject.model, batch)[::-1]
        found.append([norms[place] for place in row.text])
    return found


VIEW = View(
    "votes", "Votes of the tokens",
    "How each token speaks for a class: the probability as the text is read, the change when the token is left out, "
    "and the gradient at its embedding.",
    _fits, _make, needs="a classifier (--task classify) or a reward model",
)
