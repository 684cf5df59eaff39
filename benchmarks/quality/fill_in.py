"""Fill in the blank: an `encoder` trained by `mask`, which sees both sides, against an n-gram, which sees the left.

    python benchmarks/quality/fill_in.py FOLDER [--minutes 6] [--order 5] [--seed 1] [--out runs/fill-in]

FOLDER has train.en, val.en and test_2016_flickr.en of Multi30k, or train.txt, valid.txt and test.txt of any text. Words
are lower-cased and set apart from punctuation, for both. In each line of the test text one word that the vocabulary
has is blank, drawn by the seed; both models fill the same blanks. Prints JSON: accuracy of each, with intervals, and
the paired difference (bootstrap over lines).
"""

import json
import re
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch

import chainrule
from chainrule.inference.fill_in import Cloze, fill_blanks, possible_fills
from chainrule.inference.forward import on_device
from chainrule.inference.statistics import bootstrap
from chainrule.model import BOUNDARY
from chainrule.tasks.denoise import MASK
from chainrule.text.tables import Place

NAMES = (("train.en", "val.en", "test_2016_flickr.en"), ("train.txt", "valid.txt", "test.txt"))
WORD = re.compile(r"\w+|[^\w\s]")
ENCODER = {"model.layers": 2, "model.width": 128, "model.heads": 4, "model.context": 64, "train.lr": 0.01,
           "train.tokens": 1024, "train.evaluate": 0.25, "text.mask_share": 0.3}


def main() -> None:
    args = arguments()
    out = Path(args.out)
    train, valid, test = prepared(Path(args.folder), out)
    words = {"text.tokenizer": "words", "train.seed": args.seed}
    ngram = chainrule.train(train, kind="ngram", valid=[valid], out=out / "ngram", overwrite=True,
                            settings={**words, "model.order": args.order})
    encoder = chainrule.train(train, kind="encoder", task="mask", valid=[valid], out=out / "encoder", overwrite=True,
                              settings={**words, **ENCODER, "train.minutes": args.minutes})
    blanks = draw_blanks(test, encoder.tokenizer, args.seed)
    began = time.perf_counter()
    right = {"encoder": filled_by_encoder(encoder, blanks), "ngram": filled_by_left(ngram, blanks)}
    gap = right["encoder"].astype(float) - right["ngram"]
    answer = {name: share(some) for name, some in right.items()} | {"difference": share(gap), "blanks": len(blanks)}
    print(json.dumps({**answer, "minutes": args.minutes, "order": args.order, "seed": args.seed,
                      "threads": torch.get_num_threads(), "filling_seconds": round(time.perf_counter() - began, 1)}))


def arguments():
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="runs/fill-in")
    return parser.parse_args()


def prepared(folder, out):
    """The three texts, one sentence on each line, words apart."""
    names = next((names for names in NAMES if all((folder / name).is_file() for name in names)), None)
    if names is None:
        raise SystemExit(f"{folder} has neither {' nor '.join(', '.join(names) for names in NAMES)}.")
    out.mkdir(parents=True, exist_ok=True)
    made = [out / f"{name}.txt" for name in ("train", "valid", "test")]
    for name, path in zip(names, made):
        lines = (folder / name).read_text(encoding="utf-8").lower().splitlines()
        path.write_text("".join(" ".join(WORD.findall(line)) + "\n" for line in lines if line.strip()))
    return [str(path) for path in made]


def draw_blanks(test, tokenizer, seed):
    """Of each line the words before a blank, the word that was there, and those after it."""
    random, drawn = np.random.default_rng(seed), []
    for line in Path(test).read_text().splitlines():
        words = line.split()[:60]
        known = [place for place, word in enumerate(words) if word[0].isalnum() and tokenizer.id(word) is not None]
        if known:
            place = int(random.choice(known))
            drawn.append((words[:place], words[place], words[place + 1 :]))
    return drawn


def filled_by_encoder(run, blanks):
    texts = [Cloze((" ".join(left), " ".join(right)), Place("test", number))
             for number, (left, _, right) in enumerate(blanks, 1)]
    found = fill_blanks(run.model, run.tokenizer, texts, run.tokenizer.id(MASK))
    return np.array([answer["alternatives"][0][0]["text"] == word for answer, (_, word, _) in zip(found, blanks)])


@torch.inference_mode()
def filled_by_left(run, blanks):
    """The most probable word after those on the left."""
    possible, right = torch.from_numpy(possible_fills(run.tokenizer)), []
    for left, word, _ in blanks:
        tokens = np.array([[BOUNDARY, *run.tokenizer.encode(" ".join(left))]])
        logits, _ = run.model.step(on_device(run.model, tokens), run.model.start(1))
        right.append(run.tokenizer.decode([int(possible[logits[0, -1, possible].argmax()])]) == word)
    return np.array(right)


def share(values):
    score = bootstrap(lambda weights: float(weights @ values / len(values)), len(values))
    return {"value": round(score.value, 4), "interval": [round(score.low, 4), round(score.high, 4)]}


if __name__ == "__main__":
    main()
