"""The ladder in two exams, BLiMP and LAMBADA: a 5-gram, an LSTM and a GPT of the same text, and imported runs.

    CHAINRULE_DATA=DATA python benchmarks/quality/exams_ladder.py --out runs/ladder [--minutes 2.7] [--run smollm=RUN]
                                                                  [--small]

DATA holds gutenberg/, blimp/ and lambada/ (docs/tools/exams.md). One BPE tokenizer of 16,384 tokens is learned from the
training text and used by all three. The 5-gram is counted on the CPU while the LSTM, and after it the GPT, train for
`--minutes` each on the device. Each result is a JSON line; the last lines are Markdown tables with 95 % intervals.
`--small` is the same on 300,000 bytes and a few examples: a check of the program, whose figures say nothing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from chainrule.exams.blimp import PUBLISHED as BLIMP
from chainrule.exams.blimp import SYSTEMS
from chainrule.exams.lambada import PUBLISHED as LAMBADA
from chainrule.files import write_aside
from chainrule.recipe import RunningText
from chainrule.text.corpus import prepare
from chainrule.text.datasets import get
from chainrule.text.sources import unpacked

KINDS: dict[str, dict[str, Any]] = {
    "KN-5": {"kind": "ngram", "model.order": 5},
    "LSTM": {"kind": "lstm", "model.layers": 2, "model.hidden": 1024, "model.dropout": 0.1, "model.weight_dropout": 0.0,
             "train.tokens": 16384, "train.length": 128, "train.lr": 2e-3, "train.evaluate": 0},
    "GPT": {"kind": "gpt", "model.layers": 10, "model.width": 512, "model.heads": 4, "model.context": 512,
            "train.tokens": 65536, "train.lr": 3e-3, "train.schedule": "linear", "train.final_lr": 0.0,
            "train.evaluate": 0},
}
SMALL: dict[str, dict[str, Any]] = {
    "KN-5": {},
    "LSTM": {"model.hidden": 32, "train.tokens": 2048},
    "GPT": {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.context": 64, "train.tokens": 2048},
}
SEED = 1
LINE_BREAK = re.compile(rb"(?<=\S)\r?\n(?=\S)")    # inside a paragraph


def ladder(args: argparse.Namespace) -> list[dict[str, Any]]:
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = {split: cut(split, size, args.out / f"{split}.txt")
             for split, size in (("train", args.bytes), ("valid", args.valid_bytes))}
    settings = RunningText(tokenizer="bpe", vocab=args.vocab)
    corpus = prepare([str(texts["train"])], settings, valid=[str(texts["valid"])])    # the runs read it from the cache
    corpus.tokenizer.save(args.out / "tokenizer.json")
    sizes = {name: {"bytes": split.bytes, "tokens": len(split.tokens) - 1} for name, split in corpus.splits.items()}
    say(prepared=sizes, vocab=len(corpus.tokenizer), seconds=round(time.monotonic() - began, 1))
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(attempt, trained, "KN-5", args, texts)
        rows = [attempt(trained, name, args, texts) for name in ("LSTM", "GPT")]
        rows = [counted.result(), *rows]
    for word in args.run:
        name, _, path = word.partition("=")
        rows.append(attempt(examined, name, Path(path), args, args.device))
    say(seconds=round(time.monotonic() - began, 1))
    return [row for row in rows if row]


def attempt(function: Callable[..., dict[str, Any]], name: str, *more: Any) -> dict[str, Any] | None:
    """A row of the ladder; one that fails does not take the others with it."""
    try:
        return function(name, *more)
    except subprocess.CalledProcessError as error:
        return say(name=name, error=error.stderr[-2000:], command=error.cmd[2:])


def cut(split: str, size: int, path: Path) -> Path:
    """The first `size` bytes of a split of Gutenberg, up to the end of a line, as a file.

    Lines of a paragraph are joined. The books break them after some 70 characters, and a model that learns this expects
    a line break where LAMBADA, which has none, asks for a word.
    """
    text, blocks = bytearray(), chain.from_iterable(unpacked(source) for source in get("gutenberg")[split])
    while len(text) < size and (block := next(blocks, b"")):
        text += block
    text = text if len(text) <= size else text[: text.rindex(b"\n", 0, size) + 1]
    with write_aside(path) as aside:
        aside.write_bytes(LINE_BREAK.sub(b" ", text))
    return path


def trained(name: str, args: argparse.Namespace, texts: dict[str, Path]) -> dict[str, Any]:
    settings = {**KINDS[name], **(SMALL[name] if args.small else {}), "text.tokenizer": args.out / "tokenizer.json"}
    kind, counts = settings.pop("kind"), name == "KN-5"
    device = "cpu" if counts else args.device
    if not counts:
        settings |= {"train.minutes": args.minutes, "train.seed": SEED}
    run, began = args.out / name, time.monotonic()
    words = [f"{key}={value}" for key, value in settings.items()]
    result = chainrule("train", texts["train"], "--valid", texts["valid"], "--kind", kind, "--out", run, "--overwrite",
                       "--device", device, "--json", *words)
    say(name=name, trained=round(time.monotonic() - began, 1), device=device, parameters=result["parameters"],
        bits_per_byte=result["bits_per_byte"], signature=result["signature"], settings=words)
    return examined(name, run, args, device) | {"bits_per_byte": result["bits_per_byte"]}


def examined(name: str, run: Path, args: argparse.Namespace, device: str) -> dict[str, Any]:
    options = ["--json", "--device", device, *(["--limit", args.limit] if args.limit else [])]
    results = {exam: chainrule("eval", run, exam, *options) for exam in ("blimp", "lambada")}
    for result in results.values():
        phenomena = {key: part["accuracy"] for key, part in result.get("phenomena", {}).items()}
        say(**{**result, "run": name, "phenomena": phenomena or None, "paradigms": None, "published": None})
    return {"name": name, **results}


def chainrule(*words: object) -> dict[str, Any]:
    """The last JSON object that a command prints."""
    command = [sys.executable, "-m", "chainrule", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def tables(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: the ladder, with the published systems below; then BLiMP by phenomenon."""
    lines = ["| model | bits per byte | BLiMP | ties | LAMBADA, accuracy | perplexity of a word |",
             "|---|---|---|---|---|---|"]
    for row in rows:
        blimp, lambada = row["blimp"], row["lambada"]
        cells = [row["name"], f"{row['bits_per_byte']:.3f}" if "bits_per_byte" in row else "–",
                 percent(blimp, 1), f"{blimp['ties']:,}", percent(lambada, 2), perplexity(lambada)]
        lines.append(f"| {' | '.join(cells)} |")
    for system, accuracy in zip(SYSTEMS, BLIMP["overall"]):
        lines.append(f"| {system}, published | – | {accuracy:.1f} | – | – | – |")
    for system, known in LAMBADA.items():
        lines.append(f"| {system}, published | – | – | – | {known['accuracy']:.2f} | {known['perplexity']:.2f} |")
    names = [row["name"] for row in rows]
    lines += ["", f"| phenomenon | {' | '.join([*names, *(f'{system}, published' for system in SYSTEMS)])} |",
              f"|---{'|---' * (len(names) + len(SYSTEMS))}|"]
    for name in rows[0]["blimp"]["phenomena"]:
        ours = [percent(row["blimp"]["phenomena"][name], 1) for row in rows]
        theirs = [f"{accuracy:.1f}" for accuracy in BLIMP.get(name, ())]
        lines.append(f"| {' | '.join([name.replace('_', ' '), *ours, *theirs])} |")
    return lines


def percent(result: dict[str, Any], digits: int) -> str:
    low, high = result["accuracy_interval"]
    return f"{100 * result['accuracy']:.{digits}f} ({100 * low:.{digits}f}–{100 * high:.{digits}f})"


def perplexity(result: dict[str, Any]) -> str:
    if result["perplexity"] is None:
        return "–"
    low, high = result["perplexity_interval"]
    digits = 2 if high < 1000 else 0
    return f"{result['perplexity']:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def say(**facts: Any) -> None:
    print(json.dumps({name: fact for name, fact in facts.items() if fact is not None}), flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the texts, the tokenizer and the runs")
    parser.add_argument("--minutes", type=float, default=2.7, help="of training, for the LSTM and for the GPT")
    parser.add_argument("--bytes", type=int, default=100_000_000, help="of training text")
    parser.add_argument("--valid-bytes", type=int, default=1_000_000, help="of validation text, for bits per byte")
    parser.add_argument("--vocab", type=int, default=16_384, help="tokens of the one tokenizer")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=RUN", help="one more run: an import")
    parser.add_argument("--limit", type=int, help="examples of an exam, of BLiMP in each paradigm; default: all")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true", help="tiny sizes: a check of the program on any machine")
    args = parser.parse_args(words)
    for word in args.run:
        name, _, path = word.partition("=")
        if not (name and path and Path(path).is_dir()):
            parser.error(f"--run {word}: NAME=RUN is wanted, RUN the folder of a run.")
    if "CHAINRULE_DATA" not in os.environ:
        parser.error("set CHAINRULE_DATA to a folder with gutenberg, blimp and lambada (docs/tools/exams.md).")
    if args.small:
        args.bytes, args.valid_bytes, args.vocab, args.minutes, args.limit = 300_000, 30_000, 512, 0.05, args.limit or 2
    rows = ladder(args)
    if not rows:
        sys.exit("no model could be trained and examined; the lines above say why.")
    print("\n".join(tables(rows)))


if __name__ == "__main__":
    main()
