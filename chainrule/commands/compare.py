"""`chainrule compare` and `chainrule demo`: train and evaluate every kind on one text; a table and a report."""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from chainrule import __version__
from chainrule.api import text_name
from chainrule.compare.ladder import LadderPlan, Rung, Stopped, climb, corpus_for, held_out
from chainrule.compare.report import ranking, report_page
from chainrule.defaults.budgets import Budget, Compare, ladder_kinds
from chainrule.device import choose_device
from chainrule.errors import UserError, did_you_mean
from chainrule.files import write_text
from chainrule.inference.statistics import Comparison, compare_scores, true_bits
from chainrule.models import KINDS
from chainrule.models.published import PUBLISHED
from chainrule.progress import say, short
from chainrule.recipe import BUDGETS
from chainrule.settings import make

# `chainrule demo` is `chainrule compare` on a text of the package, with a budget of a few minutes.

DEMO_TEXT = "python-docs"
DEMO_KINDS = ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "gru", "lstm", "gpt")
DEMO_MINUTES = 0.4

DEMO_NEXT = """\
bits per byte: the fewer, the better a kind predicts text that it has not seen. All read the same characters, were
trained on the same documents for the same time, and evaluated on the same held-out documents. With so little time
n-gram counts are hard to beat; networks catch up when they are given more.

Open {report} in a browser to see the same as charts.

Try next:
  chainrule look {out}
  chainrule sample {out}/gpt --prompt "The " --rows 3
  echo "The brown fox" | chainrule score {out}/ngram
  chainrule compare YOUR.txt --minutes 2
  chainrule compare brackets --kinds bigram,ngram,hmm,lstm,gpt
  chainrule train YOUR.txt --kind gpt --minutes 10 --out runs/mine"""


def demo_command(args: Namespace) -> dict[str, Any]:
    budget = Budget.of(DEMO_MINUTES, "cpu", Compare())
    plan = LadderPlan((DEMO_TEXT,), budget, {kind: {} for kind in DEMO_KINDS})
    answer = run_ladder(plan, Path(args.out), args.overwrite)
    if not args.json and not answer.get("interrupted"):
        print(f"\n{table_and_verdicts(answer)}\n\n{DEMO_NEXT.format(**answer)}")
    return answer


RESULTS, REPORT = "results.json", "report.html"
SAMPLE = 40    # characters of a sample in the table


def compare_command(args: Namespace) -> dict[str, Any]:
    plan = plan_of(args)
    out = Path(args.out or f"runs/compare-{text_name(args.text[0])}")
    answer = run_ladder(plan, out, args.overwrite)
    if not args.json and not answer.get("interrupted"):
        print(f"\n{table_and_verdicts(answer)}\n\n{answer['report']} shows this in charts, with the training curves.")
    return answer


def plan_of(args: Namespace) -> LadderPlan:
    kinds = parse_kinds(args.kinds)
    compare, given = parse_settings(args.settings, kinds)
    device = choose_device(args.device).type
    budget = Budget.of(args.minutes, device, make(Compare, compare, "compare"))
    return LadderPlan(tuple(args.text), budget, given, tuple(args.valid), device)


def parse_kinds(words: str | None) -> tuple[str, ...]:
    ladder = ladder_kinds()
    kinds = ladder if words is None else tuple(word.strip() for word in words.split(",") if word.strip())
    for kind in kinds:
        if kind in PUBLISHED:
            raise UserError(f"--kinds: {kind} is gpt with a fixed size, and here sizes follow the budget. Compare gpt.")
        if kind not in ladder:
            why = "does not predict a text from what came before it alone" if kind in KINDS else "is no kind"
            hint = "" if kind in KINDS else did_you_mean(kind, ladder)
            raise UserError(f"--kinds: {kind} {why}.{hint or ' The ladder: ' + ', '.join(ladder) + '.'}")
    if not kinds or len(set(kinds)) < len(kinds):
        raise UserError(f"--kinds {words}: name one or more kinds, each once, separated by commas.")
    return kinds


def parse_settings(
    words: Mapping[str, str], kinds: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """`compare.*`; and by kind the settings for all (`text.*`, `train.seed`) and its own (`gpt.model.layers`)."""
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
            raise UserError(f"{name}={value}: of which kind? Write {kinds[-1]}.{name}={value}, or another kind's name.")
        else:
            near = did_you_mean(part, ["compare", "text", *kinds])
            raise UserError(f"unknown setting {name}.{near or ' It begins with compare, text or a kind of --kinds.'}")
    return compare, given


def _refuse_budget(kind: str, name: str) -> None:
    if name in {f"train.{budget}" for budget in BUDGETS}:
        raise UserError(f"{kind}.{name}: every kind gets the same budget; --minutes sets it.")


def run_ladder(plan: LadderPlan, out: Path, overwrite: bool) -> dict[str, Any]:
    """Trains, compares and writes the results; after an interrupt the answer contains only that."""
    try:
        rungs = climb(plan, out, overwrite)
    except Stopped:
        say(f"interrupted: {out} holds what was learned until then; the same command continues from it.")
        return {"out": str(out), "interrupted": True}
    answer = answer_of(plan, out, rungs)
    curves = {rung.kind: [asdict(point) for point in rung.points] for rung in rungs}
    write_text(out / RESULTS, json.dumps(answer, indent=1, allow_nan=False) + "\n")
    write_text(out / REPORT, report_page(answer, curves, {rung.kind: rung.strip for rung in rungs}))
    return answer


def answer_of(plan: LadderPlan, out: Path, rungs: Sequence[Rung]) -> dict[str, Any]:
    """All results, as plain values for JSON."""
    corpus = corpus_for(rungs[0].kind, plan)
    name, split = held_out(corpus)
    truth = None if plan.language is None else true_bits(plan.language, corpus.tokenizer.decode(split.tokens))
    compared = compare_scores({rung.kind: rung.scored for rung in rungs}, truth)
    return {
        "chainrule": __version__,
        "out": str(out),
        "report": str(out / REPORT),
        **plan.as_dict(),
        "held_out": {"split": name, "bytes": split.bytes, "documents": split.documents, "sha256": split.sha256},
        "train_bytes": corpus.splits["train"].bytes,
        "notes": list(corpus.notes),
        "blocks": len(compared.blocks),
        **_entropy(plan, compared),
        "rows": [_row(rung, compared) for rung in rungs],
        "differences": [difference.as_dict() for difference in compared.differences()],
    }


def _entropy(plan: LadderPlan, compared: Comparison) -> dict[str, Any]:
    """The entropy of the language, and of this held-out text, in bits per byte."""
    if plan.language is None or compared.truth is None:
        return {"entropy": None, "text_entropy": None}
    of_text = float(compared.truth.sum() / compared.blocks.sizes.sum())
    return {"entropy": plan.language.bits_per_character, "text_entropy": of_text}


def _row(rung: Rung, compared: Comparison) -> dict[str, Any]:
    result = rung.scored.result
    numbers = {"nats": result.nats, "perplexity": result.perplexity, "signature": result.signature}
    why = {"why": result.why} if result.why else {}
    return {"kind": rung.kind, **compared.row(rung.kind), **numbers, **rung.facts, **why}


def table_and_verdicts(answer: Mapping[str, Any]) -> str:
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
"""The columns of the table, except for the name and a sample."""


def table(answer: Mapping[str, Any]) -> list[str]:
    columns = {name: column for name, column in COLUMNS.items() if name != "gap" or answer["entropy"] is not None}
    rows = [[row["kind"], *(column(row) for column in columns.values())] for row in answer["rows"]]
    cells = [["kind", *columns], *rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    samples = ["a sample", *(one_line(row["sample"])[:SAMPLE] for row in answer["rows"])]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:])), sample])
        for row, sample in zip(cells, samples)
    ]


def one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def verdicts(answer: Mapping[str, Any]) -> list[str]:
    """Whether each kind is significantly better than the next best."""
    pairs = {(pair["better"], pair["worse"]): pair for pair in answer["differences"]}
    lines = []
    for better, worse in pairwise(ranking(answer)):
        pair = pairs[better, worse]
        gap = f"{pair['bits_per_byte']:.3f} bits per byte ({_interval(pair['bits_per_byte_interval'])})"
        lines.append(f"{better} is better than {worse} by {gap}" if pair["real"] else
                     f"{better} and {worse} cannot be distinguished on this text: {gap}")
    return lines


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(bounds: Sequence[float] | None) -> str:
    return "infinite" if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"
