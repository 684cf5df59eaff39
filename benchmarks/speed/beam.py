"""Beam search and minimum Bayes risk of a Transformer of the Multi30k recipe's size, with CUDA graphs and without.

    python benchmarks/speed/beam.py [--device cuda|cpu] [--sentences 256] [--width 4] [--samples 64] [--limit 40]
                                    [--json]

Weights and sources are random, so hardly any text ends before the limit: every sentence costs the same. Batches are
those of `chainrule predict`: 64 sources, or 1,024 samples. All ways are timed in the same run, in turns; the first
round warms up and is left out, and the best of the others counts. Samples are drawn, but not ranked.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from chainrule import kernels
from chainrule.inference import decoding
from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.mbr import MinimumBayesRisk, draw_texts
from chainrule.model import LanguageModel
from chainrule.models import build
from chainrule.tasks import recipe_for

VOCAB = 8000
MODEL = {"layers": 4, "width": 256, "heads": 4, "context": 128}    # as recipes/multi30k-transformer.toml has it
UNTRAINED = {"tied": False, "zero_init": False}                    # tied, it would only repeat the last token
SOURCES, TEXTS = 64, 1024       # in a batch, at most
LENGTH = 16                     # tokens in a source
NEVER = 1 << 30                 # steps

WAYS = {                        # steps that repay the capture of a graph, and steps that repay our own kernels
    "graphs and kernels": (decoding.MIN_STEPS, 1),
    "graphs": (decoding.MIN_STEPS, NEVER),
    "plain": (NEVER, NEVER),
}

Search = Callable[[Tensor, Tensor], int]    # sources and their numbers -> tokens


@contextmanager
def way(name: str) -> Iterator[None]:
    before = decoding.MIN_STEPS, kernels.STEPS_TO_LOAD, kernels.STEPS_ONCE_LOADED
    decoding.MIN_STEPS, kernels.STEPS_TO_LOAD = WAYS[name]
    kernels.STEPS_ONCE_LOADED = kernels.STEPS_TO_LOAD
    try:
        yield
    finally:
        decoding.MIN_STEPS, kernels.STEPS_TO_LOAD, kernels.STEPS_ONCE_LOADED = before


def by_beam(model: LanguageModel, beam: Beam) -> Search:
    def search(source: Tensor, ids: Tensor) -> int:
        return sum(len(result.texts[0].tokens) for result in beam_search(model, beam, source=source))

    return search


def by_samples(model: LanguageModel, mbr: MinimumBayesRisk) -> Search:
    def search(source: Tensor, ids: Tensor) -> int:
        return sum(len(text) for texts in draw_texts(model, mbr, source, None, ids.tolist()) for text in texts)

    return search


def measured(search: Search, sources: Tensor, batch: int, names: list[str], rounds: int) -> dict[str, Any]:
    """Sentences and tokens a second, by each way."""
    best: dict[str, Any] = {}
    for number in range(rounds + 1):
        for name in names:
            with way(name):
                seconds, tokens = _timed(search, sources, batch)
            if number and (name not in best or seconds < best[name]["seconds"]):
                best[name] = {
                    "seconds": seconds, "sentences_per_second": len(sources) / seconds,
                    "tokens_per_second": tokens / seconds,
                }  # fmt: skip
    return best


def _timed(search: Search, sources: Tensor, batch: int) -> tuple[float, int]:
    _wait(sources)
    began, tokens = time.perf_counter(), 0
    for ids in torch.arange(len(sources)).split(batch):
        tokens += search(sources[ids], ids)
    _wait(sources)
    return time.perf_counter() - began, tokens


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--width", type=int, default=4, help="of the beam (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=64, help="for each sentence (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=40, help="most tokens in a text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    settings = {f"model.{name}": value for name, value in (MODEL | UNTRAINED).items()}
    model = build("transformer", recipe_for("transformer", settings, "translate").model, VOCAB).to(args.device).eval()
    sources = torch.randint(1, VOCAB, (args.sentences, LENGTH)).to(args.device)
    names = list(WAYS) if args.device == "cuda" else ["plain"]
    where = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    figures: dict[str, Any] = {"device": where, "torch": torch.__version__, "limit": args.limit}
    beam, mbr = Beam(args.width, limit=args.limit), MinimumBayesRisk(args.samples, limit=args.limit)
    for title, search, batch in (
        (f"beam search, width {args.width}", by_beam(model, beam), SOURCES),
        (f"minimum Bayes risk, {args.samples} samples", by_samples(model, mbr), max(1, TEXTS // args.samples)),
    ):
        figures[title] = measured(search, sources, batch, names, args.rounds)
        for name, figure in figures[title].items():
            print(f"{title}, {name}: {figure['sentences_per_second']:,.1f} sentences/s, "
                  f"{figure['tokens_per_second']:,.0f} tokens/s", flush=True)
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
