"""How well a model labels examples: their classes, or the tags of their words, with all the numbers people cite."""

import math
from collections.abc import Container, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import out_of_memory
from chainrule.inference.beam import Beam, ScoredText
from chainrule.inference.evaluate import count_parameters, why_no_answer
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.mbr import MinimumBayesRisk
from chainrule.inference.metrics import measure_classes, measure_tags
from chainrule.model import IGNORE, Batch, Model
from chainrule.progress import bar, say, track
from chainrule.tasks.buckets import Buckets
from chainrule.tasks.corpus_of_examples import ExampleSplit
from chainrule.tasks.examples import Tagged
from chainrule.tasks.padding import Examples
from chainrule.text.tokenizers.tokenizer import Tokenizer

# What a model answers to examples: the class of each text, the tag of each word, the text for each source.
#
# Written against the models' two promises: `forward(batch)` of those that label, `start` and `step` of those that
# write.
#
# Shapes: N examples, B rows, T tokens, C labels.

How: TypeAlias = Beam | MinimumBayesRisk             # how texts are written

TOKENS = {"cpu": 1 << 12, "cuda": 1 << 16}    # read at a time
ROWS = 64                                     # sources for which texts are written at a time,
TEXTS = 1024                                  # and texts, at most, unless one source has more


def buckets(model: Any, examples: Examples) -> Buckets:
    """As much at a time as is good where the model is."""
    return Buckets(examples, seed=0, tokens=TOKENS.get(device_of(model).type, TOKENS["cpu"]))


def batches(model: Model, examples: Examples, title: str) -> Iterator[tuple[Any, Batch]]:
    """Which examples, and they as a batch where the model is."""
    device: Any = device_of(model)
    with bar(title, len(examples), "examples") as advance:
        for ids, batch in buckets(model, examples).every():
            yield ids, batch.to(device)
            advance(len(ids))


@torch.inference_mode()
def nats_by_batch(model: Any, order: Any, part: int = 0, parts: int = 1) -> Iterator[tuple[float, int]]:
    """-log p of the answers in each batch of an epoch, and how many they are.

    Batches can be shared out: these are then one part of several. All of them read as often, for ranks that have shares
    of the weights make them whole together: where there is no batch left, the last is read again and counts nothing.
    """
    device, steps = device_of(model), math.ceil(order.epoch)
    turns = -(-steps // parts)
    with eval_mode(model):
        for turn in track(range(turns), "scoring", turns, "batches"):
            step = turn * parts + part
            nats, count, *_ = model.loss(order.at(min(step, steps - 1)).to(device))
            yield (float(nats), int(count)) if step < steps else (0.0, 0)


@torch.inference_mode()
def label(model: Any, examples: Examples) -> NDArray[np.float64]:
    """(N, C): how likely each class is."""
    rows: dict[int, Any] = {}
    with eval_mode(model):
        for ids, batch in batches(model, examples, "classifying"):
            probs = model(batch).double().softmax(-1).cpu().numpy()
            rows |= dict(zip(ids.tolist(), probs))
    return np.stack([rows[number] for number in range(len(examples))])


@torch.inference_mode()
def tag(model: Any, examples: Any) -> list[NDArray[np.int64]]:
    """The tag of each word of each sentence."""
    rows: dict[int, Any] = {}
    with eval_mode(model):
        for ids, batch in batches(model, examples, "tagging"):
            told = model(batch).argmax(-1).cpu().numpy()
            rows |= {number: row[examples.places[number]] for number, row in zip(ids.tolist(), told)}
    return [rows[number] for number in range(len(examples))]


def write(model: Any, examples: Any, tokenizer: Tokenizer, how: How) -> list[list[ScoredText]]:
    """For each source the best texts, best first, with their scores."""
    found: dict[int, list[ScoredText]] = {}
    order = Buckets(examples, seed=0, tokens=1 << 30, rows=ROWS)
    at_once = max(1, min(ROWS, TEXTS // how.rows))
    with bar("writing", len(examples), "texts") as advance:
        for ids, batch in order.every():
            answers, at_once = _written(model, batch, ids.tolist(), tokenizer, how, at_once)
            found |= zip(ids.tolist(), answers, strict=True)
            advance(len(ids))
    return [found[number] for number in range(len(examples))]


def _written(
    model: Any, batch: Batch, ids: Sequence[int], tokenizer: Tokenizer, how: How, at_once: int
) -> tuple[list[list[ScoredText]], int]:
    """The answers to all rows, so many at a time, and how many that was in the end: fewer where memory ran out."""
    answers: list[list[ScoredText]] = []
    while len(answers) < len(batch.tokens):
        here = slice(len(answers), len(answers) + at_once)
        try:
            answers += how.texts(model, batch.rows(here), ids[here], tokenizer.decode)
        except Exception as error:
            if at_once == 1 or not out_of_memory(error):
                raise
            at_once //= 2
        else:
            continue
        torch.cuda.empty_cache()                            # when the error no longer holds what was being made
        say(f"out of memory: from here on {at_once} texts at a time.")
    return answers, at_once


def first_texts(written: Sequence[Sequence[ScoredText]]) -> list[str]:
    return [texts[0][0] if texts else "" for texts in written]


IMPOSSIBLE = "the model gives a text probability 0 in every class"
UNLIKELY = "the model gives the class of a text probability 0, so its surprise is infinite"


def measure_labels(
    model: Any, split: ExampleSplit, labels: Sequence[str], known: Container[str] = ()
) -> dict[str, Any]:
    """Of classes, or of tags; `known`: the words that training saw."""
    if isinstance(split.examples[0], Tagged):
        return _measure_tags(model, split, labels, known)
    truth = cast(Any, split.encoded).targets
    here = truth != IGNORE
    probs, truth = label(model, split.encoded)[here], truth[here]
    answered = np.isfinite(probs).all(1)
    told = np.where(answered, probs.argmax(1), (truth + 1) % len(labels))    # no answer is a wrong one
    facts = {**measure_classes(truth, told, labels).as_dict(), "parameters": count_parameters(model)}
    with np.errstate(divide="ignore"):
        nats = float(-np.log(probs[np.arange(len(probs)), truth]).mean())
    if math.isfinite(nats):
        return facts | {"nats": nats}
    why = UNLIKELY if answered.all() else why_no_answer(model, f"{IMPOSSIBLE}, which counts as wrong")
    return facts | {"nats": None, "why": why}


def _measure_tags(model: Any, split: ExampleSplit, labels: Sequence[str], known: Container[str]) -> dict[str, Any]:
    encoded = cast(Any, split.encoded)
    seen = [np.array([word in known for word in words], bool) for words in encoded.words]
    result = measure_tags(list(encoded.targets), tag(model, encoded), labels, seen)
    return {**result.as_dict(), "parameters": count_parameters(model)}


def seen_words(split: ExampleSplit) -> set[str]:
    """The words of tagged examples; of others none, since nobody asks."""
    tagged = (example for example in split.examples if isinstance(example, Tagged))
    return {word for example in tagged for word in example.words}
