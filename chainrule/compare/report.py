"""A comparison as a page: the ladder, which gaps are real, how each kind came to be, where they differ, how they write.

What the page shows is what `chainrule compare --json` says; here it is only put in the order in which views want it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chainrule.inference.excerpt import ExcerptBits
from chainrule.viewer.page import Panel, make_page

Answer = Mapping[str, Any]
Points = Sequence[Mapping[str, Any]]    # of a kind's history: tokens, seconds, bits_per_byte, held_out
HUES = 6                  # colours that can be told apart by everyone; what has no curve is drawn in grey


def report(answer: Answer, points: Mapping[str, Points], strips: Mapping[str, ExcerptBits]) -> str:
    learned = {kind: some for kind, some in points.items() if len(some) > 1}
    colors = {kind: place % HUES for place, kind in enumerate(learned)}
    return make_page(f"{' '.join(answer['texts'])}: which model foretells it best?", _lead(answer), [
        Panel("ladder", "ladder", "The ladder", _ladder(answer, colors), _how_to_read(answer)),
        Panel("differences", "differences", "Which gaps are real", _differences(answer),
             "How many bits per byte a row needs more than a column, on the same draws of the text."),
        Panel("curves", "curves", "Bits per byte as they learn", _curves(answer, learned, colors),
             "Thin: the text being learned, before it is learned; in later readings it is known already. "
             "Dots: held-out text."),
        Panel("surprise", "surprise", "Where they are surprised", _surprise(answer, strips),
             "Held-out text, each token coloured by the bits it cost a model that had read all before it."),
        Panel("samples", "samples", "How they write", _samples(answer),
             "Each goes on from the same words of the held-out text, with the same seed."),
        Panel("costs", "table", "What each model cost", _costs(answer)),
        Panel("method", "table", "How it was measured", _method(answer), "; ".join(answer["notes"])),
    ])


def _lead(answer: Answer) -> str:
    each = f"{answer['seconds']:g} seconds" if answer["by"] == "minutes" else f"{answer['flops']:.3g} FLOPs"
    held = f"{answer['held_out']['bytes']:,} held-out bytes"
    found = f" The best: {', '.join(ranking(answer)[:1]) or 'none'}."
    return (f"{len(answer['rows'])} kinds learned from the same {answer['train_bytes']:,} bytes, for {each} at most. "
            f"They were measured on the same {held}.{found}")


def _how_to_read(answer: Answer) -> str:
    words = ("Bits per byte: the fewer, the better a kind foretells text that it has not seen. The interval is "
             f"95\u00a0%, by drawing {answer['blocks']} blocks of the held-out text again and again.")
    if answer["entropy"] is not None:
        words += (f" Nothing can be better than the language itself: {answer['entropy']:.4f} bits per byte, and "
                  f"{answer['text_entropy']:.4f} for this very text; the gap is what a kind needs more than that.")
    return words


def ranking(answer: Answer) -> list[str]:
    """Kinds that have a number, the best first."""
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
    """The point on which it is judged."""
    return {"tokens": row["train_tokens"], "seconds": row["train_seconds"], "bits_per_byte": row["bits_per_byte"],
            "held_out": True}


def _surprise(answer: Answer, strips: Mapping[str, ExcerptBits]) -> dict[str, Any]:
    """The best two are shown at first. What a model holds for impossible is null: JSON has no infinity."""
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
    "parameters": "parameters", "train_tokens": "tokens learned from", "train_seconds": "seconds",
    "tokens_per_second": "tokens a second, learning", "read_tokens_per_second": "tokens a second, reading",
    "flops": "FLOPs, learning", "state_bytes": "bytes of state", "state_bytes_per_token": "bytes a token adds to it",
}


def _costs(answer: Answer) -> dict[str, Any]:
    rows = [[row["kind"], *(row[name] for name in COSTS)] for row in answer["rows"]]
    return {"columns": ["kind", *COSTS.values()], "rows": rows}


def _method(answer: Answer) -> dict[str, Any]:
    rows = [[row["kind"], " ".join(row["settings"]), row["signature"]] for row in answer["rows"]]
    return {"columns": ["kind", "chosen for it, where it differs from the kind's defaults", "signature"], "rows": rows}
