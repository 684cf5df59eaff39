"""Models that only count, on tags and on classes: accuracy, and words a second on one core.

    python benchmarks/quality/tagging.py [--test] [--column xpos] [--data DIR] [--json]
    python benchmarks/quality/tagging.py --classes [--orders 1 2 3] [--raw] [--data DIR] [--json]

DIR is $CHAINRULE_DATA by default. Tags are those of UD English-EWT, learned on train and measured on dev, or on test
with --test. Classes are those of SST-2 (dev) and IMDB (test), by one word n-gram a class; the text of IMDB is
lower-cased and split at punctuation, unless --raw. The models are deterministic, so there is no seed. Times are CPU
times of one thread, from strings to tables and from strings to predictions.
"""

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from chainrule.model import Batch
from chainrule.models.generative import GenerativeClassifier
from chainrule.models.hmm.tagger import HMMTagger, HMMTaggerSettings
from chainrule.models.hmm.word_features import tagging_batch
from chainrule.models.ngram.ngram import NGram, NGramSettings
from chainrule.recipe import Text
from chainrule.tasks.classify import (
    DELIMITER,
    EXTRACT,
    Classes,
    ClassifyText,
    Labelled,
    encode_labelled,
    read_labelled,
)
from chainrule.tasks.conllu import Tagged, TagText, read_tagged
from chainrule.text.sources import Source
from chainrule.text.tokenizers.tokenizer import train_tokenizer

LIMIT = 1 << 20                                            # tokens of one batch, padding included
FILES = {
    "SST-2": ("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv"),
    "IMDB": ("imdb/train.jsonl.xz", "imdb/test.jsonl.xz"),
}
ROW = (
    "{text:<8}order {order}{accuracy:>10.2%}{nats:>10.3f}{nats_normalised:>10.3f}"
    "{learned_per_second:>14,.0f}{per_second:>14,.0f}"
)
T = TypeVar("T")


def timed(action: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    return action(), time.process_time() - began


# Tags


def measure_tagger(settings: HMMTaggerSettings, train: Sequence[Tagged], held_out: Sequence[Tagged]) -> dict[str, Any]:
    names = sorted({tag for sentence in train for tag in sentence.tags})
    numbers = {name: number for number, name in enumerate(names)}
    model = HMMTagger(settings, len(names))

    def learn() -> None:
        tags = [[numbers[tag] for tag in sentence.tags] for sentence in train]
        model.update(model.collect(tagging_batch([sentence.words for sentence in train], tags)))

    _, learning = timed(learn)
    known = {word for sentence in train for word in sentence.words}
    words = [word for sentence in held_out for word in sentence.words]
    seen = np.array([word in known for word in words])
    truth = np.array([numbers.get(tag, -1) for sentence in held_out for tag in sentence.tags])
    result: dict[str, Any] = {"order": settings.order, "lexical": settings.lexical, "unknown": 1 - seen.mean()}
    result["learned_per_second"] = sum(len(sentence.words) for sentence in train) / learning
    for name, best_path in ("posterior", False), ("viterbi", True):
        told, seconds = timed(lambda way=best_path: model.predict([one.words for one in held_out], way))
        right = np.array([tag for row in told for tag in row]) == truth
        result[name] = {"accuracy": right.mean(), "known": right[seen].mean(), "unknown": right[~seen].mean(),
                        "per_second": len(words) / seconds}
    return result


def tagger_lines(result: dict[str, Any]) -> Iterator[str]:
    kind = f"order {result['order']}{', lexical' if result['lexical'] else ''}"
    for name in "posterior", "viterbi":
        shares = (f"{result[name][part]:>9.2%}" for part in ("accuracy", "known", "unknown"))
        yield f"{kind:<18}{name:<10}{''.join(shares)}{result[name]['per_second']:>12,.0f} words/s"


def tags(arguments: argparse.Namespace) -> None:
    folder, settings = arguments.data / "ud-english-ewt", TagText(tag=arguments.column)
    held_out = "test" if arguments.test else "dev"
    train, held = (tuple(read_tagged(Source(folder / f"en_ewt-ud-{name}.conllu"), settings))
                   for name in ("train", held_out))
    if not arguments.json:
        print(f"UD English-EWT, {arguments.column}, {held_out}\n{'':<28}{'all':>9}{'known':>9}{'unknown':>9}")
    for order in 1, 2:
        for lexical in False, True:
            result = measure_tagger(HMMTaggerSettings(order, lexical), train, held)
            print(json.dumps(result) if arguments.json else "\n".join(tagger_lines(result)), flush=True)
    if not arguments.json:
        print(f"learned at {result['learned_per_second']:,.0f} words/s; {result['unknown']:.1%} of words are unknown")


# Classes


def apart(example: Labelled) -> Labelled:
    """In small letters, with punctuation as words of its own and without the tags of HTML."""
    text = " ".join(re.findall(r"\w+|[^\w\s]", example.texts[0].replace("<br />", " ").lower()))
    return replace(example, texts=(text,))


def batches(examples: Classes) -> Iterator[Batch]:
    order = np.argsort(examples.sizes[0], kind="stable")
    while len(order):
        longest = examples.sizes[0][order] * np.arange(1, len(order) + 1)
        some, order = np.split(order, [max(1, int(np.searchsorted(longest, LIMIT)))])
        yield examples.batch(some, [int(examples.sizes[0][some[-1]])])


def measure_classes(name: str, order: int, train: list[Labelled], held_out: list[Labelled]) -> dict[str, Any]:
    lines = "".join(f"{example.texts[0]}\n" for example in train)
    tokenizer = train_tokenizer(Text(tokenizer="words"), [lines]).with_special([DELIMITER, EXTRACT])
    encoded = [encode_labelled(examples, tokenizer, ("0", "1"), None) for examples in (train, held_out)]
    model = GenerativeClassifier([NGram(NGramSettings(order), len(tokenizer)) for _ in range(2)])

    def learn() -> None:
        first, *rest = (model.collect(batch) for batch in batches(encoded[0]))
        model.update(sum(rest, first))

    def answer() -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [(model(batch), batch.targets) for batch in batches(encoded[1])]
        answers, targets = (torch.cat(part) for part in zip(*pairs))
        return answers, targets

    _, learning = timed(learn)
    (answers, targets), seconds = timed(answer)
    model.length_normalisation = 0.5
    normalised, _ = answer()
    return {"text": name, "order": order, "accuracy": float((answers.argmax(1) == targets).float().mean()),
            "nats": float(cross_entropy(answers, targets)),
            "nats_normalised": float(cross_entropy(normalised, targets)),
            "learned_per_second": encoded[0].sizes[0].sum() / learning,
            "per_second": encoded[1].sizes[0].sum() / seconds}


def classes(arguments: argparse.Namespace) -> None:
    if not arguments.json:
        print(f"{'':<15}{'accuracy':>10}{'nats':>10}{'length ½':>10}{'learned/s':>14}{'answered/s':>14}   (tokens)")
    for name, paths in FILES.items():
        settings = ClassifyText(column="text" if name == "IMDB" else "sentence", label="label")
        train, held_out = ([example if arguments.raw or name == "SST-2" else apart(example)
                            for example in read_labelled(Source(arguments.data / path), settings)] for path in paths)
        for order in arguments.orders:
            result = measure_classes(name, order, train, held_out)
            print(json.dumps(result) if arguments.json else ROW.format(**result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("CHAINRULE_DATA", "data")))
    parser.add_argument("--test", action="store_true", help="measure tags on test instead of dev")
    parser.add_argument("--column", default="upos", help="which tags: upos or xpos")
    parser.add_argument("--classes", action="store_true", help="classes instead of tags")
    parser.add_argument("--orders", nargs="+", type=int, default=[1, 2, 3], help="of the n-grams of each class")
    parser.add_argument("--raw", action="store_true", help="words of IMDB as white space parts them")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    (classes if arguments.classes else tags)(arguments)


if __name__ == "__main__":
    main()
