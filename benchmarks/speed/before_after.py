"""The speed of two checkouts of this project in one run: GPT-2 training and sampling, LSTM training, n-grams, HMM.

    python benchmarks/speed/before_after.py OLD NEW [--device cuda | cpu] [--turns 3] [--only NAME …] [--json]

OLD and NEW are folders of two checkouts. Each benchmark is the checkout's own file in `benchmarks/`, run in a process
of its own with that checkout's package, the two sides in turn. The figure of a side is its best; a ratio above 1 means
that NEW is faster. n-grams and HMM read PTB and tinyshakespeare in $CHAINRULE_DATA.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("CHAINRULE_DATA", "data"))


@dataclass(frozen=True)
class Benchmark:
    device: str
    words: tuple[str, ...]                     # the file in benchmarks/ and its arguments
    figure: Callable[[Any], float]             # of the last line's JSON: larger is faster


GPU = {
    "gpt2 training, tokens/s": Benchmark(
        "cuda", ("gpt2_training.py", "--alone", "--json"), lambda answer: answer["chainrule"]["tokens_per_second"]
    ),
    "gpt2 training, not compiled, tokens/s": Benchmark(
        "cuda", ("gpt2_training.py", "--rows", "64", "--as-written", "--alone", "--json"),
        lambda answer: answer["chainrule"]["tokens_per_second"],
    ),
    "gpt training, not compiled, tokens/s": Benchmark(
        "cuda",
        ("gpt2_training.py", "--kind", "gpt", "--rows", "256", "--length", "256", "--as-written", "--alone", "--json"),
        lambda answer: answer["chainrule"]["tokens_per_second"],
    ),
    "gpt2 sampling, 1 text, tokens/s": Benchmark(
        "cuda", ("gpt2_sampling.py", "--rows", "1", "--alone", "--json"), lambda answer: answer["chainrule"]["1"]
    ),
    "gpt2 sampling, 256 texts, tokens/s": Benchmark(
        "cuda", ("gpt2_sampling.py", "--rows", "256", "--alone", "--json"), lambda answer: answer["chainrule"]["256"]
    ),
    "lstm training, 2 x 1500, tokens/s": Benchmark(
        "cuda", ("lstm_training.py", "--json"), lambda answer: answer["chainrule"]
    ),
}
CPU = {
    "n-gram of order 5, PTB, 1/s": Benchmark(
        "cpu", ("ngram.py", str(DATA / "ptb" / "ptb.train.txt"), "-", "--learn-only"),
        lambda answer: 1 / answer["seconds"],
    ),
    "hmm of 64 states, a round of EM, 1/s": Benchmark(
        "cpu", ("hmm.py", "--states", "64", "--rows", "512", "--one-core", "--json"),
        lambda answer: 1 / answer["em_seconds"],
    ),
    "hmm of 64 states, Viterbi, symbols/s": Benchmark(
        "cpu", ("hmm.py", "--states", "64", "--rows", "512", "--one-core", "--json"),
        lambda answer: answer["viterbi_per_second"],
    ),
}
BENCHMARKS = {**GPU, **CPU}


def measure(checkout: Path, benchmark: Benchmark) -> float:
    """The figure of one run, in a process of its own."""
    file, *arguments = benchmark.words
    [program] = (checkout / "benchmarks").rglob(file)      # an older checkout has it in another folder
    command = [sys.executable, str(program), *arguments]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return benchmark.figure(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = {
        name: benchmark for name, benchmark in BENCHMARKS.items()
        if benchmark.device == args.device and (not args.only or name.startswith(tuple(args.only)))
    }
    figures = {}
    for name, benchmark in chosen.items():
        turns = [(measure(args.old, benchmark), measure(args.new, benchmark)) for _ in range(args.turns)]
        old, new = (max(side) for side in zip(*turns))
        figures[name] = {"old": old, "new": new, "ratio": new / old}
        print(f"{name:<42}{old:>14,.6g}{new:>14,.6g}{new / old:>8.3f}", flush=True)
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
