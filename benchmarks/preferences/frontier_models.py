"""Models of frontier.py: the body, the classifier, whose p(positive) is the true reward; the reference."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from frontier_experiment import Experiment, data, made
from frontier_workers import alone, workers

from chainrule.files import write_text


def make_models(here: Experiment, tiny: bool) -> None:
    """The body; then, at the same time, the classifier and the reference."""
    reviews, books = (invent_reviews(here.out), []) if tiny else (data("imdb/train.jsonl.xz"), [data("gutenberg")])
    began = time.monotonic()
    if not made(here, "body"):
        alone(here, train_body, here, [reviews, *books])
    here.say(event="body", seconds=time.monotonic() - began)
    jobs = [job for job in (train_classifier, train_reference) if not made(here, job.__name__.removeprefix("train_"))]
    with workers(min(2, here.parallel)) as pool:
        for future in [pool.submit(job, here, reviews, tiny) for job in jobs]:
            future.result()


def train_body(here: Experiment, texts: Sequence[Path]) -> None:
    here.train("body", "reviews-gpt", texts, {"train.minutes": here.size.minutes})


def train_classifier(here: Experiment, reviews: Path, tiny: bool) -> None:
    began = time.monotonic()
    run = here.train("classifier", "imdb-gpt", [reviews], base=here.out / "body")
    trained = time.monotonic()
    result = run.evaluate(reviews if tiny else data("imdb/test.jsonl.xz"))
    here.say(event="classifier", accuracy=result["accuracy"], interval=result["accuracy_interval"],
             seconds=trained - began, evaluated=time.monotonic() - trained)


def train_reference(here: Experiment, reviews: Path, tiny: bool) -> None:
    began = time.monotonic()
    run = here.train("reference", "imdb-reference", [reviews], base=here.out / "body")
    here.say(event="reference", bits_per_byte=run.result["bits_per_byte"], seconds=time.monotonic() - began)


def invent_reviews(out: Path, count: int = 600) -> Path:
    """Short reviews with words that tell their label, for `--size tiny`."""
    words, words_of = random.Random(1), {"1": ["great", "superb", "fine"], "0": ["bad", "dull", "poor"]}
    path, rows = out / "reviews.jsonl", []
    for number in range(count):
        label = str(number % 2)
        parts = [f"the {words.choice(['film', 'plot', 'end', 'cast'])} is {words.choice(words_of[label])}"
                 for _ in range(4)]
        rows.append(json.dumps({"text": " and ".join(parts), "label": int(label)}))
    write_text(path, "\n".join(rows) + "\n")
    return path
