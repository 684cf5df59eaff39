"""From text to tokens on disk: megabytes a second and peak memory, for each tokenizer.

    python benchmarks/corpora/corpus.py [TEXT …] [--megabytes 1000] [--tokenizers bytes characters words bpe] [--json]

TEXT (default: the source of Python's standard library) is mixed, line by line, with a number on every tenth line so
that rare words keep coming, until the size is reached. Each tokenizer has a process of its own, so that peak memory is
its own; the time is of `prepare` from nothing: split, learned, tokenized, written, synced. Then of `prepare` again, by
the cache; and, on one core, of encoding 20 MB that are in memory.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000
IN_MEMORY = 20 * MEGABYTE


def mix(texts: list[str], megabytes: int, path: Path) -> None:
    """Lines drawn from the texts."""
    from chainrule.text.datasets import get
    from chainrule.text.sources import read_text
    from chainrule.text.splits import resolve

    given = [source for text in texts for source in resolve(text, path.parent)["train"]]
    sources = given or get("python-source")["train"]
    lines = "".join(piece for source in sources for piece in read_text(source)).splitlines(keepends=True)
    chance = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * MEGABYTE:
            part = chance.choices(lines, k=100_000)
            part[::10] = [f"{chance.getrandbits(32)} {line}" for line in part[::10]]
            file.write("".join(part))


def measure(path: Path, tokenizer: str, cache: Path) -> dict[str, Any]:
    import torch  # noqa: F401 (what every run imports should not count)

    from chainrule.progress import set_quiet
    from chainrule.recipe import Text
    from chainrule.text.corpus import prepare

    set_quiet(True)
    imported = peak()
    began, worked = time.perf_counter(), time.process_time()
    corpus = prepare([str(path)], Text(tokenizer=tokenizer), cache=cache)
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    most = peak()
    began = time.perf_counter()
    prepare([str(path)], Text(tokenizer=tokenizer), cache=cache)
    again = time.perf_counter() - began
    with path.open(encoding="utf-8") as file:
        text = file.read(IN_MEMORY)
    began = time.process_time()
    encoded = corpus.tokenizer.encode(text)
    alone = time.process_time() - began
    return {
        "tokenizer": tokenizer,
        "vocab": len(corpus.tokenizer),
        "megabytes": path.stat().st_size // MEGABYTE,
        "tokens": sum(len(split.tokens) for split in corpus.splits.values()),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "megabytes_per_second": round(path.stat().st_size / MEGABYTE / seconds, 1),
        "peak_megabytes": most,
        "imports_megabytes": imported,
        "again_seconds": round(again, 3),
        "encode_megabytes_per_second": round(len(text.encode()) / MEGABYTE / alone, 1),
        "encode_tokens_per_second": round(len(encoded) / alone),
    }


def peak() -> int:
    """Megabytes. Not ru_maxrss, which remembers the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 // MEGABYTE


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("texts", nargs="*")
    words.add_argument("--megabytes", type=int, default=1000)
    words.add_argument("--tokenizers", nargs="+", default=["bytes", "characters", "words", "bpe"])
    words.add_argument("--json", action="store_true")
    words.add_argument("--measure", nargs=3, metavar=("TEXT", "TOKENIZER", "CACHE"), help=argparse.SUPPRESS)
    args = words.parse_args()
    if args.measure:
        text, tokenizer, cache = args.measure
        print(json.dumps(measure(Path(text), tokenizer, Path(cache))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        mix(args.texts, args.megabytes, path)
        for tokenizer in args.tokenizers:
            command = [sys.executable, __file__, "--measure", str(path), tokenizer, f"{folder}/cache-{tokenizer}"]
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(json.dumps(result) if args.json else line(result), flush=True)


def line(result: dict[str, Any]) -> str:
    return (
        "{tokenizer:<10} {megabytes:>5} MB, vocabulary {vocab:>7}: {seconds:>6} s ({cpu_seconds} of CPU), "
        "{megabytes_per_second} MB/s, peak {peak_megabytes} MB ({imports_megabytes} before), again {again_seconds} s, "
        "encoding alone {encode_megabytes_per_second} MB/s, {encode_tokens_per_second:,} tokens/s"
    ).format(**result)


if __name__ == "__main__":
    main()
