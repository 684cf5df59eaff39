"""Pictures of the views in docs/views: trains small runs, opens the live page in chromium, and photographs it.

    python website/pictures.py [NAME …] [--runs FOLDER] [--data FOLDER]

NAME: a picture (default: all below). The runs are in FOLDER (default: runs/pictures), where finished ones are used
again; all together they take about ten minutes on two cores. --data has the folders tinyshakespeare and multi30k
(default: $CHAINRULE_DATA).
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from chainrule.cli import main as chainrule
from chainrule.text.synthetic import language

ROOT = Path(__file__).parents[1]
VIEWS = ROOT / "docs" / "views"
SIZE = {"width": 1280, "height": 720}
ROMEO = "ROMEO:\nO fair maid, my l"
CAPTIONS = """A man is on the street .
The street is full of people .
Two dogs play in the street .
A street in the city at night .
A street vendor is selling fruit .
A street performer plays the guitar .
People cross the street .
A woman walks down the street ."""
CAPITALS = "\n".join(f"{one} -> {one.upper()}" for one in ("king", "lord", "my", "sir", "thou", "love", "death", "man"))
PLAY, SYMBOLS, LINES, ENGLISH = "play.txt", "rhythm", "brackets.txt", "captions.en"
RUNS = {    # name: the text, and how it is trained
    "unigram": (PLAY, "--kind ngram model.order=1 text.tokenizer=characters"),
    "ngram": (PLAY, "--kind ngram model.order=5 text.tokenizer=characters"),
    "hmm": (PLAY, "--kind hmm model.states=8 text.tokenizer=characters train.steps=40"),
    "rnn": (PLAY, "--kind rnn text.tokenizer=characters --minutes 0.5"),
    "lstm": (PLAY, "--kind lstm text.tokenizer=characters --minutes 1.5"),
    "gpt": (PLAY, "--kind gpt text.tokenizer=characters --minutes 2"),
    "words": (PLAY, "--kind word2vec text.min_count=5"),
    "captions": (ENGLISH, "--task mask --minutes 3"),
    "rhythm": (SYMBOLS, "--kind rnn text.tokenizer=symbols model.hidden=3 model.embedding=onehot model.tied=false "
               "model.dropout=0 train.steps=1500 train.tokens=1024 train.length=32 train.lr=0.03"),
    "brackets": (LINES, "--kind gpt text.tokenizer=words model.layers=1 model.heads=1 model.width=6 model.hidden=8 "
                 "model.context=13 model.positions=learned model.norm=layer model.qk_norm=false "
                 "model.norm_embedding=false model.activation=relu train.optimizer=adamw train.steps=1500 "
                 "train.tokens=2048 train.lr=0.02"),
}


@dataclass(frozen=True)
class Picture:
    view: str
    runs: tuple[str, ...]
    text: str = ROMEO
    choices: Mapping[str, str] = field(default_factory=dict)    # of the view, as in the page's address


PICTURES = {
    "die": Picture("die", ("ngram", "lstm", "gpt"), choices={"temperature": "0.7", "top-k": "8"}),
    "surprise": Picture("surprise", ("ngram", "lstm", "gpt"), ROMEO + "ove, so early and so late?"),
    "backoff": Picture("backoff", ("ngram",), ROMEO),
    "trellis": Picture("trellis", ("hmm",), "my fair love"),
    "neurons": Picture("neurons", ("lstm",), f"{ROMEO}ove,\nwhat light is there?\n\nJULIET:\nAy me!"),
    "attention": Picture("attention", ("gpt",), ROMEO + "ove"),
    "lens": Picture("lens", ("gpt",), ROMEO + "ove"),
    "unrolled": Picture("unrolled", ("brackets",), "( [ ] )"),
    "unrolled-rnn": Picture("unrolled", ("rhythm",), "1001"),
    "gradient": Picture("gradient", ("rnn", "lstm", "gpt"), ROMEO + "ove, so early and so late?"),
    "vectors": Picture("vectors", ("words",), choices={"a": "king"}),
    "contextual": Picture("contextual", ("captions",), CAPTIONS, {"word": "street"}),
    "in-context": Picture("in_context", ("ngram", "lstm", "gpt"), CAPITALS),
    "cost": Picture("cost", ("lstm", "gpt")),
}


def write_texts(folder: Path, data: Path | None) -> None:
    """The texts that runs are trained on, where they are not there yet."""
    lines = (" ".join(line[:12]) for line in language("brackets").text(100_000).split())
    (folder / LINES).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for name, corpus, file in ((PLAY, "tinyshakespeare", "input.txt"), (ENGLISH, "multi30k", "train.en")):
        known = data / corpus / file if data else None
        if known is None or not known.exists():
            raise SystemExit(f"no {corpus}/{file} in --data or $CHAINRULE_DATA.")
        shutil.copy(known, folder / name)


def train(name: str, folder: Path) -> None:
    """A finished run is loaded and not trained again."""
    text, words = RUNS[name]
    source = text if text == SYMBOLS else str(folder / text)
    if chainrule(["train", source, *words.split(), "--out", str(folder / name)]):
        raise SystemExit(f"{name} could not be trained.")


def address(picture: Picture) -> str:
    chosen = {"page.runs": ",".join(picture.runs), "page.view": picture.view, "page.text": picture.text}
    return urlencode(chosen | {f"{picture.view}.{name}": value for name, value in picture.choices.items()})


@contextmanager
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        found = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


def photograph(names: list[str], folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from look import served

    needed = list(dict.fromkeys(run for name in names for run in PICTURES[name].runs))
    with served([folder / run for run in needed]) as connection, browser() as window:
        for name in names:
            page = window.new_page(viewport=SIZE, color_scheme="light", device_scale_factor=1)    # type: ignore[attr-defined]
            page.goto(f"http://{connection.host}:{connection.port}/#{address(PICTURES[name])}")
            page.wait_for_selector(f"html[data-drawn] #{PICTURES[name].view} .picture", timeout=120_000)
            page.wait_for_timeout(6_000 if name == "cost" else 1_500)    # the view of cost measures piece by piece
            page.screenshot(path=VIEWS / f"{name}.png")
            page.close()
            print(VIEWS / f"{name}.png", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="*", choices=[[], *PICTURES], help="pictures (default: all)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "pictures")
    parser.add_argument("--data", type=Path, default=os.environ.get("CHAINRULE_DATA"))
    args = parser.parse_args()
    names = args.name or list(PICTURES)
    args.runs.mkdir(parents=True, exist_ok=True)
    write_texts(args.runs, args.data and Path(args.data))
    for run in dict.fromkeys(run for name in names for run in PICTURES[name].runs):
        train(run, args.runs)
    photograph(names, args.runs)


if __name__ == "__main__":
    main()
