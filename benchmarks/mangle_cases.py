"""What benchmarks/mangle.py mangles: tiny runs of all kinds and tasks, files of all formats, settings; and how.

A case is made from a seed and its number alone: a copy of something whole, one change to it, and the commands that
read it. `strict` cases must give the answer of the unchanged copy, or a clear line: runs, whose files are sealed, and
caches. Other files have no checksum, so a changed one may hold another valid table or model.
"""

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


# The data that runs are trained on, and that files of all formats are made of

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


# Runs

RECURRENT = {"model.hidden": 8, "model.layers": 1}
TRANSFORMER = {"model.layers": 1, "model.width": 8, "model.heads": 2, "model.context": 64}
VECTORS = {"model.embedding": 4, "text.min_count": 1, "train.epochs": 1.0}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "uniform": {}, "unigram": {}, "bigram": {}, "ngram": {"model.order": 3}, "hmm": {"model.states": 3},
    "feedforward": {"model.hidden": 8, "model.embedding": 4, "model.order": 3},
    "rnn": RECURRENT, "gru": RECURRENT, "lstm": RECURRENT, "seq2seq": RECURRENT,
    "gpt": TRANSFORMER, "encoder": TRANSFORMER, "transformer": TRANSFORMER, "word2vec": VECTORS, "glove": VECTORS,
}  # fmt: skip
TOKENIZERS = ("characters", "words", "bytes", "bpe")
GRADIENT = ("feedforward", "rnn", "gru", "lstm", "gpt", "encoder", "transformer", "seq2seq")
TASK_DATA = {
    "lm": ["text.txt"], "classify": ["reviews.tsv"], "tag": ["tagged.txt"], "translate": ["pairs.tsv"],
    "caption": ["numbers.csv"], "answer": ["questions.jsonl"], "chat": ["chats.jsonl"], "mask": ["text.txt"],
    "span": ["text.txt"], "denoise": ["text.txt"], "reward": ["preferred.jsonl"], "preference": ["preferred.jsonl"],
}
TASK_KINDS = {
    "lm": ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "rnn", "gru", "lstm", "gpt", "word2vec",
           "glove"),
    "classify": ("ngram", "hmm", "lstm", "gpt", "encoder"), "tag": ("hmm", "gru", "encoder"),
    "translate": ("seq2seq", "transformer", "gpt"), "caption": ("seq2seq", "transformer"),
    "answer": ("transformer", "gpt"), "chat": ("lstm", "gpt"), "mask": ("encoder",), "span": ("transformer",),
    "denoise": ("seq2seq",), "reward": ("gpt", "encoder"), "preference": ("gpt", "lstm"),
}  # fmt: skip




@dataclass(frozen=True)
class Trained:
    """A run of the material: how it was trained, and the commands that read it."""

    name: str
    kind: str
    task: str
    data: Sequence[str]
    settings: Mapping[str, Any]
    base: str = ""                  # the run it was tuned from

    @property
    def train_words(self) -> list[str]:
        given = [f"{name}={value}" for name, value in self.settings.items()]
        begin = ["--from", f"runs/{self.base}"] if self.base else ["--kind", self.kind]
        return ["train", *(f"data/{name}" for name in self.data), *begin, "--task", self.task, *given]

    @property
    def uses(self) -> list[list[str]]:
        run, text = f"runs/{self.name}", "data/" + self.data[0]
        if self.kind in ("word2vec", "glove"):
            return [["analogy", run, "cat"], ["eval", run, "data/similar.tsv", "--json"],
                    ["eval", run, "data/questions-words.txt", "--json"]]
        if self.task == "lm":
            found = [["score", run, text, "--json"], ["eval", run, text, "--json"], ["next", run, "--prompt", "the"],
                     ["sample", run, "--tokens", "8", "--prompt", "the"], ["score", run, "data/inputs.txt"]]
            return [*found, ["predict", run, "data/inputs.txt"]] if self.kind == "hmm" else found
        if self.task in ("chat", "preference"):
            return [["eval", run, text, "--json"], ["sample", run, "--tokens", "8", "--prompt", "the"]]
        if self.task == "reward":
            return [["eval", run, text, "--json"]]
        inputs = {"mask": "data/blanks.txt", "caption": "data/numbers.csv", "answer": text, "span": "data/blanks.txt",
                  "denoise": "data/blanks.txt", "tag": "data/inputs.txt", "classify": "data/inputs.txt"}
        predict = ["predict", run, inputs.get(self.task, "data/inputs.txt"), "--json"]
        if self.task in ("translate", "caption", "answer"):
            predict += ["--limit", "12"]
        return [["eval", run, text, "--json"], predict]


def all_runs() -> Iterator[Trained]:
    number = 0
    for task, kinds in TASK_KINDS.items():
        for kind in kinds:
            settings = dict[str, Any]({} if (kind, task) == ("hmm", "tag") else SMALL[kind])
            if task != "lm" or kind not in ("word2vec", "glove", "uniform"):
                settings["text.tokenizer"] = TOKENIZERS[number % len(TOKENIZERS)]
            if settings.get("text.tokenizer") == "bpe":
                settings["text.vocab"] = 270
            if settings.get("text.tokenizer") == "words":
                settings["text.min_count"] = 1
            if kind in GRADIENT:
                settings |= {"train.steps": 2, "train.tokens": 256}
            number += 1
            name, base = f"{kind}-{task}", ""
            if task == "preference":
                settings, base = {"train.steps": 2, "train.lr": 1e-3}, kind
            yield Trained(kind if task == "lm" else name, kind, task, TASK_DATA[task], settings, base)
    llama = {"model.activation": "swiglu", "model.norm_scale": True, "model.norm_embedding": False,
             "model.qk_norm": False, "text.tokenizer": "bpe", "text.vocab": 270, "train.steps": 2, "train.tokens": 256}
    yield Trained("llama", "gpt", "lm", TASK_DATA["lm"], {**SMALL["gpt"], **llama})


# Files of other programs: what imports them, and what then asks the run that was made

def exports(runs: Sequence[str]) -> list[list[str]]:
    """Commands that write files of other formats from the runs that there are."""
    wanted = {"ngram": [["export", "runs/ngram", "data/model.arpa", "--to", "arpa"]],
              "word2vec": [["export", "runs/word2vec", f"data/vectors.{form}", "--to", form]
                           for form in ("glove", "word2vec", "word2vec-binary")],
              "llama": [["export", "runs/llama", "data/hf", "--to", "huggingface"],
                        ["export", "runs/llama", "data/model.gguf", "--to", "gguf"]]}
    return [words for name in runs for words in wanted.get(name, [])]


@dataclass(frozen=True)
class Reading:
    """A file in data/ and the commands that read it."""

    file: str
    uses: Sequence[Sequence[str]]


def readings(runs: Sequence[str], data: Path) -> list[Reading]:
    score, analogy = ["score", "made", "data/inputs.txt"], ["analogy", "made", "cat"]
    every = [
        *(Reading(file, [["import", f"data/{file}", "made"], ask]) for file, ask in (
            ("model.arpa", score), ("model.gguf", score), ("model.toml", ["next", "made"]),
            ("vectors.glove", analogy), ("vectors.word2vec", analogy), ("vectors.word2vec-binary", analogy))),
        *(Reading(f"hf/{name}", [["import", "data/hf", "made"], score]) for name in (
            "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")),
        *(Reading(f"reviews.{form}", [["train", f"data/reviews.{form}", "--kind", "ngram", "--task", "classify",
                                       "--out", "made", "--json", "text.tokenizer=words"]])
          for form in ("tsv", "csv", "jsonl", "tsv.gz", "tsv.xz", "tsv.zst")),
        *(Reading(f"text.txt{form}", [["train", f"data/text.txt{form}", "--kind", "bigram", "--out", "made", "--json"]])
          for form in ("", ".gz", ".xz", ".zst")),
        *(Reading(f"tagged.{form}", [["train", f"data/tagged.{form}", "--kind", "hmm", "--task", "tag", "--out", "made",
                                      "--json"]]) for form in ("conllu", "txt")),
        Reading("network.toml", [["import", "data/network.toml", "made"]]),
        Reading("recipe.toml", [["train", "data/text.txt", "--recipe", "data/recipe.toml", "--out", "made", "--json"]]),
        Reading("questions-words.txt", [["eval", "runs/word2vec", "data/questions-words.txt", "--json"]]),
        Reading("similar.tsv", [["eval", "runs/word2vec", "data/similar.tsv", "--json"]]),
        Reading("blanks.txt", [["predict", "runs/encoder-mask", "data/blanks.txt"]]),
        Reading("inputs.txt", [["predict", "runs/hmm-tag", "data/inputs.txt"]]),
        Reading("pairs.tsv", [["eval", "runs/seq2seq-translate", "data/pairs.tsv", "--json", "--limit", "12"]]),
        Reading("numbers.csv", [["eval", "runs/transformer-caption", "data/numbers.csv", "--json", "--limit", "12"]]),
        Reading("features.npy", [["predict", "runs/transformer-caption", "data/features.npy", "--limit", "12"]]),
        Reading("questions.jsonl", [["eval", "runs/gpt-answer", "data/questions.jsonl", "--json", "--limit", "12"]]),
        Reading("chats.jsonl", [["eval", "runs/gpt-chat", "data/chats.jsonl", "--json"]]),
        Reading("preferred.jsonl", [["eval", "runs/gpt-preference", "data/preferred.jsonl", "--json"]]),
        Reading("preferred.jsonl", [["eval", "runs/encoder-reward", "data/preferred.jsonl", "--json"]]),
        Reading("frames.jsonl", [["train", "data/frames.jsonl", "--kind", "lstm", "--task", "tag", "--out", "made",
                                  "--json", "model.hidden=4", "model.layers=1", "train.steps=2"]]),
    ]  # fmt: skip
    needed = {reading: [word.split("/")[1] for words in reading.uses for word in words if word.startswith("runs/")]
              for reading in map(_hashable, every)}
    return [reading for reading, names in needed.items() if (data / reading.file).exists() and set(names) <= set(runs)]


def _hashable(reading: Reading) -> Reading:
    return Reading(reading.file, tuple(map(tuple, reading.uses)))


# Cases

@dataclass(frozen=True)
class Case:
    number: int
    what: str                       # run, resealed, file, setting, option, cache
    about: str                      # what was changed, for people
    words: Sequence[Sequence[str]]
    strict: bool = False            # whether the answer of the unchanged copy is the only right one
    refused: bool = False           # whether no answer at all is right: the value makes no sense
    change: Callable[[Path], None] = field(default=lambda folder: None, compare=False)

    @property
    def reads(self) -> set[str]:
        """The runs that it needs."""
        return {word.split("/")[1] for words in self.words for word in words if word.startswith("runs/")}


def make_case(number: int, seed: int, runs: Sequence[Trained], files: Sequence[Reading]) -> Case:
    rng = random.Random(seed * 1_000_003 + number)
    what = rng.choices(("run", "resealed", "file", "setting", "option", "cache"), (18, 22, 32, 20, 5, 3))[0]
    if what in ("run", "resealed"):
        return _mangled_run(number, what, rng, rng.choice(runs))
    if what == "file":
        return _mangled_file(number, rng, rng.choice(files))
    if what == "option":
        return _wrong_option(number, rng, rng.choice(runs))
    if what == "cache":
        counted = [run for run in runs if run.task == "lm" and run.kind in ("bigram", "ngram", "unigram")]
        return _mangled_cache(number, rng, rng.choice(counted))
    return _wrong_setting(number, rng, rng.choice(runs))


def _mangled_run(number: int, what: str, rng: random.Random, run: Trained) -> Case:
    name = rng.choice(("recipe.json", "recipe.json", "tokenizer.json", "model.safetensors", "model.safetensors",
                       "tokenizer_config.json", "log.jsonl"))
    uses, token = rng.choice(run.uses), rng.getrandbits(64)

    def change(folder: Path) -> None:
        path = folder / "runs" / run.name
        _change_file(path / name, random.Random(token), folder)
        if what == "resealed":
            reseal(path)

    strict = what == "run" or name in ("tokenizer_config.json", "log.jsonl")
    return Case(number, what, f"{run.name}/{name}", [uses], strict, change=change)


def reseal(path: Path) -> None:
    """recipe.json as if it had been written so: the sizes and hashes of the files beside it, and its own hash."""
    from chainrule.files import SEAL, seal_of

    try:
        about = json.loads((path / "recipe.json").read_text(encoding="utf-8"))
        for name, facts in about["files"].items():
            content = (path / name).read_bytes()
            facts |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        about = about if "about" in locals() else None
    if isinstance(about, dict):
        about[SEAL] = seal_of(about)
        (path / "recipe.json").write_text(json.dumps(about), encoding="utf-8")


def _mangled_file(number: int, rng: random.Random, reading: Reading) -> Case:
    token = rng.getrandbits(64)

    def change(folder: Path) -> None:
        _change_file(folder / "data" / reading.file, random.Random(token), folder)

    return Case(number, "file", reading.file, reading.uses, change=change)


def _mangled_cache(number: int, rng: random.Random, run: Trained) -> Case:
    token = rng.getrandbits(64)
    words = [*run.train_words, "--out", "made", "--json"]

    def change(folder: Path) -> None:
        train_first(run, folder)
        rng = random.Random(token)
        found = sorted(path for path in (folder / "cache").rglob("*") if path.is_file())
        _change_bytes(rng.choice(found), rng)

    return Case(number, "cache", run.name, [words], strict=True, change=change)


def train_first(run: Trained, folder: Path) -> None:
    """Fills the cache: what is in it counts for the very files that it was made of, not for copies."""
    from chainrule.cli import main

    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        os.environ["CHAINRULE_CACHE"] = str(folder / "cache")
        main([*run.train_words, "--out", "first"])


# Changes of files

def _change_file(path: Path, rng: random.Random, folder: Path) -> None:
    if path.suffix == ".json" and rng.random() < 0.75:
        text = json.dumps(change_json(json.loads(path.read_text(encoding="utf-8")), rng))
        path.write_text(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"), encoding="utf-8")
    elif path.suffix == ".jsonl" and rng.random() < 0.6:
        _change_line(path, rng)
    elif path.suffix == ".safetensors" and rng.random() < 0.5:
        _change_safetensors(path, rng)
    elif path.suffix in TEXTS and rng.random() < 0.6:
        _change_fields(path, rng)
    else:
        _change_bytes(path, rng, folder)


TEXTS = (".txt", ".tsv", ".csv", ".conllu", ".toml", ".arpa", ".glove", ".word2vec")
ODD = ("", "0", "-1", "nan", "inf", "-inf", "1e50", "-1e50", "1e999", "-99", "9" * 25, "\\end\\", "\t", "\t\t\t", '"',
       '""', "'", "{", "[", "\\", "\u2028", "\u00a0", "\ufeff", "<unk>", "</s>", "<s>", "é" * 300, "x" * 5000,
       "ngram 1=99999999999", "\\2-grams:", "true", "[[", "=", "#", "a = 1", "\r", "-0.5", "50", "0.0001")  # fmt: skip


def _change_fields(path: Path, rng: random.Random) -> None:
    """One field of a line replaced, removed, doubled, or exchanged with another; or a line so."""
    lines = path.read_text(encoding="utf-8").split("\n")
    place = rng.randrange(len(lines))
    separators = [sign for sign in ("\t", ",", "=", " ") if sign in lines[place]]
    if separators and rng.random() < 0.7:
        separator = rng.choice(separators)
        parts = lines[place].split(separator)
        parts[rng.randrange(len(parts))] = rng.choice(ODD)
        lines[place] = separator.join(parts)
    else:
        _change_list(lines, rng, lambda: rng.choice(ODD))
    path.write_text("\n".join(lines), encoding="utf-8", newline="")


def _change_list(items: list[Any], rng: random.Random, odd: Callable[[], Any]) -> None:
    place, other = rng.randrange(len(items)), rng.randrange(len(items))
    how = rng.randrange(5)
    if how == 0:
        del items[place]
    elif how == 1:
        items.insert(place, items[other])
    elif how == 2:
        items[place], items[other] = items[other], items[place]
    elif how == 3:
        items[place] = odd()
    else:
        del items[place:]


def _change_line(path: Path, rng: random.Random) -> None:
    """A line of JSON lines, changed as JSON or as a line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines:
        return
    place = rng.randrange(len(lines))
    if rng.random() < 0.7:
        lines[place] = json.dumps(change_json(json.loads(lines[place]), rng))
    else:
        _change_list(lines, rng, lambda: rng.choice(ODD))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def _change_bytes(path: Path, rng: random.Random, folder: Path | None = None) -> None:
    data = bytearray(path.read_bytes())
    how = rng.randrange(8)
    if how <= 2 and data:                                       # bits flipped
        for _ in range(rng.choice((1, 1, 1, 8, 64))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 3:
        del data[rng.randrange(len(data) + 1):]
    elif how == 4 and data:                                     # a piece doubled, removed or replaced by noise
        begin = rng.randrange(len(data))
        end = min(len(data), begin + rng.choice((1, 7, 64, 1000)))
        data[begin:end] = rng.choice((b"", bytes(data[begin:end]) * 2, rng.randbytes(end - begin), b"\0" * 64,
                                      b"\xff" * 8, b"9" * 30))
    elif how == 5:
        data += rng.choice((b"\n", b"\0", b"garbage", rng.randbytes(100), bytes(data[:200])))
    elif how == 6:
        data = bytearray(rng.choice((b"", b"\n", b"\0" * 8, b"{}", b"[]", b"null", b"\xff\xfe", b"PK\x03\x04")))
    elif folder is not None:                                    # another file in its place
        others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
        data = bytearray(rng.choice(others).read_bytes() if others else b"")
    path.unlink()                                               # it may be a link to the unchanged one
    path.write_bytes(data)


def _change_safetensors(path: Path, rng: random.Random) -> None:
    """The header changed as JSON, or numbers replaced by nan and infinity."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, rest = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    if rng.random() < 0.6:
        header = change_json(header, rng)
    elif len(rest) >= 4:
        place = rng.randrange(len(rest) // 4) * 4
        rest[place : place + 4] = struct.pack("<f", rng.choice((math.nan, math.inf, -math.inf, 3e38, -1e30)))
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + rest)


def change_json(value: Any, rng: random.Random) -> Any:
    """One place of a JSON value changed: removed, added, exchanged, or replaced by a value of a wrong type or size."""
    if isinstance(value, dict | list) and value and rng.random() < 0.75:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        how = rng.randrange(8)
        if how <= 4:
            value[key] = change_json(value[key], rng)
        elif how == 5:
            del value[key]
        elif how == 6 and isinstance(value, dict):
            value[rng.choice(("unknown", "", "a.b", f"{key}x"))] = _odd_value(rng)
        else:
            other = rng.choice(keys)
            value[key], value[other] = value[other], value[key]
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice((value + 1, -value, value * 10**6, value / 3, 10**20, 10**400, 0, 1e308, str(value)))
    return _odd_value(rng)


def _odd_value(rng: random.Random) -> Any:
    return rng.choice((None, True, False, 0, -1, 1.5, 10**20, -(10**20), 10**400, math.nan, math.inf, "", "x",
                       "x" * 3000, "9" * 30, [], [[]], {}, {"x": 1}, [None], ["x"], [1, 2, 3], [[[[[[]]]]]], "\0",
                       "../../etc", "<|endoftext|>"))  # fmt: skip


# Settings and options

NONSENSE = ("abc", "nan", "inf", "-inf", "1e999", "9" * 25, "-" + "9" * 25, "9" * 5000, "1e20", "-1e300", "[1]", "{}",
            "0x10", "½", "1 2", "--", "1e", "x" * 3000)  # fmt: skip
OTHERS = ("", "0", "-1", "1.5", "-0.0", "true", "none", "1,2,3", ",", "1e-320", "2147483648", "0.999999", "/dev/null",
          "..", "*", "٣", "1_0", " 1", "\u2028", "1e308", "1e15", "16777216", "100000", "1000")  # fmt: skip
WORK = ("steps", "epochs", "total_tokens", "minutes", "restarts", "prompts", "generations", "answer_tokens", "pairs",
        "inner_epochs", "mini_batches", "--tokens", "--rows", "--limit", "--samples", "--beam", "--top", "--positions",
        "layers", "encoder_layers", "decoder_layers", "experts", "states", "convolutions", "query_layers")  # fmt: skip
"""A large number of these is a large amount of work, which a user may ask for."""
RUNNABLE = 50


def _wrong_setting(number: int, rng: random.Random, run: Trained) -> Case:
    name, hint = rng.choice(settings_of(run))
    value, refused = wrong_value(rng, hint, name.rpartition(".")[2])
    given = {**run.settings, name: value}
    words = Trained(run.name, run.kind, run.task, run.data, given, run.base).train_words
    return Case(number, "setting", f"{run.name} {name}={value[:40]}", [[*words, "--out", "made", "--json"]],
                refused=refused)


def settings_of(run: Trained) -> list[tuple[str, Any]]:
    from chainrule.recipe import TRAIN
    from chainrule.settings import hints
    from chainrule.tasks import find_task

    task = find_task(run.task)
    model = task.model_class(run.kind)
    parts = {"text": task.text, "model": model.Settings, "train": task.train.get(model.learns_by,
             TRAIN[model.learns_by]), "head": task.heads.get(model.learns_by)}
    return [(f"{part}.{name}", hint) for part, cls in parts.items() if cls for name, hint in hints(cls).items()]


def wrong_value(rng: random.Random, hint: Any, name: str) -> tuple[str, bool]:
    """A value, and whether it makes no sense for a setting of this type."""
    from chainrule.settings import range_of

    allowed = range_of(hint)
    is_text = "str" in str(hint) or "Path" in str(hint)
    if rng.random() < 0.5:
        return rng.choice(NONSENSE), not is_text and allowed is not None
    value = rng.choice(OTHERS)
    if name in WORK and _number(value) > RUNNABLE:
        return "-1", allowed is not None and -1 not in allowed
    return value, False


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _wrong_option(number: int, rng: random.Random, run: Trained) -> Case:
    from argparse import ArgumentParser

    from chainrule.cli import COMMANDS

    uses = list(rng.choice(run.uses))
    parser = ArgumentParser(add_help=False)
    COMMANDS[uses[0]].arguments(parser)
    options = [action.option_strings[0] for action in parser._actions if action.option_strings and action.nargs != 0]
    option = rng.choice(options)
    value, _ = wrong_value(rng, float, option)
    return Case(number, "option", f"{run.name} {uses[0]} {option} {value[:40]}", [[*uses, f"{option}={value}"]])


def copy_material(material: Path, folder: Path, case: Case) -> None:
    """What the case reads, in a folder of its own; data that it does not change is linked."""
    folder.mkdir(parents=True)
    shutil.copytree(material / "data", folder / "data")
    for name in case.reads:
        shutil.copytree(material / "runs" / name, folder / "runs" / name)
