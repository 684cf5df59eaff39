"""The report of a comparison as an HTML page: ladder, significance of differences, training curves, surprise, samples.

The page has the same numbers as `chainrule compare --json`; here they are arranged as the panels need them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chainrule.inference.text_score import ExcerptBits
from chainrule.viewer.hues import hues_of
from chainrule.viewer.page import Panel, make_page

Answer = Mapping[str, Any]
Points = Sequence[Mapping[str, Any]]    # of a training curve: tokens, seconds, bits_per_byte, held_out


def report_page(answer: Answer, points: Mapping[str, Points], strips: Mapping[str, ExcerptBits]) -> str:
    learned = {kind: some for kind, some in points.items() if len(some) > 1}
    colors = hues_of({kind: kind for kind in learned})    # kinds without a curve are grey
    return make_page(f"{' '.join(answer['texts'])}: which model predicts it best?", _lead(answer), [
        Panel("ladder", "ladder", "The ladder", _ladder(answer, colors), _how_to_read(answer)),
        Panel("differences", "differences", "Which differences are significant", _differences(answer),
             "By how many bits per byte a row is worse than a column, on the same bootstrap samples of the text."),
        Panel("curves", "curves", "Bits per byte during training", _curves(answer, learned, colors),
             "Thin line: training text, each batch measured before the model learns from it; in later epochs it has "
             "seen the batch before. Dots: held-out text."),
        Panel("surprise", "surprise", "Surprise by token", _surprise(answer, strips),
             "Held-out text, each token coloured by its bits, −log₂ p, for a model that had read all before it."),
        Panel("samples", "samples", "Samples", _samples(answer),
             "Each continues the same words of the held-out text, with the same seed."),
        Panel("costs", "table", "Cost of each model", _costs(answer)),
        Panel("method", "table", "Method", _method(answer), "; ".join(answer["notes"])),
    ])


def _lead(answer: Answer) -> str:
    each = f"{answer['seconds']:g} seconds" if answer["by"] == "minutes" else f"{answer['flops']:.3g} FLOPs"
    held = f"{answer['held_out']['bytes']:,} held-out bytes"
    found = f" The best: {', '.join(ranking(answer)[:1]) or 'none'}."
    return (f"{len(answer['rows'])} kinds were trained on the same {answer['train_bytes']:,} bytes, for {each} at "
            f"most. They were evaluated on the same {held}.{found}")


def _how_to_read(answer: Answer) -> str:
    words = ("Bits per byte: the fewer, the better a kind predicts text that it has not seen. The interval is "
             f"95\u00a0%, by block bootstrap over {answer['blocks']} blocks of the held-out text.")
    if answer["entropy"] is not None:
        words += (f" No model can be better than the language itself: {answer['entropy']:.4f} bits per byte, and "
                  f"{answer['text_entropy']:.4f} for this text; the gap is the difference to that.")
    return words


def ranking(answer: Answer) -> list[str]:
    """Kinds with a finite result, the best first."""
    numbers = {row["kind"]: row["bits_per_byte"] for row in answer["rows"] if row["bits_per_byte"] is not None}
    return sorted(numbers, key=lambda kind: numbers[kind])


def _ladder(answer: Answer, colors: Mapping[str, int]) -> dict[str, Any]:
    names = ("kind", "idea", "bits_per_byte", "bits_per_byte_interval", "perplexity", "gap", "gap_interval", "why")
    rows = [{name: row.get(name) for name in names} | {"color": colors.get(row["kind"])} for row in answer["rows"]]
    return {"rows": rows, "truth": answer["text_entropy"]}


def _differences(answer: Answer) -> dict[str, Any]:
    return {"kinds": ranking(answer), "pairs": answer["differences"]}


def _curves(answer: Answer, learned: Mapping[str, Points], colors: Mapping[str, int]) -> dict[str, Any]:
    rows = {row["kind"]: row for row in answer["rows"]}
    curves = [
        {"kind": kind, "color": colors[kind], "flops": rows[kind]["flops_per_token"],
         "points": some, "end": _end(rows[kind])}
        for kind, some in learned.items()
    ]
    levels = [{"name": kind, "bits_per_byte": rows[kind]["bits_per_byte"]}
              for kind in ("unigram", "bigram", "ngram") if rows.get(kind, {}).get("bits_per_byte") is not None]
    if answer["text_entropy"] is not None:
        levels.append({"name": "the language itself", "bits_per_byte": answer["text_entropy"]})
    return {"curves": curves, "levels": levels}


def _end(row: Mapping[str, Any]) -> dict[str, Any]:
    """The final result."""
    return {"tokens": row["train_tokens"], "seconds": row["train_seconds"], "bits_per_byte": row["bits_per_byte"],
            "held_out": True}


def _surprise(answer: Answer, strips: Mapping[str, ExcerptBits]) -> dict[str, Any]:
    """The best two are shown at first. The bits of an impossible token are null: JSON has no infinity."""
    drawn = [
        {"kind": kind, "begin": strip.begin,
         "pieces": [[text, round(bits, 4) if math.isfinite(bits) else None] for text, bits in strip.pieces]}
        for kind, strip in strips.items()
    ]
    first = ranking(answer)[:2]
    return {"strips": drawn, "first": (first + first or list(strips))[:2]}


def _samples(answer: Answer) -> list[dict[str, str]]:
    return [{name: row[name] for name in ("kind", "idea", "prompt", "sample")} for row in answer["rows"]]


COSTS = {
    "parameters": "parameters", "train_tokens": "training tokens", "train_seconds": "seconds",
    "tokens_per_second": "tokens a second, training", "read_tokens_per_second": "tokens a second, evaluation",
    "flops": "FLOPs, training", "state_bytes": "bytes of state", "state_bytes_per_token": "bytes added by each token",
}


def _costs(answer: Answer) -> dict[str, Any]:
    rows = [[row["kind"], *(row[name] for name in COSTS)] for row in answer["rows"]]
    return {"columns": ["kind", *COSTS.values()], "rows": rows}


def _method(answer: Answer) -> dict[str, Any]:
    rows = [[row["kind"], " ".join(row["settings"]), row["signature"]] for row in answer["rows"]]
    return {"columns": ["kind", "settings that differ from the kind's defaults", "signature"], "rows": rows}
