"""How long the weighted die takes to answer on the live page: over HTTP on this machine, as a browser would ask.

    python benchmarks/pages/look.py [RUN …] [--json]

Without a run it is a small untrained GPT of byte pairs, which is as fast as a trained one: 6 layers of
width 256, a context of 256 tokens. Each question is about one token more than the one before, as when faces are
clicked; the last are about a context that is full.
"""

import argparse
import http.client
import json
import pydoc
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from chainrule.recipe import Text
from chainrule.run import save
from chainrule.tasks import build_for, recipe_for
from chainrule.text.tokenizers.tokenizer import train_tokenizer
from chainrule.viewer.notebook import find_runs

QUESTIONS = 300
SETTINGS = {"model.layers": 6, "model.width": 256, "model.heads": 4, "model.context": 256, "text.tokenizer": "bpe"}


def untaught(folder: Path, text: str) -> Path:
    recipe = recipe_for("gpt", SETTINGS)
    tokenizer = train_tokenizer(Text(tokenizer="bpe"), [text])
    save(folder / "gpt", build_for(recipe, len(tokenizer), ()), tokenizer, recipe)
    return folder / "gpt"


def ask(connection: http.client.HTTPConnection, runs: list[str], text: str) -> tuple[float, int]:
    """Milliseconds of one question, and the bytes of its answer."""
    began = time.perf_counter()
    body = json.dumps({"runs": runs, "text": text})
    connection.request("POST", "/api/views/die", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    size = len(answer.read())
    assert answer.status == 200
    return 1e3 * (time.perf_counter() - began), size


@contextmanager
def served(runs: list[Path]) -> Iterator[http.client.HTTPConnection]:
    command = [sys.executable, "-m", "chainrule", "look", *map(str, runs), "--no-browser"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().partition(": ")[2].split()[0]
        yield http.client.HTTPConnection(urlsplit(url).netloc)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def measure(runs: dict[str, Path], text: str) -> dict[str, float]:
    words = text.split(" ")
    with served(list(runs.values())) as connection:
        ask(connection, list(runs), "")                       # which loads the model
        times, sizes = zip(*(ask(connection, list(runs), " ".join(words[:count])) for count in range(QUESTIONS)))
    slowest = statistics.quantiles(times, n=20)[-1]
    return {"median_ms": statistics.median(times), "p95_ms": slowest, "full_ms": statistics.median(times[-50:]),
            "bytes": max(sizes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="*")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    text = " ".join(pydoc.render_doc(module) for module in ("statistics", "argparse", "json"))
    with TemporaryDirectory() as folder:
        runs = find_runs(args.run or [untaught(Path(folder), text)])
        answer = measure(runs, text)
    if args.json:
        print(json.dumps({"runs": list(runs), **answer}))
    else:
        print(f"{', '.join(runs)}: {answer['median_ms']:.1f} ms a question (95 % under {answer['p95_ms']:.1f}, with a "
              f"full context {answer['full_ms']:.1f}), {answer['bytes'] / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
