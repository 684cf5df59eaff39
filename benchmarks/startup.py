"""Seconds until `chainrule --help` and `chainrule --version` have answered: the best and the median of several starts.

    python benchmarks/startup.py
"""

import subprocess
import sys
import time
from statistics import median

TIMES = 10


def seconds(*words: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "chainrule", *words], capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    for words in (["--help"], ["--version"], ["train", "--help"]):
        measured = [seconds(*words) for _ in range(TIMES)]
        print(f"chainrule {' '.join(words):<14} best {min(measured):.3f} s, median {median(measured):.3f} s")


if __name__ == "__main__":
    main()
