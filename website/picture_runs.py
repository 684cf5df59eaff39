"""The small runs of the pictures in docs/figures: their texts, and the commands that train them, all by a fixed seed.

The texts are parts of tinyshakespeare, multi30k, SST-2 and EWT, and texts made by rules.
"""

import json
import random
import shlex
import shutil
import string
from pathlib import Path

from chainrule.cli import main as chainrule
from chainrule.text.synthetic import language

LESSON_TEXTS = Path(__file__).parents[1] / "docs" / "lessons" / "texts"

PUBLIC = {"play.txt": "tinyshakespeare/input.txt", "captions.en": "multi30k/train.en",
          "reviews.tsv": "glue/SST-2/train.tsv", "ewt.conllu": "ud-english-ewt/en_ewt-ud-train.conllu"}

SMALL_RECURRENT = "model.layers=1 model.hidden=128 model.dropout=0 train.tokens=1024 train.lr=0.005 train.evaluate=0"

LETTERS = string.ascii_lowercase

RUNS = {    # name: the command, in the folder of the runs and their texts
    "ngram": "train play.txt --kind ngram model.order=5 text.tokenizer=characters",
    "hmm": "train play.txt --kind hmm model.states=8 text.tokenizer=characters train.steps=40",
    "rnn": f"train play.txt --kind rnn text.tokenizer=characters {SMALL_RECURRENT} train.steps=300",
    "lstm": f"train play.txt --kind lstm text.tokenizer=characters {SMALL_RECURRENT} train.steps=500",
    "gpt": "train play.txt --kind gpt text.tokenizer=characters --minutes 2",
    "royal": "train royal.txt --kind word2vec model.embedding=16 model.window=4 model.sample=0 text.min_count=1 "
             "train.epochs=15 train.lr=0.1",
    "captions": "train captions.en --task mask text.tokenizer=words model.layers=2 model.width=96 model.heads=4 "
                "train.tokens=1024 train.steps=1000 train.evaluate=0",
    "english-french": "train pairs.tsv --task translate --kind seq2seq model.cell=gru model.attention=additive "
                      "model.hidden=64 model.layers=1 model.dropout=0 text.tokenizer=words train.epochs=40 "
                      "train.tokens=256 train.lr=0.005 train.evaluate=0",
    "tagger": "train ewt.conllu --task tag --kind hmm",
    "reviews": "train reviews.tsv --task classify --kind lstm text.tokenizer=words model.layers=1 model.hidden=32 "
               "model.embedding=32 train.tokens=1024 train.steps=400 train.lr=0.005 train.evaluate=0",
    "loglinear": "train reviews.tsv --task classify --kind loglinear text.tokenizer=bpe",
    "rhythm": "train rhythm --kind rnn text.tokenizer=symbols model.hidden=3 model.embedding=onehot model.tied=false "
              "model.dropout=0 train.steps=1500 train.tokens=1024 train.length=32 train.lr=0.03",
    "brackets": "train brackets.txt --kind gpt text.tokenizer=words model.layers=1 model.heads=1 model.width=6 "
                "model.hidden=8 model.context=13 model.positions=learned model.norm=layer model.qk_norm=false "
                "model.norm_embedding=false model.activation=relu train.optimizer=adamw train.steps=1500 "
                "train.tokens=2048 train.lr=0.02",
    "copying": "train repeats.jsonl --kind gpt text.tokenizer=symbols model.layers=2 model.width=64 model.heads=4 "
               "model.context=64 model.dropout=0 train.optimizer=muon train.lr=0.02 train.tokens=1024 "
               "train.steps=3500 train.evaluate=0",
    "small": "train smalltalk --task chat --kind gpt model.layers=2 model.width=64 model.heads=2 model.context=128 "
             "train.lr=0.004 train.epochs=8",
    "talk": "train talk.txt --kind gpt model.layers=2 model.width=32 model.heads=2 model.context=16 "
            "text.tokenizer=words train.steps=300 train.tokens=512 train.lr=0.01",
    "clicks": "prefer talk shows.jsonl --judge python:taste.cheerful --pairs 150 --tokens 8",
    "dpo": "train clicks.jsonl --task preference --from talk train.method=dpo train.lr=0.002 train.epochs=8",
}
FIRST = {"dpo": ("talk", "clicks"), "clicks": ("talk",)}      # runs that others need


def repeats(documents: int = 6000) -> str:
    """JSON lines. Half of the documents are pairs of letters that come again, the others letters in a random
    order, which comes again: what follows a letter is known from the document alone, where it came before."""
    draw = random.Random(1)
    return "".join(json.dumps({"text": _pairs(draw) if number % 2 else _sequence(draw)}) + "\n"
                   for number in range(documents))


def _pairs(draw: random.Random) -> str:
    questions, answers = draw.sample(LETTERS, 5), draw.sample(LETTERS, 5)
    return "\n".join(f"{questions[at]}:{answers[at]}" for at in draw.choices(range(5), k=15))


def _sequence(draw: random.Random) -> str:
    once = "".join(draw.choices(f"{LETTERS}:\n", k=draw.randint(8, 31)))
    return (8 * once)[:62]


def brackets() -> str:
    lines = (" ".join(line[:12]) for line in language("brackets").text(100_000).split())
    return "".join(f"{line}\n" for line in lines)


def write_texts(folder: Path, data: Path) -> None:
    """The texts that runs are trained on, where they are not there yet; `data` has the public ones."""
    copied = {path.name: path for path in LESSON_TEXTS.iterdir()} | {name: data / path for name, path in PUBLIC.items()}
    for name, source in copied.items():
        if not (folder / name).exists():
            shutil.copyfile(source, folder / name)
    made = {"brackets.txt": brackets, "repeats.jsonl": repeats}
    for name, make in made.items():
        if not (folder / name).exists():
            (folder / name).write_text(make(), encoding="utf-8")


def train(name: str) -> None:
    """Into a folder, or a file, of this name in the current one. What is there already is not made again."""
    for needed in FIRST.get(name, ()):
        train(needed)
    out = f"{name}.jsonl" if name == "clicks" else name
    if not finished(Path(out)) and chainrule([*shlex.split(RUNS[name]), "--out", out]):
        raise SystemExit(f"{name} could not be trained.")


def finished(path: Path) -> bool:
    log = path / "log.jsonl"
    return path.is_file() or (log.exists() and '"event": "result"' in log.read_text(encoding="utf-8"))
