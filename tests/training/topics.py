"""Two topics that never meet: a text has the words of one of them, so reading tells which words go together."""

import numpy as np

from chainrule import run
from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import make_run, recipe_for

WORDS = {"sea": [f"s{number}" for number in range(12)], "wood": [f"w{number}" for number in range(12)]}
SMALL = {
    "gpt": {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.context": 16},
    "encoder": {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.context": 16},
    "transformer": {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.context": 64},
    "gru": {"model.layers": 2, "model.hidden": 32, "model.dropout": 0.0, "model.weight_dropout": 0.0,
            "train.batching": "windows", "train.tokens": 256, "train.length": 16},
}
PRETRAINS = {"gpt": "lm", "gru": "lm", "encoder": "mask", "transformer": "span"}
QUICK = {"train.evaluate": 0.0, "train.precision": "float32"}


def texts(number, which, seed=1):
    """So many texts, each with its topic, of the words of these places in a topic."""
    generator = np.random.default_rng(seed)
    topics = generator.choice(list(WORDS), number)
    return [(" ".join(generator.choice(WORDS[topic][which], 6)), topic) for topic in topics]


def write_data(folder):
    """A book to pretrain on; a few labels for half of the words, and many for the other half to be measured on."""
    folder.mkdir(exist_ok=True)
    every, few, others = slice(None), slice(0, 6), slice(6, None)
    (folder / "book.txt").write_text("".join(text + "\n" for text, _ in texts(600, every)))
    (folder / "long.txt").write_text("".join(f"{text} " * 40 + "\n" for text, _ in texts(15, every)))
    for name, examples in (("few", texts(24, few, 2)), ("others", texts(60, others, 3))):
        table = "".join(f"{text}\t{topic}\n" for text, topic in examples)
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + table)
    pairs = "".join(f"{text}\t{text.upper()}\n" for text, _ in texts(40, every))
    (folder / "pairs.tsv").write_text("source\ttarget\n" + pairs)
    tagged = "".join("".join(f"{word}\t{topic}\n" for word in text.split()) + "\n" for text, topic in texts(24, every))
    (folder / "tagged.tsv").write_text(tagged)


def pretrain(folder, kind, steps=60, out=None, **given):
    settings = {"text.tokenizer": "words", "train.steps": steps, "train.lr": 3e-3, **QUICK, **SMALL[kind], **given}
    recipe = recipe_for(kind, settings, PRETRAINS[kind])
    text = "long.txt" if kind == "transformer" else "book.txt"
    return make_run([str(folder / text)], recipe, folder / (out or kind)).path


def pretrained(folder, kind, steps=5):
    """The run of this kind in a folder of data, which the first that asks for it makes; in 150 steps it has learned."""
    name = f"{kind}-{steps}"
    if not (folder / name).exists():
        pretrain(folder, kind, steps, name)
    return folder / name


def fine_tune(folder, base, out="tuned", task="classify", steps=4, text="few.tsv", valid="others.tsv", **given):
    """A run on top of another; settings with _ in the place of their first dot."""
    dotted = {name.replace("_", ".", 1): value for name, value in given.items()}
    recipe = finetune_recipe(base, {"train.steps": steps, **QUICK, **dotted}, task)
    held_out = [str(folder / valid)] if valid else []
    return make_run([str(folder / text)], recipe, folder / out, valid=held_out, overwrite=True)


def weights(path):
    return run.load(path).model.state_dict()
