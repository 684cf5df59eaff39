"""The data that the runs of mangle.py are trained on, and that files of all formats are made of."""

import gzip
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

ANIMALS = [(one, other) for one in ("cat", "dog", "cow") for other in ("bird", "mouse", "fox")]
TEXT = "".join(f"the {one} saw the {other}, and the {other} ran.\n" for one, other in ANIMALS) * 4
LINES = TEXT.splitlines()
WORDS = {"the": "DET", "a": "DET", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "runs": "VERB"}
SENTENCES = [["the", "cat", "runs"], ["a", "dog", "sees", "the", "cat"], ["the", "dog", "runs"]] * 5
REVIEWS = [(f"{much} {word} {thing}", label) for much in ("a", "the") for thing in ("film", "play", "book")
           for word, label in (("fine", "good"), ("lovely", "good"), ("dull", "bad"), ("dreadful", "bad"))]


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True)
    texts: dict[str, str] = {
        "text.txt": TEXT,
        "reviews.tsv": "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in REVIEWS),
        "reviews.csv": "sentence,label\n" + "".join(f'"{text}, yes",{label}\n' for text, label in REVIEWS),
        "reviews.jsonl": _lines({"sentence": text, "label": label} for text, label in REVIEWS),
        "tagged.txt": "\n\n".join("\n".join(f"{word}\t{WORDS[word]}" for word in row) for row in SENTENCES) + "\n",
        "tagged.conllu": "\n".join(map(_conllu, SENTENCES)) + "\n",
        "pairs.tsv": "".join(f"{line[:20]}\t{line[:20][::-1]}\n" for line in LINES[:24]),
        "numbers.csv": "a,b,caption\n" + "".join(f"{n},{n * n / 7:.3f},the {n % 3} cat\n" for n in range(18)),
        "questions.jsonl": _lines({"question": f"who saw {other}?", "context": f"the {one} saw the {other}.",
                                   "answers": [one]} for one, other in ANIMALS * 2),
        "chats.jsonl": _lines({"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
                              for one, other in ANIMALS * 2),
        "preferred.jsonl": _lines({"prompt": f"the {one} saw ", "chosen": f"the {other}.", "rejected": "a."}
                                  for one, other in ANIMALS * 2),
        "frames.jsonl": _lines({"frames": [[n / 9, 1.0], [0.5, n]], "labels": ["up", "down"]} for n in range(12)),
        "questions-words.txt": ": animals\nthe cat the dog\ncat dog cow fox\n",
        "similar.tsv": "cat\tdog\t7\ncow\tfox\t3\nthe\tsaw\t1\n",
        "recipe.toml": 'kind = "ngram"\n[text]\ntokenizer = "characters"\n[model]\norder = 3\n[train]\nseed = 2\n',
        "blanks.txt": "".join(f"{line[:14]}[MASK]{line[18:30]}\n" for line in LINES[:6]),
        "inputs.txt": "".join(f"{line[:24]}\n" for line in LINES[:6]),
        "model.toml": _example("weather.toml"),
        "network.toml": _example("summation.toml"),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    np.save(folder / "features.npy", np.arange(36, dtype=np.float32).reshape(18, 2) / 9)
    (folder / "captions.txt").write_text("".join(f"the {n % 3} cat\n" for n in range(18)))
    for suffix, pack in (("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstandard.compress)):
        (folder / f"text.txt.{suffix}").write_bytes(pack(TEXT.encode()))
        (folder / f"reviews.tsv.{suffix}").write_bytes(pack(texts["reviews.tsv"].encode()))


def _lines(rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _conllu(sentence: Sequence[str]) -> str:
    rows = (f"{n}\t{word}\t_\t{WORDS[word]}" + "\t_" * 6 for n, word in enumerate(sentence, 1))
    return "# text = " + " ".join(sentence) + "\n" + "\n".join(rows) + "\n"


def _example(name: str) -> str:
    from chainrule.formats.hand_written import built_in_models

    return built_in_models()[name.removesuffix(".toml")].read_text(encoding="utf-8")
