"""Seconds until a new process has answered: `chainrule --help`, and the first sampled token of a trained run.

    python benchmarks/speed/startup.py [RUN] [--times 10]

`import chainrule; chainrule.load(RUN)` and one token by `generate`, beside `import torch` alone, which is a part of it.
Without RUN a tiny GPT is trained first. Each figure is the best and the median of several starts, by turns.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

TEXT = "the cat sat on the mat and the dog sat on the rug\n" * 200
TINY = ["--kind", "gpt", "model.size=tiny", "train.steps=2", "text.tokenizer=characters"]
FIRST_TOKEN = "import chainrule; print(chainrule.load({run!r}, 'cpu').generate('the ', tokens=1))"


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    return time.perf_counter() - began


def trained(folder: Path) -> Path:
    text, run = folder / "text.txt", folder / "run"
    text.write_text(TEXT, encoding="utf-8")
    command = [sys.executable, "-m", "chainrule", "train", str(text), *TINY, "--out", str(run)]
    subprocess.run(command, check=True, capture_output=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, help="a trained run (default: a tiny GPT)")
    parser.add_argument("--times", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or trained(Path(folder))
        commands = {
            "import torch": ["-c", "import torch"],
            "load to first token": ["-c", FIRST_TOKEN.format(run=str(run))],
            **{f"chainrule {words}": ["-m", "chainrule", *words.split()]
               for words in ("--help", "--version", "train --help")},
        }
        measured: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(args.times):
            for name, command in commands.items():
                measured[name].append(seconds(command))
    for name, times in measured.items():
        print(f"{name:<24} best {min(times):.3f} s, median {median(times):.3f} s")


if __name__ == "__main__":
    main()
