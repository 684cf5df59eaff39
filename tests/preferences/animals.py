"""A world of few words: animals run fast or slow, and people prefer fast."""

import json

import numpy as np

ANIMALS = ("cat", "dog", "owl", "fox")
SMALL = {
    "gpt": {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 32},
    "lstm": {"model.layers": 1, "model.hidden": 16},
    "feedforward": {"model.order": 4, "model.hidden": 16, "model.embedding": 8},
}
QUICK = {"train.precision": "float32", "train.evaluate": 0.0}


def sentence(generator):
    return f"a {generator.choice(ANIMALS)} runs {generator.choice(['fast', 'slow'])}"


def pairs(count, seed=1):
    generator = np.random.default_rng(seed)
    return [{"prompt": f"a {generator.choice(ANIMALS)} runs", "chosen": " fast", "rejected": " slow"}
            for _ in range(count)]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
