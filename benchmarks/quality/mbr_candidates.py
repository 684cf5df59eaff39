"""Texts sampled once for many decision rules: draws of several models and temperatures, and the choice among them.

    python benchmarks/quality/mbr_candidates.py draw a=runs/a b=runs/b dev=dev.jsonl test=test.jsonl --out DIR \\
        --draw a:dev:0.7:1 --draw a+b:test:0.7:1 --samples 64 --limit 24 [--seconds S]
    python benchmarks/quality/mbr_candidates.py choose DIR/a+b_test_0.7_1.jsonl.xz [...] --out texts.txt

A draw is MODELS:FILE:TEMPERATURE:SEED; several models joined by + write together, as with `chainrule predict --with`.
Draws are done in order until --seconds are over, and each is one file of JSON lines, a line for each source with its
texts: how often each was drawn, and log p at temperature 1. The random numbers are those of `predict --samples`. On a
GPU the weights are in bfloat16, and rows that have ended are dropped early, so that many texts take little time.
`choose` pools the draws of all files named, and writes the text with the least Bayes risk for each source. Then:

    python benchmarks/quality/score_texts.py texts.txt test.jsonl
"""

import argparse
import json
import lzma
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError, out_of_memory
from chainrule.inference.decoding import DecodeLoop, Values, prefill_source
from chainrule.inference.forward import device_of
from chainrule.inference.mbr import rank_by_similarity
from chainrule.inference.sampling import Sampling, SamplingStrategy, uniforms
from chainrule.model import BOUNDARY, Batch, LanguageModel
from chainrule.models.mixture import Mixture
from chainrule.run import Run, load
from chainrule.tasks.batching import Buckets

CELLS = {"cpu": 1 << 15, "cuda": 1 << 18}    # rows times tokens of a source that are in memory at a time
CHECK = 5                                    # steps after which rows that have ended are dropped


class ScoredSampling(SamplingStrategy):
    """Sampling that also adds up log p of each text, its end included, at temperature 1."""

    def begin(self, logits: Tensor) -> Values:
        return super().begin(logits) | {"log_prob": torch.zeros(len(logits), device=logits.device)}

    def choose(self, logits: Tensor, values: Values, inputs: Tensor) -> Values:
        after = super().choose(logits, values, inputs)
        own = logits.float().log_softmax(-1).gather(1, after["tokens"][:, None])[:, 0]
        return after | {"log_prob": values["log_prob"] + own.masked_fill(values["ended"], 0.0)}


@torch.inference_mode()
def draw_batch(
    model: LanguageModel, batch: Batch, ids: Sequence[int], samples: int, sampling: Sampling, limit: int
) -> tuple[list[list[int]], list[float]]:
    """The tokens of `samples` texts for each source, one source after the other, and log p of each."""
    assert batch.source is not None
    begun, device = prefill_source(model, batch.source, batch.source_lengths), device_of(model)
    begun = replace(begun, state=model.reserve(begun.state, limit)).repeat(samples)
    loop = DecodeLoop(model, begun, ScoredSampling(sampling, ends=True))
    loop.capturable = False                              # the rows change too often for graphs to be worth it
    going = torch.arange(len(ids) * samples, device=device)
    written, log_prob = torch.full((limit, len(going)), BOUNDARY, device=device), torch.zeros(len(going), device=device)
    for step in range(limit):
        every = uniforms(sampling.seed, step, (max(ids) + 1) * samples).view(-1, samples)[list(ids)].flatten()
        written[step, going] = loop.next_token(every.to(device)[going], limit - step)
        log_prob[going] = loop.values["log_prob"]
        if (step + 1) % CHECK == 0:
            alive = (~loop.values["ended"]).nonzero()[:, 0]
            if not len(alive):
                break
            loop.select(alive)
            going = going[alive]
    texts = [list(takewhile(lambda token: token != BOUNDARY, text)) for text in written.T.tolist()]
    return texts, log_prob.tolist()


def draw(run: Run, encoded: Any, samples: int, sampling: Sampling, limit: int) -> list[dict[str, Any]]:
    """For each source its different texts: how often each was drawn, and log p."""
    model = Mixture([run.model, *(one.model for one in run.others)]) if run.others else run.model
    found: dict[int, dict[str, list[float]]] = {}
    cells = CELLS.get(device_of(model).type, CELLS["cpu"])
    for ids, batch in Buckets(encoded, seed=0, tokens=1 << 30, rows=64).every():
        assert batch.source is not None
        at_once, first = max(1, cells // (samples * batch.source.shape[1])), 0
        while first < len(ids):
            here = slice(first, first + at_once)
            try:
                texts, log_probs = draw_batch(model, batch.rows(here), ids[here].tolist(), samples, sampling, limit)
            except Exception as error:
                if at_once == 1 or not out_of_memory(error):
                    raise
                torch.cuda.empty_cache()
                at_once //= 2
                continue
            for place, (tokens, log_prob) in enumerate(zip(texts, log_probs)):
                several = found.setdefault(int(ids[first + place // samples]), {})
                several.setdefault(run.tokenizer.decode(tokens), [0, round(log_prob, 3)])[0] += 1
            first += at_once
    return [{"id": number, "texts": found[number]} for number in range(len(encoded))]


def draw_all(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Draw after draw into files; a draw of a run that is not there is left out."""
    began, names = time.perf_counter(), dict(given.split("=", 1) for given in args.given)
    runs: dict[str, Run] = {}
    args.out.mkdir(parents=True, exist_ok=True)
    for one in args.draw:
        together, file, temperature, seed = one.split(":")
        if args.seconds and time.perf_counter() - began > args.seconds:
            return
        try:
            for name in together.split("+"):
                runs[name] = runs.get(name) or load(names[name], args.device)
                if device_of(runs[name].model).type == "cuda":
                    runs[name].model.bfloat16()
        except (UserError, KeyError) as error:
            yield {"draw": one, "left_out": str(error)}
            continue
        first, *others = (runs[name] for name in together.split("+"))
        run, start = first.averaged_with(*others) if others else first, time.perf_counter()
        examples = run.task.read_inputs(names[file], run.reading({}))
        encoded = run.task.encode(examples, run.recipe, run.tokenizer, run.labels)
        sampling = Sampling(float(temperature), seed=int(seed))
        rows = draw(run, encoded, args.samples, sampling, args.limit)
        with lzma.open(args.out / f"{one.replace(':', '_')}.jsonl.xz", "wt", encoding="utf-8", preset=1) as out:
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        yield {"draw": one, "sources": len(rows), "seconds": round(time.perf_counter() - start, 1),
               "different": sum(len(row["texts"]) for row in rows) / len(rows)}


def read_draws(files: Sequence[Path]) -> list[dict[str, int]]:
    """For each source the texts of all files, and how often each was drawn."""
    pooled: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for file in files:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                for text, (many, _) in row["texts"].items():
                    pooled[row["id"]][text] += many
    return [dict(pooled[number]) for number in sorted(pooled)]


def choose(texts: dict[str, int]) -> str:
    """The text with the least Bayes risk, on one line."""
    ranked = rank_by_similarity([text for text, many in texts.items() for _ in range(many)])
    return " ".join(ranked[0][0].split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    drawing = actions.add_parser("draw")
    drawing.add_argument("given", nargs="+", help="NAME=RUN or NAME=FILE")
    drawing.add_argument("--draw", action="append", default=[], metavar="MODELS:FILE:T:SEED")
    drawing.add_argument("--samples", type=int, default=64)
    drawing.add_argument("--limit", type=int, default=24)
    drawing.add_argument("--seconds", type=float, default=0, help="begin no draw after so many; 0: no limit")
    drawing.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    drawing.add_argument("--out", type=Path, required=True)
    choosing = actions.add_parser("choose")
    choosing.add_argument("files", nargs="+", type=Path)
    choosing.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.action == "draw":
        for line in draw_all(args):
            print(json.dumps(line), flush=True)
    else:
        args.out.write_text("".join(choose(texts) + "\n" for texts in read_draws(args.files)), encoding="utf-8")


if __name__ == "__main__":
    main()
