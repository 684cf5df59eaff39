"""In-context learning: p(the right answer) by the examples before it, and the loss where a random sequence is repeated.

    2 plus 3 is 5          each line of the text is an example: a question, and its answer, which is what follows the
    4 plus 1 is 5          last : = -> → or tab, or else the last word

The lines are read in their own order and in random ones; at each place the mean of p(answer) over the orders. No
weight changes, so what rises was learned from the prompt. Induction (Olsson et al. 2022): random tokens x1 … xn, then
the same again; a model that copies predicts the second copy. Layers are seen by the logit lens, heads by their pattern.

Shapes: B rows, T tokens, L layers, H heads.
"""

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.inference.analysis.head_scores import induction_score, patterns, repeated_rows
from chainrule.inference.forward import on_device
from chainrule.inference.score import score_texts, score_windows
from chainrule.inference.statistics import bootstrap_mean
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, View

MARKS = ("\t", "→", "->", "=", ":")    # between a question and its answer, where every line has one
LINES = 48             # examples that are shown, the last ones
TOKENS = 1024          # of them together, at most
ORDERS = 16            # in which they are read, the typed one among them,
BUDGET = 8192          # and tokens of all orders together, about
SEED = 1

Line = tuple[str, str]

_induction: WeakKeyDictionary[Any, dict[str, Any] | None] = WeakKeyDictionary()


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    lines = read_examples(text)
    kept = lines[-LINES:]
    return {
        "models": [_model(subject, kept) for subject in subjects],
        "left_out": len(lines) - len(kept), "left_out_of": "examples",
    }


def _model(subject: Subject, lines: Sequence[Line]) -> dict[str, Any]:
    if subject.model not in _induction:                    # the same for every text
        _induction[subject.model] = induction(subject)
    return {"name": subject.name, "kind": subject.run.recipe.kind, "examples": examples(subject, lines),
            "induction": _induction[subject.model]}


def read_examples(text: str) -> list[Line]:
    """The question and the answer of each line that has both."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    mark = next((mark for mark in MARKS if lines and all(mark in line for line in lines)), " ")
    answers = [line.rpartition(mark)[2].strip() for line in lines]
    return [(line.removesuffix(answer), answer) for line, answer in zip(lines, answers) if answer and line != answer]


# Examples


def examples(subject: Subject, lines: Sequence[Line]) -> dict[str, Any] | None:
    """p(answer) of each line as typed, and by the number of lines before it over all orders; None: no line has both."""
    lines = _fitting(subject, lines)
    if not lines:
        return None
    orders = orders_of(len(lines), max(1, min(ORDERS, BUDGET // (1 + len(_encode(subject, lines)[0])))))
    found = np.stack([answer_probabilities(subject, [lines[at] for at in order]) for order in orders])
    means = [bootstrap_mean(p) for p in found.T]
    return {
        "lines": [{"question": question, "answer": answer} for question, answer in lines],
        "typed": found[0].tolist(),                                # (examples,)
        "mean": [score.value for score in means], "low": [score.low for score in means],
        "high": [score.high for score in means], "orders": len(orders),
    }


def orders_of(lines: int, most: int) -> list[Sequence[int]]:
    """The typed order first, and random ones; all there are, where they are no more."""
    if math.factorial(min(lines, ORDERS)) <= most:
        return list(permutations(range(lines)))
    random = np.random.default_rng(SEED)
    return [range(lines), *(random.permutation(lines).tolist() for _ in range(most - 1))]


def _fitting(subject: Subject, lines: Sequence[Line]) -> Sequence[Line]:
    """The last lines that the context holds together."""
    room = min(TOKENS, (subject.model.context or TOKENS + 1) - 1)
    while lines and len(_encode(subject, lines)[0]) > room:
        lines = lines[1:]
    return lines


def _encode(subject: Subject, lines: Sequence[Line]) -> tuple[NDArray[np.integer], list[slice]]:
    """The tokens of the lines, and where those of the answers are."""
    text, places = "", []
    for question, answer in lines:
        text += question + answer
        places.append((len(text) - len(answer), len(text)))
        text += "\n"
    tokenizer = subject.run.tokenizer
    return tokenizer.encode(text[:-1]), [tokenizer.span(text, begin, end) for begin, end in places]


def answer_probabilities(subject: Subject, lines: Sequence[Line]) -> NDArray[np.float64]:
    """p of each answer, all its tokens, after the lines before it and its own question."""
    tokens, spans = _encode(subject, lines)
    (nats,) = score_texts(subject.model, [tokens])
    return np.exp([-nats[span].sum() for span in spans])


# Induction


def induction(subject: Subject) -> dict[str, Any] | None:
    """Bits by position of both copies, mean over sequences; after each layer and by head where there are some."""
    model = subject.model
    rows = repeated_rows(subject.run.tokenizer, model.context)
    if rows is None:
        return None
    bits = score_windows(model, rows) / math.log(2)                                    # (B, T)
    first, second = np.split(bits.mean(0), 2)
    return {
        "first": _finite(first), "second": _finite(second), "sequences": len(rows),
        "vocabulary": len(subject.run.tokenizer),
        "layers": _by_layer(subject, rows), "heads": _by_head(subject, rows),
    }


def _finite(numbers: NDArray[np.float64]) -> list[float | None]:
    return [float(number) if math.isfinite(number) else None for number in numbers]


@torch.no_grad()
def _by_layer(subject: Subject, rows: NDArray[np.int64]) -> list[float | None] | None:
    """Bits of the second copy after each layer, by the logit lens (views/lens.py)."""
    where = subject.taps("hidden")
    if not where or not hasattr(subject.model, "read_out"):
        return None
    tokens, half = on_device(subject.model, rows), rows.shape[1] // 2
    _, seen = subject.trace(tokens[:, :-1], *where)
    truth, found = tokens[:, half + 1 :], []
    for name in where:
        log_p = subject.model.read_out(seen[name][:, half:]).float().log_softmax(-1)
        found.append(-float(log_p.gather(-1, truth[..., None]).double().mean()) / math.log(2))
    return _finite(np.array(found))


def _by_head(subject: Subject, rows: NDArray[np.int64]) -> list[list[float]] | None:
    """(L, H): the weight from a token of the second copy to the one after its first place."""
    taps, model = subject.taps("pattern"), subject.model
    if not taps:
        return None
    found = patterns(model, lambda tokens: model.step(tokens, model.start(len(tokens))), taps, rows)
    return [induction_score(pattern, rows.shape[1] // 2).tolist() for pattern in found]


VIEW = View(
    "in_context", "In context",
    "What a model learns from its prompt, without any training: the probability of the right answer by the number of "
    "examples before it (each line of the text is one), and its loss where a random sequence comes a second time.",
    lambda subject: subject.continues_text, _make, several=True, needs="a language model of plain text",
)
