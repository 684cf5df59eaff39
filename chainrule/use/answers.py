"""What a model answers to examples: the class of each text, the tag of each word, the text for each source.

Written against the models' two promises: `forward(batch)` of those that label, `start` and `step` of those that write.

Shapes: N examples, B rows, T tokens, C labels.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import out_of_memory
from chainrule.model import Batch, Model
from chainrule.progress import bar, say
from chainrule.text.buckets import Buckets
from chainrule.text.encoded import Examples
from chainrule.text.tokenizer import Tokenizer
from chainrule.use.beam import Beam, Found, search
from chainrule.use.reading import at_rest, device_of

TOKENS = {"cpu": 1 << 12, "cuda": 1 << 16}    # read at a time
ROWS = 64                                     # sources for which texts are written at a time


def batches(model: Model, examples: Examples, title: str, part: int = 0, parts: int = 1) -> Iterator[tuple[Any, Batch]]:
    """Which examples, and they as a batch where the model is; of every `parts` batches one."""
    device: Any = device_of(model)  # type: ignore[arg-type]
    order = Buckets(examples, seed=0, tokens=TOKENS.get(device.type, TOKENS["cpu"]))
    with bar(title, len(examples), "examples") as advance:
        for number, (ids, batch) in enumerate(order.every()):
            if number % parts == part:
                yield ids, batch.to(device)
            advance(len(ids))


@torch.inference_mode()
def nats_of_examples(model: Any, examples: Examples, part: int = 0, parts: int = 1) -> tuple[float, int]:
    """-log p of all answers, and how many there are."""
    nats, count = [], 0
    with at_rest(model):
        for _, batch in batches(model, examples, "scoring", part, parts):
            total, counted, *_ = model.nats(batch)
            nats.append(float(total))
            count += int(counted)
    return math.fsum(nats), count


@torch.inference_mode()
def label(model: Any, examples: Examples) -> NDArray[np.float64]:
    """(N, C): how likely each class is."""
    rows: dict[int, Any] = {}
    with at_rest(model):
        for ids, batch in batches(model, examples, "classifying"):
            probs = model(batch).double().softmax(-1).cpu().numpy()
            rows |= dict(zip(ids.tolist(), probs))
    return np.stack([rows[number] for number in range(len(examples))])


@torch.inference_mode()
def tag(model: Any, examples: Any) -> list[NDArray[np.int64]]:
    """The tag of each word of each sentence."""
    rows: dict[int, Any] = {}
    with at_rest(model):
        for ids, batch in batches(model, examples, "tagging"):
            told = model(batch).argmax(-1).cpu().numpy()
            rows |= {number: row[examples.places[number]] for number, row in zip(ids.tolist(), told)}
    return [rows[number] for number in range(len(examples))]


def write(model: Any, examples: Any, tokenizer: Tokenizer, beam: Beam) -> list[list[tuple[str, float]]]:
    """For each source the best texts, best first, with their scores."""
    found: dict[int, list[tuple[str, float]]] = {}
    order = Buckets(examples, seed=0, tokens=1 << 30, rows=ROWS)
    at_once = ROWS
    with bar("writing", len(examples), "texts") as advance:
        for ids, batch in order.every():
            answers, at_once = _search(model, batch, beam, at_once)
            for number, answer in zip(ids.tolist(), answers, strict=True):
                found[number] = [(tokenizer.decode(text.tokens), text.score) for text in answer.texts]
            advance(len(ids))
    return [found[number] for number in range(len(examples))]


def _search(model: Any, batch: Batch, beam: Beam, at_once: int) -> tuple[list[Found], int]:
    """The answers to all rows, so many at a time, and how many that was in the end: fewer where memory ran out."""
    answers: list[Found] = []
    while len(answers) < len(batch.tokens):
        some = batch.rows(slice(len(answers), len(answers) + at_once))
        try:
            answers += search(model, beam, source=some.source, lengths=some.source_lengths)
        except Exception as error:
            if at_once == 1 or not out_of_memory(error):
                raise
            at_once //= 2
        else:
            continue
        torch.cuda.empty_cache()                            # when the error no longer holds what was being made
        say(f"out of memory: from here on {at_once} texts at a time.")
    return answers, at_once


def first_texts(written: Sequence[Sequence[tuple[str, float]]]) -> list[str]:
    return [texts[0][0] if texts else "" for texts in written]
