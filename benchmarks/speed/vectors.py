"""word2vec beside gensim: one epoch on one text with the same settings, in one run; how fast, and how good.

    python benchmarks/speed/vectors.py [TEXT] [--size 70] [--device auto] [--algorithm skip-gram] [--json]

TEXT (default: Gutenberg's books in $CHAINRULE_DATA) is lower-cased, all but words dropped, and a paragraph made one
line. gensim has as many workers as there are cores, and runs twice: on sentences, where the rate falls to nothing, and
on a file, its fast way, where each worker lets the rate fall by what it has read itself, so that it hardly falls; and
chainrule once with each of these schedules. Words a second are of training alone; the seconds beside them begin with
the text. Vectors are judged by chainrule: analogies without their inputs, and Spearman's correlation with WordSim-353
and SimLex-999, each with its 95 % interval.
"""

import argparse
import json
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gensim.models import Word2Vec
from gensim.models.word2vec import LineSentence

from chainrule.commands.arguments.device import DEVICES
from chainrule.device import choose_device
from chainrule.inference.vectors import Vectors, evaluate_analogies, evaluate_similarity, vectors_of
from chainrule.models import build
from chainrule.text.analogies import Analogies, read_word_test
from chainrule.text.corpus import prepare
from chainrule.text.sources import Source, read_text
from chainrule.training.log import Log
from chainrule.training.pipeline import recipe_for, train_model

DATA = Path(os.environ.get("CHAINRULE_DATA", "data"))
TESTS = {
    "analogies": DATA / "word-analogy" / "questions-words.txt",
    "WordSim-353": DATA / "word-similarity" / "wordsim353.tsv",
    "SimLex-999": DATA / "word-similarity" / "simlex999.txt",
}
CORES = os.cpu_count() or 1
FALLS = 0.004        # to 0.0001 from 0.025, as gensim's
WINDOW, NEGATIVES, SAMPLE, MIN_COUNT, SIZE = 5, 5, 1e-3, 5, 100


def prose(path: Path, size: int, out: Path) -> Path:
    """The words of the first `size` bytes, a paragraph a line."""
    text = ""
    for piece in read_text(Source(path)):
        text += piece
        if len(text) >= size:
            break
    paragraphs = (re.findall("[a-z]+(?:'[a-z]+)?", part) for part in re.split(r"\n\s*\n", text[:size].lower()))
    out.write_text("".join(" ".join(words) + "\n" for words in paragraphs if words))
    return out


def ours(path: Path, given: argparse.Namespace, device: torch.device, final: float) -> dict[str, Any]:
    settings = {
        "model.algorithm": given.algorithm, "model.embedding": SIZE, "model.window": WINDOW, "model.sample": SAMPLE,
        "model.negatives": NEGATIVES, "text.min_count": MIN_COUNT, "train.epochs": 1.0, "train.lr": given.lr,
        "train.final_lr": final, "train.seed": given.seed, "train.tokens": given.tokens,
    }
    recipe = recipe_for("word2vec", settings)
    began = time.perf_counter()
    corpus = prepare([str(path)], recipe.text, valid=[str(path)])            # all of it is for training
    model = build("word2vec", recipe.model, len(corpus.tokenizer)).to(device)
    train_model(model, corpus, replace(recipe, train=replace(recipe.train, epochs=0.02)), Log())    # wakes the device
    torch.cuda.synchronize() if device.type == "cuda" else None
    trains = time.perf_counter()
    train_model(model, corpus, recipe, Log())
    torch.cuda.synchronize() if device.type == "cuda" else None
    ended = time.perf_counter()
    return {"vectors": vectors_of(model, corpus.tokenizer), "train": ended - trains, "whole": ended - began}


def gensims(path: Path, given: argparse.Namespace, by_file: bool) -> dict[str, Any]:
    model = Word2Vec(
        vector_size=SIZE, window=WINDOW, negative=NEGATIVES, sample=SAMPLE, min_count=MIN_COUNT, alpha=given.lr,
        sg=int(given.algorithm == "skip-gram"), workers=CORES, seed=given.seed,
    )
    text = {"corpus_file": str(path)} if by_file else {"corpus_iterable": LineSentence(str(path))}
    began = time.perf_counter()
    model.build_vocab(**text)
    trains = time.perf_counter()
    model.train(**text, total_examples=model.corpus_count, total_words=model.corpus_total_words, epochs=1)
    ended = time.perf_counter()
    vectors = Vectors(model.wv.index_to_key, model.wv.vectors.astype(np.float32))
    return {"vectors": vectors, "train": ended - trains, "whole": ended - began}


def judged(vectors: Vectors) -> dict[str, list[float]]:
    """Each test's value and its 95 % interval, in per cent."""
    scores = {}
    for name, path in TESTS.items():
        test = read_word_test(path)
        both = isinstance(test, Analogies)
        score = evaluate_analogies(vectors, test).accuracy if both else evaluate_similarity(vectors, test).spearman
        scores[name] = [100 * value for value in (score.value, score.low, score.high)]
    return scores


def row(name: str, result: dict[str, Any]) -> str:
    scores = "".join(f"{value:>8.1f} ({low:.1f}–{high:.1f})" for value, low, high in result["scores"].values())
    return f"{name:<22}{result['words_per_second']:>14,.0f}{result['whole']:>10.1f}{scores}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path, default=next(iter((DATA / "gutenberg").glob("train-*")), None))
    parser.add_argument("--size", type=float, default=70, help="millions of bytes of it")
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--algorithm", default="skip-gram", choices=["skip-gram", "cbow"])
    parser.add_argument("--lr", type=float, default=0.025, help="of all three")
    parser.add_argument("--tokens", type=int, help="words in a step of ours (default: by the device)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    given = parser.parse_args()
    logging.getLogger("gensim").setLevel(logging.ERROR)
    device = choose_device(given.device)
    with TemporaryDirectory() as folder:
        os.environ["CHAINRULE_CACHE"] = folder
        path = prose(given.text, int(given.size * 1e6), Path(folder) / "prose.txt")
        words = sum(len(line.split()) for line in path.open())
        if not given.json:
            print(f"{words:,} words, {given.algorithm}, lr {given.lr:g}, {CORES} cores; chainrule on {device}")
            print(f"{'':<22}{'words/s':>14}{'seconds':>10}" + "".join(f"{name:>20}" for name in TESTS))
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            "chainrule": lambda: ours(path, given, device, FALLS),
            "gensim": lambda: gensims(path, given, by_file=False),
            "chainrule, as on file": lambda: ours(path, given, device, 1 - 1 / CORES),
            "gensim, on a file": lambda: gensims(path, given, by_file=True),
        }
        for name, run in sides.items():
            result = run()
            result |= {"scores": judged(result.pop("vectors")), "words_per_second": words / result["train"]}
            print(json.dumps({"side": name, **result}) if given.json else row(name, result), flush=True)


if __name__ == "__main__":
    main()
