"""Small hidden Markov models, texts for them, and the sum over all paths by the definition."""

import math
import os
import re
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from chainrule.model import BOUNDARY
from chainrule.models.hmm import forward_backward
from chainrule.models.hmm.hmm import HMM, HMMSettings, HMMStatistics

VOCAB = 4


def made(states: int = 3, vocab: int = VOCAB, seed: int = 1, smoothing: float = 0.0, **more) -> HMM:
    model = HMM(HMMSettings(states=states, smoothing=smoothing, **more), vocab)
    model.forget(torch.Generator().manual_seed(seed))
    return model


def from_tables(initial: list, transition: list, emission: list, smoothing: float = 0.0) -> HMM:
    model = HMM(HMMSettings(len(initial), smoothing=smoothing), len(emission[0]))
    for table, values in (model.initial, initial), (model.transition, transition), (model.emission, emission):
        table.copy_(torch.tensor(values, dtype=torch.float64))
    return model


def texts_of(row: list[int]) -> list[list[int]]:
    """The texts in a row, written out the slow way."""
    texts: list[list[int]] = [[]]
    for token in row[1:] if row[0] == BOUNDARY else row:
        texts[-1].append(token)
        if token == BOUNDARY:
            texts.append([])
    return [text for text in texts if text]


def every_path(model: HMM, text: list[int]) -> dict[tuple[int, ...], float]:
    """p(text, path) of each path, by the definition."""
    initial, transition, emission = (table.tolist() for table in (model.initial, model.transition, model.emission))
    joint = {}
    for path in product(range(len(initial)), repeat=len(text)):
        p = initial[path[0]] * math.prod(transition[a][b] for a, b in pairwise(path))
        joint[path] = p * math.prod(emission[state][token] for state, token in zip(path, text))
    return joint


def expected_by_paths(model: HMM, texts: list[list[int]]) -> HMMStatistics:
    statistics = model._zero_counts(nats=0.0)
    for text in texts:
        joint = every_path(model, text)
        total = sum(joint.values())
        for path, p in joint.items():
            statistics.initial[path[0]] += p / total
            for state, token in zip(path, text):
                statistics.emissions[state, token] += p / total
            for before, after in pairwise(path):
                statistics.transitions[before, after] += p / total
        statistics = replace(statistics, nats=statistics.nats - math.log(total))
    return statistics


def assert_same_statistics(found: HMMStatistics, wanted: HMMStatistics) -> None:
    for name in "initial", "transitions", "emissions":
        assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-10, atol=1e-12)
    assert found.nats == pytest.approx(wanted.nats, rel=1e-12)


ROWS = torch.tensor([
    [0, 1, 2, 3, 1, 0],      # one text with both its boundaries
    [2, 2, 1, 0, 3, 1],      # two texts, the second cut short; no boundary before the first
    [0, 0, 3, 0, 0, 1],      # empty texts
    [0, 3, 3, 1, 2, 2],
])
LENGTHS = torch.tensor([6, 6, 6, 3])


def rows_as_lists() -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(ROWS, LENGTHS)]


def without_boundaries(states: int, vocab: int, seed: int = 1) -> HMM:
    model = made(states, vocab, seed)
    model.emission[:, 0] = 0
    model.emission /= model.emission.sum(1, keepdim=True)
    return model


def log_p_of(model: HMM, paths: Tensor, rows: Tensor) -> Tensor:
    """(B,): log p of each row with its path; -1 in a path is padding."""
    real, states = paths >= 0, paths.clamp(min=0)
    before = torch.nn.functional.pad(states[:, :-1], (1, 0))
    begins = forward_backward.text_starts(rows, real)
    moves = torch.where(begins, model.initial[states], model.transition[before, states])
    return torch.where(real, moves.log() + model.emission[states, rows].log(), 0).sum(1)


def shakespeare(rows: int) -> Tensor:
    """(rows, 513): lower-cased letters and space of tinyshakespeare after a boundary."""
    path = Path(os.environ.get("CHAINRULE_DATA", "")) / "tinyshakespeare" / "input.txt"
    if not os.environ.get("CHAINRULE_DATA") or not path.exists():
        pytest.skip("needs tinyshakespeare in $CHAINRULE_DATA")
    text = re.sub("[^a-z]+", " ", path.read_text()[: rows * 1024].lower())[: rows * 512]
    tokens = torch.tensor(["\n abcdefghijklmnopqrstuvwxyz".index(letter) for letter in text]).view(rows, 512)
    return torch.cat([torch.zeros(rows, 1, dtype=torch.long), tokens], 1)
