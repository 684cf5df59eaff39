"""Long documents: the first sentence of an encyclopedia article from its title and the rest, by five architectures.

    python benchmarks/quality/long_documents.py prepare enwik8.xz --out .cache/long_documents [--lengths 128 512 2048]
    python benchmarks/quality/long_documents.py run .cache/long_documents --minutes 3 --out runs/long_documents

`prepare` makes the examples from a Wikipedia dump (wiki_text.py): a source of at most so many tokens, and a target, in
train, valid and test by article. `run` trains every model on every length, all at the same time and for the same
minutes, and measures on the test articles the perplexity of the targets and ROUGE-L of what a beam search writes, with
95 % intervals by the bootstrap: a table, results.jsonl and two SVG pictures in --out.
"""

import argparse
import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import chainrule
from chainrule.inference.beam import Beam
from chainrule.inference.metrics import measure_overlap
from chainrule.inference.statistics import Score, bootstrap
from chainrule.recipe import Text
from chainrule.tasks.example_task import evaluation_batches
from chainrule.tasks.examples import held_out_examples
from chainrule.tasks.translate import best_texts
from chainrule.text.tokenizers.tokenizer import train_tokenizer
from chainrule.viewer.line_chart import line_chart

sys.path.insert(0, str(Path(__file__).parents[1]))

from corpora.wiki_text import articles

SPLITS = {"test": 400, "valid": 200, "train": 8000}    # articles, at most
SENTENCE = re.compile(r"(.{40,400}?[.!?])\s+(?=[A-Z\"'(\d])", re.DOTALL)
LETTERS = 8              # a source of n tokens is looked for among n times this many characters
VOCAB = 8192
BEAM = Beam(4, 0.6, limit=64)

TRANSFORMER = {"model.width": 256, "model.heads": 4, "model.dropout": 0.1}
DECODER = {**TRANSFORMER, "model.layers": 6}
COMPRESSED = {**DECODER, "model.attention": "local,compressed"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "seq2seq with attention": ("seq2seq", {"model.layers": 2, "model.hidden": 384, "model.dropout": 0.2}),
    "encoder–decoder": ("transformer", {**TRANSFORMER, "model.layers": 3}),
    "decoder-only": ("gpt", DECODER),
    "decoder-only, compressed": ("gpt", COMPRESSED),
    "compressed, 8 experts": ("gpt", {**COMPRESSED, "model.experts": 8, "model.active": 2}),
}
TRAIN = {"train.tokens": 16_384, "train.compile": "false", "train.graph": "false", "text.truncate": "true"}


# The examples


def examples(dump: str, least: int) -> Iterator[dict[str, str]]:
    """The title and all but the first sentence of each article; and that sentence."""
    for title, text in articles(dump, least):
        if found := SENTENCE.match(text):
            rest = text[found.end() :].strip()
            yield {"title": title, "source": f"{title}\n\n{rest}", "target": " ".join(found[1].split())}


def divided(every: Sequence[dict[str, str]], sizes: dict[str, int]) -> dict[str, list[dict[str, str]]]:
    """By article: which split one is in depends on its title alone."""
    order = sorted(every, key=lambda one: hashlib.sha256(one["title"].encode()).digest())
    parts, begin = {}, 0
    for name, size in sizes.items():
        parts[name] = order[begin : begin + size]
        begin += size
    return parts


def prepare(dump: Path, out: Path, lengths: Sequence[int], least: int, sizes: dict[str, int], vocab: int) -> None:
    raw = lzma.decompress(dump.read_bytes()) if dump.suffix == ".xz" else dump.read_bytes()
    parts = divided(list(examples(raw.decode("utf-8", "replace"), least)), sizes)
    out.mkdir(parents=True, exist_ok=True)
    texts = (one[side] + "\n" for one in parts["train"] for side in ("source", "target"))
    tokenizer = train_tokenizer(Text(tokenizer="bpe", vocab=vocab), texts)
    tokenizer.save(out / "tokenizer.json")
    for name, some in parts.items():
        sources = tokenizer.encode_many([one["source"][: LETTERS * max(lengths)] for one in some])
        for length in lengths:
            rows = (json.dumps({"source": tokenizer.decode(tokens[: length - 1]).strip(), "target": one["target"]},
                               ensure_ascii=False) + "\n" for one, tokens in zip(some, sources, strict=True))
            (out / f"{name}-{length}.jsonl.xz").write_bytes(lzma.compress("".join(rows).encode(), preset=9))
        mean = np.mean([min(len(tokens), max(lengths)) for tokens in sources])
        print(f"{name}: {len(some):,} articles, {mean:,.0f} tokens of source on average", flush=True)
    print(f"{sum(file.stat().st_size for file in out.iterdir()) / 1e6:.1f} MB in {out}")


# One training


def train(folder: Path, model: str, length: int, budget: dict[str, Any], out: Path, device: str) -> dict[str, Any]:
    """Trains a model on sources of one length and measures it on the test articles."""
    kind, settings = MODELS[model]
    settings = {**TRAIN, **settings, **budget, "text.tokenizer": str(folder / "tokenizer.json")}
    if kind != "seq2seq":
        settings["model.context"] = (2 if kind == "gpt" else 1) * max(length, 128)    # a decoder holds both texts
    file = {name: str(folder / f"{name}-{length}.jsonl.xz") for name in SPLITS}
    run = chainrule.train(file["train"], valid=[file["valid"]], kind=kind, task="translate", out=out,
                          settings=settings, device=device, overwrite=True)
    task: Any = run.task
    tests = held_out_examples(task.read, [file["test"]], run.recipe.text)
    encoded = task.split(tests, run.recipe, run.tokenizer, run.labels).encoded
    began = time.perf_counter()
    written = [texts[0][0] for texts in best_texts(run, encoded, BEAM)]
    return {
        "model": model, "length": length, "parameters": sum(part.numel() for part in run.model.parameters()),
        "steps": run.about["done"]["rounds"], **perplexity(run.model, encoded).as_dict("perplexity"),
        **measure_overlap(written, [list(one.targets) for one in tests]).rouge_l.as_dict("rouge_l"),
        "texts": len(tests), "writing_seconds": round(time.perf_counter() - began, 1), "example": written[0],
    }


@torch.inference_mode()
def perplexity(model: Any, encoded: Any) -> Score:
    """Of the targets' tokens, their ends included; the bootstrap draws articles."""
    nats, tokens = np.zeros(len(encoded)), np.zeros(len(encoded))
    for ids, batch in evaluation_batches(model, encoded, "scoring"):
        log_probs = model(batch).float().log_softmax(-1).gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
        nats[ids] = -(log_probs * batch.loss_mask).sum(1).double().cpu().numpy()
        tokens[ids] = batch.loss_mask.sum(1).cpu().numpy()
    return bootstrap(lambda weights: float(np.exp(weights @ nats / (weights @ tokens))), len(nats))


# All of them


def run_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A process for each model and length, all at once, so that each has the same share of the machine."""
    environment = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "2", **os.environ}
    places = [(model, length) for length in args.lengths for model in args.models]
    started = {}
    for number, (model, length) in enumerate(places):
        out = args.out / f"{list(MODELS).index(model)}-{length}"
        words = ["train", str(args.folder), "--model", model, "--length", str(length), "--out", str(out),
                 "--device", args.device, "--minutes", str(args.minutes)]
        words += ["--steps", str(args.steps)] if args.steps else []
        out.parent.mkdir(parents=True, exist_ok=True)
        log = out.with_suffix(".log").open("w")
        started[model, length] = out, subprocess.Popen(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        if (number + 1) % args.parallel == 0:
            for _, process in started.values():
                process.wait()
    return [*_results(started)]


def _results(started: dict[tuple[str, int], Any]) -> Iterator[dict[str, Any]]:
    for (model, length), (out, process) in started.items():
        answer, _ = process.communicate()
        if process.returncode:
            lines = out.with_suffix(".log").read_text().strip().splitlines()
            print(f"{model} at {length} failed: {lines[-1] if lines else process.returncode}", file=sys.stderr)
        else:
            line = answer.strip().splitlines()[-1]
            print(line, flush=True)
            yield json.loads(line)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Perplexity and ROUGE-L, each with its interval: a row for each model, columns by input length."""
    lengths = sorted({row["length"] for row in results})
    by = {(row["model"], row["length"]): row for row in results}
    lines = []
    for name, heading in (("perplexity", "perplexity of the target"), ("rouge_l", "ROUGE-L")):
        heads = " | ".join(f"{length} tokens" for length in lengths)
        lines += [f"| {heading} | parameters | {heads} |", "|---" * (2 + len(lengths)) + "|"]
        for model in dict.fromkeys(row["model"] for row in results):
            rows = [by.get((model, length)) for length in lengths]
            parameters = next(row["parameters"] for row in rows if row)
            cells = " | ".join(_cell(row, name) for row in rows)
            lines.append(f"| {model} | {parameters / 1e6:.1f} M | {cells} |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None, name: str) -> str:
    return "–" if row is None else "{:.1f} ({:.1f}–{:.1f})".format(row[name], *row[f"{name}_interval"])


def picture(results: Sequence[dict[str, Any]], name: str, label: str) -> str:
    curves = {
        model: [(float(row["length"]), Score(row[name], *row[f"{name}_interval"]))
                for row in sorted(results, key=lambda row: row["length"]) if row["model"] == model]
        for model in dict.fromkeys(row["model"] for row in results)
    }
    ticks = {float(length): str(length) for length in sorted({row["length"] for row in results})}
    return line_chart(curves, x="tokens of the source", y=label, ticks=ticks, log=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making, training, every = (commands.add_parser(name) for name in ("prepare", "train", "run"))
    making.add_argument("dump", type=Path, help="enwik8, or enwik8.xz")
    making.add_argument("--least", type=int, default=1200, help="bytes of an article")
    making.add_argument("--articles", type=int, default=SPLITS["train"], help="for training, at most")
    making.add_argument("--held-out", type=int, default=SPLITS["test"], help="for testing; half as many to validate")
    making.add_argument("--vocab", type=int, default=VOCAB)
    training.add_argument("--model", choices=MODELS, required=True)
    training.add_argument("--length", type=int, required=True)
    every.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    every.add_argument("--parallel", type=int, default=99, help="trainings at a time")
    for command in (making, every):
        command.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048], help="tokens of the source")
    for command in (training, every):
        command.add_argument("folder", type=Path, help="what `prepare` has written")
        command.add_argument("--minutes", type=float, default=3.0, help="of each training")
        command.add_argument("--steps", type=int, help="steps of each training, instead of minutes")
        command.add_argument("--device", default="auto")
    for command in (making, training, every):
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(words)
    if args.command == "prepare":
        sizes = {"test": args.held_out, "valid": max(1, args.held_out // 2), "train": args.articles}
        prepare(args.dump, args.out, args.lengths, args.least, sizes, args.vocab)
    elif args.command == "train":
        budget = {"train.steps": args.steps} if args.steps else {"train.minutes": args.minutes}
        print(json.dumps(train(args.folder, args.model, args.length, budget, args.out, args.device)))
    else:
        write_all(run_all(args), args.out)


def write_all(results: Sequence[dict[str, Any]], out: Path) -> None:
    if not results:
        raise SystemExit("no training succeeded; the .log files say why")
    (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results), encoding="utf-8")
    (out / "table.md").write_text(table(results), encoding="utf-8")
    for name, label in (("perplexity", "perplexity of the target"), ("rouge_l", "ROUGE-L")):
        (out / f"{name}.svg").write_text(picture(results, name, label), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
