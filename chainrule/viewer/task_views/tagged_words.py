"""Tagging on a page: the words of a sentence, their true tags where the text has them, and p(tag) of each word.

    the cow eats            words                      the/DET cow/NOUN eats/VERB      words with their tags
    the⇥DET                 a word and its tag on a line, or CoNLL-U

Shapes: T words, K tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.forward import device_of, eval_mode
from chainrule.model import Batch
from chainrule.tasks.conllu import CONLLU, FORM, Tagged
from chainrule.text.tables import Place
from chainrule.viewer.subject import TAB, Subject, first_line

LIMIT = 60          # words that are shown
SLASH = "/"
PLACE = Place("text", 1)


@dataclass(frozen=True)
class Sentence:
    words: list[str]
    truth: list[int] | None          # the number of each word's tag, -1: no tag that the model knows; None: not given
    left_out: int = 0                # words after these


def read_sentence(subject: Subject, text: str) -> Sentence:
    """The first sentence of a text."""
    words, tags = _columns(subject, text) if TAB in text else _slashed(subject, first_line(text).split())
    labels = {name: number for number, name in enumerate(subject.run.labels)}
    truth = None if tags is None else [labels.get(tag, -1) for tag in tags[:LIMIT]]
    return Sentence(words[:LIMIT], truth, max(0, len(words) - LIMIT))


def cut_note(count: int, unit: str) -> dict[str, Any]:
    """What a page says of the end of a long text that is not read."""
    return {"input": {"note": f"The last {count:,} {unit} of the text are left out."}} if count else {}


def _columns(subject: Subject, text: str) -> tuple[list[str], list[str]]:
    """The rows up to the first empty line: CoNLL-U, or a word and, last, its tag."""
    rows = []
    for line in text.strip("\n").splitlines():
        if not line.strip():
            break
        if TAB in line:
            rows.append(line.rstrip().split(TAB))
    tag = getattr(subject.run.recipe.text, "tag", "upos").lower()
    if all(len(row) == len(CONLLU) for row in rows):
        column = CONLLU.index(tag) if tag in CONLLU else CONLLU.index("upos")
        words = [row for row in rows if row[0].isdecimal()]
        return [row[FORM] for row in words], [row[column] for row in words]
    return [row[0] for row in rows], [row[-1] for row in rows]


def _slashed(subject: Subject, tokens: list[str]) -> tuple[list[str], list[str] | None]:
    """word/TAG, if every token ends with a tag that the model knows; else the tokens are words."""
    pairs = [token.rpartition(SLASH) for token in tokens]
    if tokens and all(word and tag in subject.run.labels for word, _, tag in pairs):
        return [word for word, _, _ in pairs], [tag for _, _, tag in pairs]
    return tokens, None


def encode_sentences(subject: Subject, sentences: Sequence[Sequence[str]]) -> Any:
    """As in training."""
    run = subject.run
    return subject.task.encode([Tagged(tuple(words), (), PLACE) for words in sentences],  # type: ignore[attr-defined]
                               run.recipe, run.tokenizer, run.labels)


def one_batch(subject: Subject, encoded: Any) -> Batch:
    """All encoded sentences as one batch on the model's device."""
    widths = [int(sizes.max()) for sizes in encoded.sizes]
    batch: Batch = encoded.batch(np.arange(len(encoded)), widths)
    return batch.to(device_of(subject.model))


@torch.no_grad()
def tag_probabilities(subject: Subject, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
    """(T, K) for each sentence: p(tag | the whole sentence) of its words."""
    for words in sentences:
        if not words:
            raise UserError("there is no word yet: type a sentence to see its tags.")
    encoded = encode_sentences(subject, sentences)
    with eval_mode(subject.model):
        rows = subject.model(one_batch(subject, encoded)).double().softmax(-1).cpu()
    return [row[np.asarray(encoded.places[number])] for number, row in enumerate(rows)]
