"""The bottleneck of an encoder-decoder without attention: BLEU by the length of the source, with attention and without.

    python benchmarks/quality/bottleneck.py SOURCE REFERENCE --attention TEXTS --bottleneck TEXTS [--svg FILE] [--json]

All four files have a sentence a line: the sources, their references, and the two outputs of `chainrule predict`. The
sources are divided by their number of words into buckets of about as many sentences; sacreBLEU's score of each bucket
has its 95 % interval by the bootstrap.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.inference.metrics import measure_overlap
from chainrule.inference.statistics import Score
from chainrule.viewer.line_chart import line_chart

MODELS = ("attention", "bottleneck")


@dataclass(frozen=True)
class Bucket:
    least: int                        # words of the shortest source in it
    most: int                         # and of the longest
    scores: Mapping[str, Score]       # BLEU of each model
    sentences: int

    @property
    def name(self) -> str:
        return f"{self.least}–{self.most}" if self.least < self.most else f"{self.least}"

    def as_dict(self) -> dict[str, Any]:
        scores = {key: value for name, score in self.scores.items() for key, value in score.as_dict(name).items()}
        return {"words": [self.least, self.most], "sentences": self.sentences, **scores}


def buckets_by_length(lengths: Sequence[int], buckets: int) -> list[list[int]]:
    """Indices by length: sentences of one length are in one bucket, and the buckets have about the same size."""
    order = np.argsort(lengths, kind="stable")
    ends = np.sort(np.asarray(lengths))[[len(lengths) * part // buckets - 1 for part in range(1, buckets + 1)]]
    which = np.searchsorted(np.unique(ends), np.asarray(lengths)[order])
    return [order[which == part].tolist() for part in range(len(np.unique(ends)))]


def measure(
    sources: Sequence[str], references: Sequence[str], outputs: Mapping[str, Sequence[str]], buckets: int
) -> list[Bucket]:
    lengths = [len(source.split()) for source in sources]
    made = []
    for places in buckets_by_length(lengths, buckets):
        wanted = [[references[place]] for place in places]
        scores = {name: measure_overlap([texts[place] for place in places], wanted).bleu
                  for name, texts in outputs.items()}
        here = [lengths[place] for place in places]
        made.append(Bucket(min(here), max(here), scores, len(places)))
    return made


def table(buckets: Sequence[Bucket]) -> str:
    names = list(buckets[0].scores)
    lines = ["| words of the source | sentences | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    for bucket in buckets:
        cells = (f"{score.value:.1f} ({score.low:.1f}–{score.high:.1f})" for score in bucket.scores.values())
        lines.append(f"| {bucket.name} | {bucket.sentences} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(buckets: Sequence[Bucket]) -> str:
    """A line for each model over the buckets, and its interval around it, as SVG."""
    ticks = {float(place): bucket.name for place, bucket in enumerate(buckets)}
    curves = {name: [(at, bucket.scores[name]) for at, bucket in zip(ticks, buckets)] for name in buckets[0].scores}
    return line_chart(curves, x="words of the source", y="BLEU", ticks=ticks, zero=True)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    for name in MODELS:
        parser.add_argument(f"--{name}", type=Path, required=True, help="what the model wrote")
    parser.add_argument("--buckets", type=int, default=6)
    parser.add_argument("--svg", type=Path, help="draw it into this file")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    outputs = {name: lines_of(getattr(args, name)) for name in MODELS}
    sources, references = lines_of(args.source), lines_of(args.reference)
    counts = {len(lines) for lines in (sources, references, *outputs.values())}
    if len(counts) > 1:
        parser.error(f"the files have {' and '.join(map(str, sorted(counts)))} lines; each has one for each sentence")
    buckets = measure(sources, references, outputs, args.buckets)
    if args.svg:
        args.svg.write_text(picture(buckets), encoding="utf-8")
    print(json.dumps([bucket.as_dict() for bucket in buckets]) if args.json else table(buckets))


if __name__ == "__main__":
    main()
