"""`chainrule compare`: every kind of the ladder on one text, in one table and one page."""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from chainrule import __version__
from chainrule.api import text_name
from chainrule.compare.budgets import Budget, Compare, ladder_kinds
from chainrule.compare.ladder import Asked, Rung, Stopped, climb, corpus_for, held_out
from chainrule.compare.report import ranking, report
from chainrule.device import choose_device
from chainrule.errors import UserError, did_you_mean
from chainrule.files import write_text
from chainrule.inference.statistics import Comparison, compare_scores, true_bits
from chainrule.models import KINDS
from chainrule.models.published import PUBLISHED
from chainrule.progress import say, short
from chainrule.recipe import BUDGETS
from chainrule.settings import make

RESULTS, REPORT = "results.json", "report.html"
SAMPLE = 40    # characters of a sample in the table


def compare(args: Namespace) -> dict[str, Any]:
    asked = asked_by(args)
    out = Path(args.out or f"runs/compare-{text_name(args.text[0])}")
    answer = run_ladder(asked, out, args.overwrite)
    if not args.json and not answer.get("interrupted"):
        print(f"\n{summary(answer)}\n\n{answer['report']} shows all of this, and how they came to it.")
    return answer


def asked_by(args: Namespace) -> Asked:
    kinds = parse_kinds(args.kinds)
    compare, given = parse_settings(args.settings, kinds)
    device = choose_device(args.device).type
    budget = Budget.of(args.minutes, device, make(Compare, compare, "compare"))
    return Asked(tuple(args.text), budget, given, tuple(args.valid), device)


def parse_kinds(words: str | None) -> tuple[str, ...]:
    kinds = ladder_kinds() if words is None else tuple(word.strip() for word in words.split(",") if word.strip())
    for kind in kinds:
        if kind in PUBLISHED:
            raise UserError(f"--kinds: {kind} is a fixed size of gpt, and here sizes follow the time. Compare gpt.")
        if kind not in ladder_kinds():
            why = "does not predict a text from its past alone" if kind in KINDS else "is no kind"
            hint = "" if kind in KINDS else did_you_mean(kind, ladder_kinds())
            raise UserError(f"--kinds: {kind} {why}.{hint or ' The ladder: ' + ', '.join(ladder_kinds()) + '.'}")
    if not kinds or len(set(kinds)) < len(kinds):
        raise UserError(f"--kinds {words}: name one or more, each once, with commas between.")
    return kinds


def parse_settings(
    words: Mapping[str, str], kinds: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """`compare.*`; and by kind what is given to all (`text.*`, `train.seed`) and to it alone (`gpt.model.layers`)."""
    compare, given = dict[str, str](), {kind: dict[str, str]() for kind in kinds}
    for name, value in words.items():
        part, _, rest = name.partition(".")
        if part == "compare":
            compare[rest] = value
        elif part in given:
            _refuse_budget(part, rest)
            given[part][rest] = value
        elif part == "text" or name == "train.seed":
            given = {kind: {name: value, **settings} for kind, settings in given.items()}
        elif part in ("model", "train"):
            raise UserError(f"{name}={value}: whose? Say {kinds[-1]}.{name}={value}, or another kind's name before it.")
        else:
            near = did_you_mean(part, ["compare", "text", *kinds])
            raise UserError(f"unknown setting {name}.{near or ' It begins with compare, text or a kind of --kinds.'}")
    return compare, given


def _refuse_budget(kind: str, name: str) -> None:
    if name in {f"train.{budget}" for budget in BUDGETS}:
        raise UserError(f"{kind}.{name}: another budget than the others have would not be fair; --minutes is theirs.")


def run_ladder(asked: Asked, out: Path, overwrite: bool) -> dict[str, Any]:
    """Climb, compare, and write it all down; where it is stopped by hand, the answer says only that."""
    try:
        rungs = climb(asked, out, overwrite)
    except Stopped:
        say(f"stopped by hand: {out} holds what was learned until then; the same command goes on from it.")
        return {"out": str(out), "interrupted": True}
    answer = answer_of(asked, out, rungs)
    curves = {rung.kind: [asdict(point) for point in rung.points] for rung in rungs}
    write_text(out / RESULTS, json.dumps(answer, indent=1, allow_nan=False) + "\n")
    write_text(out / REPORT, report(answer, curves, {rung.kind: rung.strip for rung in rungs}))
    return answer


def answer_of(asked: Asked, out: Path, rungs: Sequence[Rung]) -> dict[str, Any]:
    """All that was found, as plain values for JSON."""
    corpus = corpus_for(rungs[0].kind, asked)
    name, split = held_out(corpus)
    truth = None if asked.language is None else true_bits(asked.language, corpus.tokenizer.decode(split.tokens))
    compared = compare_scores({rung.kind: rung.scored for rung in rungs}, truth)
    return {
        "chainrule": __version__,
        "out": str(out),
        "report": str(out / REPORT),
        **asked.as_dict(),
        "held_out": {"split": name, "bytes": split.bytes, "documents": split.documents, "sha256": split.sha256},
        "train_bytes": corpus.splits["train"].bytes,
        "notes": list(corpus.notes),
        "blocks": len(compared.blocks),
        **_entropy(asked, compared),
        "rows": [_row(rung, compared) for rung in rungs],
        "differences": [difference.as_dict() for difference in compared.differences()],
    }


def _entropy(asked: Asked, compared: Comparison) -> dict[str, Any]:
    """Of the language, and of the very text that is held out: both in bits per byte."""
    if asked.language is None or compared.truth is None:
        return {"entropy": None, "text_entropy": None}
    of_text = float(compared.truth.sum() / compared.blocks.sizes.sum())
    return {"entropy": asked.language.bits_per_character, "text_entropy": of_text}


def _row(rung: Rung, compared: Comparison) -> dict[str, Any]:
    result = rung.scored.result
    numbers = {"nats": result.nats, "perplexity": result.perplexity, "signature": result.signature}
    why = {"why": result.why} if result.why else {}
    return {"kind": rung.kind, **compared.row(rung.kind), **numbers, **rung.facts, **why}


def summary(answer: Mapping[str, Any]) -> str:
    return "\n".join([*table(answer), "", *verdicts(answer)])


COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bits/byte": lambda row: _number(row["bits_per_byte"]),
    "95 % interval": lambda row: _interval(row["bits_per_byte_interval"]),
    "gap": lambda row: _number(row.get("gap")),
    "parameters": lambda row: short(row["parameters"]),
    "seconds": lambda row: f"{row['train_seconds']:.1f}",
    "tokens/s": lambda row: short(row["tokens_per_second"]),
    "state B": lambda row: short(row["state_bytes"]),
    "+B/token": lambda row: short(row["state_bytes_per_token"]),
}
"""What the table says of a kind, beside its name and a sample."""


def table(answer: Mapping[str, Any]) -> list[str]:
    columns = {name: tell for name, tell in COLUMNS.items() if name != "gap" or answer["entropy"] is not None}
    cells = [["kind", *columns], *([row["kind"], *(tell(row) for tell in columns.values())] for row in answer["rows"])]
    widths = [max(map(len, column)) for column in zip(*cells)]
    samples = ["a sample", *(one_line(row["sample"])[:SAMPLE] for row in answer["rows"])]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:])), sample])
        for row, sample in zip(cells, samples)
    ]


def one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def verdicts(answer: Mapping[str, Any]) -> list[str]:
    """Whether each kind is really better than the next best."""
    pairs = {(pair["better"], pair["worse"]): pair for pair in answer["differences"]}
    lines = []
    for better, worse in pairwise(ranking(answer)):
        pair = pairs[better, worse]
        gap = f"{pair['bits_per_byte']:.3f} bits per byte ({_interval(pair['bits_per_byte_interval'])})"
        lines.append(f"{better} is better than {worse} by {gap}" if pair["real"] else
                     f"{better} and {worse} cannot be told apart on this text: {gap}")
    return lines


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(bounds: Sequence[float] | None) -> str:
    return "infinite" if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"
