"""How well a model labels examples: their classes, or the tags of their words, with all the numbers people cite."""

import math
from collections.abc import Container, Sequence
from typing import Any, cast

import numpy as np

from chainrule.model import UNCOUNTED
from chainrule.text.example_corpus import ExampleSplit
from chainrule.text.examples import Tagged
from chainrule.use.answers import label, tag
from chainrule.use.evaluate import count_parameters, why_no_answer
from chainrule.use.metrics import measure_classes, measure_tags

IMPOSSIBLE = "the model gives a text probability 0 in every class"
UNLIKELY = "the model gives the class of a text probability 0, so its surprise is infinite"


def measure_labels(
    model: Any, split: ExampleSplit, labels: Sequence[str], known: Container[str] = ()
) -> dict[str, Any]:
    """Of classes, or of tags; `known`: the words that training saw."""
    if isinstance(split.examples[0], Tagged):
        return _measure_tags(model, split, labels, known)
    truth = cast(Any, split.encoded).targets
    here = truth != UNCOUNTED
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
