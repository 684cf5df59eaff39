"""Hidden states of texts: the Viterbi path, its probability, the likelihood of the text, and the posteriors γ_t(s).

A text is x_1 … x_T as it is written: its end is not a symbol, so the numbers are those of a calculation by hand. Texts
of similar length are decoded side by side.

Shapes: B texts of a batch, T tokens, S states, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.forward import on_device
from chainrule.model import BOUNDARY
from chainrule.progress import bar
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

SHOWN = 12           # symbols in a message
NUMBERS = 1 << 22    # posteriors of one batch, padding included: 32 MB


class HiddenStates(Protocol):
    """A model in which a chain of hidden states emits the tokens."""

    emission: Tensor    # (S, V)

    def viterbi(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]: ...

    def log_likelihood(self, tokens: Tensor, lengths: Tensor) -> Tensor: ...

    def posteriors(self, tokens: Tensor, lengths: Tensor) -> Tensor: ...


@torch.inference_mode()
def state_paths(
    model: Any, tokenizer: Tokenizer, texts: Sequence[tuple[str, Place]], names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Plain values for JSON; `answer` is the path, each state by its name, or by its number where it has none."""
    hidden: HiddenStates = model
    states = list(names) or [str(state) for state in range(len(hidden.emission))]
    rows = [tokenizer.encode(text).tolist() for text, _ in texts]
    _refuse_impossible(hidden, tokenizer, rows, texts)
    found: dict[int, dict[str, Any]] = {}
    with bar("decoding", len(rows), "texts") as advance:
        for numbers in _batches(rows, len(states)):
            found |= zip(numbers, _decode(hidden, [rows[number] for number in numbers]))
            advance(len(numbers))
    return [_answer(found[number], rows[number], tokenizer, states, texts[number][1]) for number in range(len(rows))]


def _batches(rows: Sequence[Sequence[int]], states: int) -> Iterator[list[int]]:
    """The numbers of texts of similar length, as many as may be decoded at once."""
    batch: list[int] = []
    for number in sorted(range(len(rows)), key=lambda number: len(rows[number])):
        if batch and (len(batch) + 1) * len(rows[number]) * states > NUMBERS:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _decode(model: HiddenStates, rows: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    """What each text's answer says, but for names."""
    lengths = [len(row) for row in rows]
    padded = np.full((len(rows), max(lengths)), BOUNDARY, np.int64)
    for line, row in zip(padded, rows):
        line[: len(row)] = row
    given = on_device(model, padded), on_device(model, np.array(lengths))    # type: ignore[arg-type]
    paths, path_log_probs = model.viterbi(*given)
    log_likelihoods, posteriors = model.log_likelihood(*given), model.posteriors(*given)
    for text, length in enumerate(lengths):
        yield {
            "path": paths[text, :length].tolist(),
            "path_log_prob": float(path_log_probs[text]),                 # natural logarithms, as everywhere
            "log_likelihood": float(log_likelihoods[text]),
            "posteriors": posteriors[text, :length].tolist(),             # (T, S)
        }


def _answer(
    found: dict[str, Any], row: Sequence[int], tokenizer: Tokenizer, states: list[str], place: Place
) -> dict[str, Any]:
    if not math.isfinite(found["log_likelihood"]):
        raise UserError(f"{place}: no path of states emits this text: its probability is 0.")
    named = [states[state] for state in found["path"]]
    return {
        "answer": " ".join(named),
        "tokens": [tokenizer.show(token) for token in row],
        **found,
        "path": named,
        "likelihood": math.exp(found["log_likelihood"]),
        "states": states,
    }


def _refuse_impossible(
    model: HiddenStates, tokenizer: Tokenizer, rows: Sequence[Sequence[int]], texts: Sequence[tuple[str, Place]]
) -> None:
    """Names the first token that no state emits, such as an unknown word."""
    possible = (model.emission > 0).any(0).tolist()
    for row, (text, place) in zip(rows, texts):
        for at, token in enumerate(row):
            if not possible[token]:
                written = text.split()[at] if tokenizer.lines else tokenizer.show(token)
                known = [tokenizer.show(id) for id, emitted in enumerate(possible) if emitted]
                some = ", ".join(known[:SHOWN]) + (", …" if len(known) > SHOWN else "")
                raise UserError(f"{place}: no state emits {written!r}. The symbols are {some}.")
