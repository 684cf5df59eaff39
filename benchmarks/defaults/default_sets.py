"""Sets for benchmarks/defaults/defaults.py that no recipe was tuned on, and the search that is made on each.

A set is a name, for language models a kind and options: `gpt`, `lstm:plain`, `gpt:dropout:60000`, `gru:ptb`.

| option | |
|---|---|
| `plain` | no size is given: the size is the one that a CPU gets |
| `dropout` | the search is over dropout instead of optimizer and learning rate |
| `ptb`, `wikitext` | that text instead of tinyshakespeare |
| `words` | its words instead of its characters |
| a number | so many characters of the text instead of 400,000 |
"""

import lzma
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Settings = dict[str, Any]

TRAIN, HELD_OUT = 5000, 1000      # examples of a set for classification
BOOKS = 6
CHARACTERS = 400_000


@dataclass(frozen=True)
class Trial:
    """One training."""

    set: str
    name: str                         # default, or what differs from it
    kind: str | None                  # None: the one that is chosen
    task: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    device: str = "cpu"
    chosen_for: str = "cpu"           # the device for which defaults are chosen
    late: int = 0                     # trials of a higher number are made last


@dataclass(frozen=True)
class Bar:
    metric: str
    most: float                       # by which the default may be worse
    relative: bool = False            # as a fraction
    falls: bool = False               # less is better

    def best(self, scores: dict[str, float]) -> str:
        return (min if self.falls else max)(scores, key=lambda trial: scores[trial])

    def gap(self, default: float, best: float) -> float:
        """How much worse the default is."""
        return default / best - 1 if self.relative else abs(best - default)


def muon(lr: float) -> Settings:
    return {"train.optimizer": "muon", "train.lr": lr}


def adamw(lr: float) -> Settings:
    return {"train.optimizer": "adamw", "train.lr": lr}


# Language models: rates around that of the default, the nearest first

FACTORS, FAR_FACTORS = (0.5, 2.0), (0.25, 4.0)
ADAMW, FAR_ADAMW = (1e-2, 3e-3), (3e-2, 1e-3)
DROPOUTS: list[Settings] = [{"model.dropout": rate} for rate in (0.0, 0.05, 0.1, 0.2, 0.3)]
SIZES_OF: dict[str, Settings] = {
    "gpt": {"model.layers": 2, "model.width": 64, "model.heads": 2, "model.context": 64},
    "lstm": {"model.layers": 1, "model.hidden": 128},
    "gru": {"model.layers": 1, "model.hidden": 128},
    "rnn": {"model.layers": 1, "model.hidden": 128},
    "feedforward": {"model.hidden": 128, "model.embedding": 32},
}
TEXTS = {"shakespeare": "tinyshakespeare/input.txt", "ptb": "ptb/ptb.train.txt", "wikitext": "wikitext-2/train.txt"}
OF_LOSS = Bar("nats", 0.03, relative=True, falls=True)

# Examples

KINDS: list[Settings] = [{"kind": "loglinear"}, {"kind": "lstm"}]    # of a classifier; with a rate it is an LSTM
AROUND: dict[str, list[Settings]] = {
    "language": [*KINDS, {"train.lr": 2e-3}, adamw(1e-3), {"train.epochs": 10}],
    "author": [*KINDS, muon(1e-2), adamw(3e-3), muon(2.5e-3), {"train.epochs": 10}, {"model.dropout": 0.5},
               adamw(1e-3)],
    "xpos": [muon(1e-2), adamw(2e-3), muon(2.5e-3), {"train.epochs": 10}, {"model.dropout": 0.3}],
    "phonemes": [muon(1.5e-3), muon(6e-3), {"train.epochs": 20}, {"model.dropout": 0.1}, adamw(1e-3)],
    "spelling": [{"text.tokenizer": "characters"}, muon(1.5e-3), muon(6e-3)],
    "syllables": [*KINDS, {"text.tokenizer": "bpe"}, muon(1e-2), muon(2.5e-3), adamw(1e-3)],
    "reviews": [*KINDS, muon(1e-2), muon(2.5e-3), adamw(1e-3), {"train.epochs": 10}, {"model.dropout": 0.5}],
    "phrases": [*KINDS, muon(1e-2), muon(2.5e-3), adamw(1e-3)],
    "letter": [*KINDS, muon(1e-2), muon(2.5e-3), adamw(1e-3)],
    "word": [*KINDS, muon(1e-2), muon(2.5e-3), adamw(1e-3)],
}
TASKS = {"xpos": "tag", "phonemes": "translate", "spelling": "translate"}
BARS = {name: Bar("errors", 0.01, falls=True) if TASKS.get(name) == "translate" else Bar("accuracy", 0.01)
        for name in AROUND}


def read(path: Path) -> str:
    return lzma.open(path, "rt", encoding="utf-8").read() if path.suffix == ".xz" else path.read_text(encoding="utf-8")


def write_rows(folder: Path, name: str, rows: list[str]) -> tuple[str, str]:
    """A table for training and one of HELD_OUT rows, drawn by a seed."""
    random.Random(1).shuffle(rows)
    rows, files = rows[: TRAIN + HELD_OUT], (folder / f"{name}.tsv", folder / f"{name}-valid.tsv")
    cut = len(rows) - min(HELD_OUT, len(rows) // 6)
    for file, some in zip(files, (rows[:cut], rows[cut:])):
        file.write_text("\n".join(["text\tlabel", *some]) + "\n", encoding="utf-8")
    return str(files[0]), str(files[1])


def languages(data: Path, folder: Path) -> tuple[str, str]:
    """The first five words of a line, and whether they are English or German."""
    rows = []
    for language in ("en", "de"):
        lines = read(data / "multi30k" / f"train.{language}").splitlines()
        rows += [f"{' '.join(line.split()[:5])}\t{language}" for line in lines if "\t" not in line]
    return write_rows(folder, "language", rows)


def authors(data: Path, folder: Path) -> tuple[str, str]:
    """A paragraph, and the book it is from."""
    books = re.split(r"^<\|endoftext\|>$", read(data / "gutenberg" / "valid.txt.xz"), flags=re.MULTILINE)
    rows = []
    for number, book in enumerate(sorted(books, key=len)[-BOOKS:]):
        paragraphs = [" ".join(part.split()) for part in book.split("\n\n")]
        rows += [f"{text}\tbook{number}" for text in paragraphs if 150 < len(text) < 500][:1500]
    return write_rows(folder, "author", rows)


def reviews(data: Path, folder: Path) -> tuple[str, str]:
    """A phrase of SST-2, and whether it is good or bad: few of them."""
    return write_rows(folder, "reviews", read(data / "glue" / "SST-2" / "train.tsv").splitlines()[1:])


def phrases(data: Path, folder: Path) -> tuple[str, str]:
    """The same of phrases of two to six words."""
    rows = read(data / "glue" / "SST-2" / "train.tsv").splitlines()[1:]
    return write_rows(folder, "phrases", [row for row in rows if 2 <= len(row.split("\t")[0].split()) <= 6])


def letters(data: Path, folder: Path) -> tuple[str, str]:
    """A name without its last letter, and that letter."""
    names = (name for name in read(data / "names" / "names.txt").split() if len(name) > 2)
    return write_rows(folder, "letter", [f"{name[:-1]}\t{name[-1]}" for name in names])


def words(data: Path, folder: Path) -> tuple[str, str]:
    """A word, and whether it is English or German."""
    rows = set[str]()
    for language in ("en", "de"):
        found = {word.lower() for word in re.findall(r"[^\W\d_]+", read(data / "multi30k" / f"train.{language}"))}
        rows |= {f"{word}\t{language}" for word in found}
    return write_rows(folder, "word", sorted(rows))


def xpos(data: Path, folder: Path) -> tuple[str, str]:
    train, valid = (str(data / "ud-english-ewt" / f"en_ewt-ud-{split}.conllu") for split in ("train", "dev"))
    return train, valid


def pronounced(data: Path) -> list[tuple[str, list[str]]]:
    """Words of letters alone, and their phonemes with stress."""
    lines = read(data / "cmudict" / "cmudict.dict").splitlines()
    words = [line.partition("#")[0].split() for line in lines]
    return [(word, sounds) for word, *sounds in words if word.isalpha()]


def phonemes(data: Path, folder: Path, between: str = " ") -> tuple[str, str]:
    """Letters of a word to its phonemes without stress: 20,000 words, and 1,000 held out."""
    rows = [between.join(word) + "\t" + re.sub(r"\d", "", " ".join(sounds)) for word, sounds in pronounced(data)]
    random.Random(1).shuffle(rows)
    files = (folder / f"phonemes{len(between)}.tsv", folder / f"phonemes{len(between)}-valid.tsv")
    for file, some in zip(files, (rows[:20_000], rows[20_000:21_000])):
        file.write_text("\n".join(["source\ttarget", *some]) + "\n", encoding="utf-8")
    return str(files[0]), str(files[1])


def spelling(data: Path, folder: Path) -> tuple[str, str]:
    """The same, of words as they are written."""
    return phonemes(data, folder, "")


def syllables(data: Path, folder: Path) -> tuple[str, str]:
    """A word, and how many syllables it has."""
    stresses = ((word, sum(sound[-1].isdigit() for sound in sounds)) for word, sounds in pronounced(data))
    return write_rows(folder, "syllables", [f"{word}\t{min(5, count)}" for word, count in stresses])


FILES: dict[str, Callable[[Path, Path], tuple[str, str]]] = {
    "language": languages, "author": authors, "reviews": reviews, "xpos": xpos, "phonemes": phonemes,
    "spelling": spelling, "syllables": syllables, "phrases": phrases, "letter": letters, "word": words}


def trials_of(
    name: str, data: Path, folder: Path, device: str, steps: list[int], kind: str | None, factors: list[float],
) -> list[Trial]:
    """The default first, then the search; of language models by these factors of Muon's rate, if there are any."""
    if name.partition(":")[0] in SIZES_OF:
        return _language_models(name, data, folder, device, steps, factors)
    train, valid = FILES[name](data, folder)
    task = TASKS.get(name, "classify")
    own = kind or {"translate": "transformer", "tag": "lstm"}.get(task)
    base = {"text.tag": "xpos"} if name == "xpos" else {}
    made = []
    for extra in ({}, *AROUND[name]):
        settings = {**base, **extra}
        by = settings.pop("kind", own)
        made.append(Trial(name, said(extra), by, task, (train,), (valid,), settings, device, device))
    return made


def _language_models(
    name: str, data: Path, folder: Path, device: str, steps: list[int], factors: list[float]
) -> list[Trial]:
    kind, *options = name.split(":")
    source = next((option for option in options if option in TEXTS), "shakespeare")
    characters = next((int(option) for option in options if option.isdigit()), CHARACTERS)
    text = folder / f"{source}-{characters}.txt"
    if not text.exists():
        text.write_text(read(data / TEXTS[source])[:characters], encoding="utf-8")
    base: Settings = {"text.tokenizer": "words" if "words" in options else "characters"}
    if "plain" not in options:
        base |= {"train.tokens": 1024, **SIZES_OF[kind]}
    made = []
    for count in steps:
        default = Trial(f"{name}-{count}", "default", kind, "lm", (str(text),), (), {**base, "train.steps": count},
                        device, "cpu" if "plain" in options else device)
        lr = recipe_of(default).train.lr
        search = [(extra, 0) for extra in DROPOUTS] if "dropout" in options else around(lr, factors)
        made += [default, *(replace(default, name=said(extra), settings={**default.settings, **extra}, late=late)
                            for extra, late in search)]
    return made


def around(lr: float, factors: list[float]) -> list[tuple[Settings, int]]:
    """Optimizers and rates around that of the default, and when they are tried."""
    if factors:
        return [(muon(float(f"{lr * factor:.2g}")), 0) for factor in factors]
    near = [*(muon(float(f"{lr * factor:.2g}")) for factor in FACTORS), *map(adamw, ADAMW)]
    far = [*(muon(float(f"{lr * factor:.2g}")) for factor in FAR_FACTORS), *map(adamw, FAR_ADAMW)]
    return [*((extra, 0) for extra in near), *((extra, 1) for extra in far)]


def recipe_of(trial: Trial) -> Any:
    from chainrule.api import training_recipe
    from chainrule.progress import set_quiet

    set_quiet(True)
    return training_recipe(trial.train, kind=trial.kind, task=trial.task, base=None, recipe=None, valid=trial.valid,
                           minutes=None, settings=trial.settings, device=trial.chosen_for)


def said(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "default"
