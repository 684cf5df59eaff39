"""BLiMP: of two sentences that differ in little, does the model give the grammatical one the higher probability?

67 paradigms of 1,000 minimal pairs in 12 phenomena (Warstadt et al., 2020). A sentence is a text of its own, and its
probability includes the boundary that ends it. A model is right where the good sentence is strictly more probable; a
tie is a mistake, and ties are counted. (lm-eval leaves the end out, and a tie is right.)

Shapes: N pairs.
"""

import json
import lzma
import os
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.exams.wording import WORDINGS, choose_wording, count_unknown, sign_exam
from chainrule.inference.evaluate import DIVERGED
from chainrule.inference.score import score_sentences
from chainrule.inference.statistics import Score, bootstrap_mean
from chainrule.run import Run
from chainrule.text.datasets import get

ROUNDING = 1e-5                     # nats: a difference below it is a tie, since rows of a batch round differently
SUMMARY = "models_summary.jsonl"    # published results, which are not pairs
PHENOMENON = {"s-selection": "argument_structure"}    # two paradigms whose file has another name than the paper
FIELDS = ("sentence_good", "sentence_bad", "linguistics_term", "UID")

SYSTEMS = ("n-gram", "LSTM", "Transformer-XL", "GPT-2", "human")
PUBLISHED = {
    "anaphor_agreement": (47.9, 91.7, 94.1, 99.3, 97.5),
    "argument_structure": (71.9, 73.2, 72.2, 81.8, 90.0),
    "binding": (64.4, 73.5, 74.7, 80.9, 87.3),
    "control_raising": (68.5, 67.0, 71.5, 81.9, 83.9),
    "determiner_noun_agreement": (70.1, 85.4, 83.0, 95.8, 92.2),
    "ellipsis": (36.9, 67.6, 77.2, 89.4, 85.0),
    "filler_gap_dependency": (60.2, 73.9, 66.6, 81.3, 86.9),
    "irregular_forms": (79.5, 89.1, 78.2, 91.9, 97.0),
    "island_effects": (57.2, 46.6, 48.3, 72.7, 84.9),
    "npi_licensing": (45.5, 51.7, 55.2, 76.8, 88.1),
    "quantifiers": (53.5, 64.5, 69.3, 79.0, 86.6),
    "subject_verb_agreement": (60.3, 80.1, 76.0, 86.4, 90.9),
    "overall": (61.2, 69.8, 69.6, 83.0, 88.6),
}
"""Accuracy in percent, from the authors' files models_summary.jsonl and human_validation_summary.csv."""

Right: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Pair:
    good: str
    bad: str
    phenomenon: str
    paradigm: str


def examine_pairs(run: Run, limit: int | None = None) -> dict[str, Any]:
    """Accuracy with intervals, whole, by phenomenon and by paradigm; `limit`: pairs of each paradigm."""
    began, model, tokenizer = time.perf_counter(), run.language_model, run.tokenizer
    pairs = read_pairs(limit)
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    wording = choose_wording(tokenizer, sentences)
    written = [WORDINGS[wording](sentence) for sentence in sentences]
    good, bad = score_sentences(model, tokenizer, written).reshape(-1, 2).T
    if np.isnan(good).any() or np.isnan(bad).any():
        raise UserError(f"{run.path}: {DIVERGED}.")
    right, wrong = is_lower(good, bad), is_lower(bad, good)
    tokens = tokenizer.encode_stream(written)[0]
    return {
        "exam": "blimp",
        **mean_with_interval(right).as_dict("accuracy"),
        "pairs": len(pairs),
        "ties": int((~right & ~wrong).sum()),
        "unknown": count_unknown(tokenizer, tokens) / len(tokens),
        "phenomena": by_phenomenon(pairs, right),
        "paradigms": _by_paradigm(pairs, right),
        "published": dict(zip(SYSTEMS, PUBLISHED["overall"])),
        "seconds": time.perf_counter() - began,
        "signature": sign_exam("blimp", len(pairs), model, tokenizer, wording, sentences),
    }


def is_lower(nats: NDArray[np.float64], others: NDArray[np.float64]) -> Right:
    """Whether each number is lower than the other by more than rounding; of two infinite ones neither is."""
    return nats < others - ROUNDING


def mean_with_interval(right: Right) -> Score:
    """The share of True, with an interval over the units."""
    return bootstrap_mean(right)


def by_phenomenon(pairs: list[Pair], right: Right) -> dict[str, dict[str, Any]]:
    every = np.array([pair.phenomenon for pair in pairs])
    return {
        str(name): {
            **mean_with_interval(right[every == name]).as_dict("accuracy"),
            "pairs": int((every == name).sum()),
            "published": dict(zip(SYSTEMS, PUBLISHED.get(str(name), ()))),
        }
        for name in np.unique(every)
    }


def _by_paradigm(pairs: list[Pair], right: Right) -> dict[str, float]:
    every = np.array([pair.paradigm for pair in pairs])
    return {str(name): float(right[every == name].mean()) for name in np.unique(every)}


def read_pairs(limit: int | None = None) -> list[Pair]:
    """The first `limit` pairs of each file."""
    pairs = [
        _pair(line, f"{name} line {number}")
        for name, content in _files()
        for number, line in enumerate(content.splitlines()[:limit], 1)
    ]
    if not pairs:
        raise UserError("the files of BLiMP are empty: there are no pairs in them.")
    return pairs


def _pair(line: bytes, place: str) -> Pair:
    try:
        row = json.loads(line)
        good, bad, phenomenon, paradigm = (row[field] for field in FIELDS)
        if not all(isinstance(value, str) and value.strip() for value in (good, bad, phenomenon, paradigm)):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{place} of BLiMP is damaged: a line is a JSON object with the texts {', '.join(FIELDS)}. "
            "Copy the file again."
        ) from error
    return Pair(good, bad, PHENOMENON.get(phenomenon, phenomenon), paradigm)


def _files() -> Iterator[tuple[str, bytes]]:
    """Name and content of each paradigm's file: in $CHAINRULE_DATA/blimp, or in the archive blimp.tar.xz."""
    given = os.environ.get("CHAINRULE_DATA")
    folder = Path(given).expanduser() / "blimp" if given else None
    loose = sorted(path for path in folder.glob("*.jsonl") if path.name != SUMMARY) if folder else []
    if loose:
        yield from ((path.name, path.read_bytes()) for path in loose)
    else:
        yield from _archive()


def _archive() -> Iterator[tuple[str, bytes]]:
    try:
        ((source,),) = get("blimp").values()
    except UserError as error:
        raise UserError("BLiMP is not on this machine. Set CHAINRULE_DATA to a folder, and copy data/*.jsonl of "
                        "https://github.com/alexwarstadt/blimp to the folder blimp in it.") from error
    try:
        with tarfile.open(source.path) as archive:
            for member in archive:
                if (file := archive.extractfile(member)) and member.name.endswith(".jsonl"):
                    yield Path(member.name).name, file.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{source.path} is damaged and cannot be unpacked ({error}). Copy it again.") from error
