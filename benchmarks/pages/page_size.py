"""Bytes of one file with all views of six runs: n-gram, HMM, LSTM, GPT, a translator of dates, a GPT of brackets.

    python benchmarks/pages/page_size.py [--out page.html] [--json]

The runs are trained for a few steps on Python's documentation and on made-up dates and brackets: a view of a weak model
has as many numbers as one of a good model. Parts are given from the largest to the smallest.
"""

import argparse
import contextlib
import io
import json
import pydoc
import re
import time
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from chainrule.cli import main as chainrule
from chainrule.text.synthetic import language
from chainrule.viewer.notebook import look

STEPS = ["train.steps=20", "train.tokens=1024"]
LETTERS = ["text.tokenizer=characters"]
TEXT = "def mean(data):\n    Return the sample arithmetic mean of data, which can be a sequence or iterable"


def texts(folder: Path) -> dict[str, Path]:
    days = [date(1950, 1, 1) + timedelta(days=17 * number) for number in range(2000)]
    made = {
        "docs.txt": "\n".join(re.sub(".\b", "", pydoc.render_doc(name)) for name in ("statistics", "argparse", "json")),
        "dates.tsv": "".join(f"{day:%d %B %Y}\t{day.isoformat()}\n" for day in days),
        "brackets.txt": "".join(" ".join(line[:12]) + "\n" for line in language("brackets").text(20_000).split()),
    }
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {name: folder / name for name in made}


def train(folder: Path) -> list[Path]:
    files = {name: str(path) for name, path in texts(folder).items()}
    tiny = ["model.layers=1", "model.heads=1", "model.width=6", "model.hidden=8", "model.context=13"]
    commands = {
        "ngram6": [files["docs.txt"], "--kind", "ngram", "model.order=6", *LETTERS],
        "hmm32": [files["docs.txt"], "--kind", "hmm", "model.states=32", "train.steps=2", *LETTERS],
        "lstm": [files["docs.txt"], "--kind", "lstm", "model.hidden=256", *LETTERS, *STEPS],
        "gpt": [files["docs.txt"], "--kind", "gpt", "model.layers=4", "model.width=128", "model.heads=4",
                "model.context=128", *LETTERS, *STEPS],
        "dates": [files["dates.tsv"], "--task", "translate", "--kind", "seq2seq", "model.hidden=64", *LETTERS, *STEPS],
        "brackets": [files["brackets.txt"], "--kind", "gpt", *tiny, "text.tokenizer=words", *STEPS],
    }
    runs = []
    for name, rest in commands.items():
        run = folder / "runs" / name
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            status = chainrule(["train", *rest, "--out", str(run)])
        if status:
            raise SystemExit(f"{name}: {said.getvalue()}")
        runs.append(run)
    return runs


def parts(page: str) -> dict[str, int]:
    """Bytes of the modules, of the style, and of the data of each view, all its sections together."""
    sizes = {"modules": len(re.search(r'id="modules">(.*?)</script>', page, re.S)[1]),
             "style": len(re.search(r"<style>(.*?)</style>", page, re.S)[1])}
    panels = json.loads(re.search(r'id="panels">(.*?)</script>', page, re.S)[1])
    for panel in panels:
        if panel.get("error"):
            raise SystemExit(f"{panel['name']}: {panel['error']}")
        sizes[panel["module"]] = sizes.get(panel["module"], 0) + len(panel.get("deflated") or json.dumps(panel["data"]))
    return dict(sorted(sizes.items(), key=lambda part: -part[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the page is kept")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        runs = train(Path(folder))
        began = time.perf_counter()
        page = look(runs, TEXT)
        seconds = time.perf_counter() - began
    if args.out:
        page.save(args.out)
    answer = {"bytes": len(page.html.encode()), "seconds": round(seconds, 1), "parts": parts(page.html)}
    if args.json:
        print(json.dumps(answer))
    else:
        print(f"{answer['bytes'] / 1e6:.2f} MB in {seconds:.0f} s")
        for name, size in answer["parts"].items():
            print(f"{size / 1e3:8.0f} kB  {name}")


if __name__ == "__main__":
    main()
