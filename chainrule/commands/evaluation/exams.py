"""`chainrule eval RUN blimp` and `lambada`: an exam of a run, as a table beside published results."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.exams import EXAMS, take_exam
from chainrule.exams.blimp import SYSTEMS
from chainrule.run import Run

HEAD = ("phenomenon", "accuracy", "95 % interval", *SYSTEMS)


def is_exam(files: list[str]) -> bool:
    """Whether the words of `eval` are the name of an exam; a file of that name comes first."""
    return len(files) == 1 and files[0] in EXAMS and not Path(files[0]).exists()


def exam(run: Run, settings: dict[str, str], args: Namespace) -> dict[str, Any]:
    """The result of a run in an exam; printed unless JSON is asked for."""
    for name in settings:
        raise UserError(f"{name} cannot be set here: an exam is read as it is. Leave it out.")
    result = take_exam(run, args.file[0], args.limit)
    if not args.json:
        lines = _blimp_lines if result["exam"] == "blimp" else _lambada_lines
        print("\n".join([*lines(args.run, result), result["signature"]]))
    return {"run": args.run, **result}


def _blimp_lines(run: str, result: dict[str, Any]) -> list[str]:
    rows = [HEAD, *(_row(name.replace("_", " "), part) for name, part in result["phenomena"].items()),
            _row("overall", result)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    table = ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
             for row in rows]
    unknown = f", {result['unknown']:.1%} of the tokens unknown" if result["unknown"] else ""
    return [*table, f"{run}: {result['accuracy']:.1%} of {result['pairs']:,} pairs, {result['ties']:,} ties{unknown}"]


def _row(name: str, part: dict[str, Any]) -> tuple[str, ...]:
    low, high = part["accuracy_interval"]
    published = [f"{part['published'][system]:.1f}" if part["published"] else "–" for system in SYSTEMS]
    return name, f"{100 * part['accuracy']:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", *published


def _lambada_lines(run: str, result: dict[str, Any]) -> list[str]:
    low, high = result["accuracy_interval"]
    perplexity = f"no perplexity of a word: {result.get('why')}"
    if result["perplexity"] is not None:
        below, above = result["perplexity_interval"]
        perplexity = f"perplexity of a word {result['perplexity']:,.2f} ({below:,.2f} to {above:,.2f})"
    unknown = f"; {result['unknown']:,} last words are not in the vocabulary" if result["unknown"] else ""
    published = [f"{name}: {one['accuracy']:.2f} %, perplexity {one['perplexity']:.2f} (published)"
                 for name, one in result["published"].items()]
    measured = f"accuracy {result['accuracy']:.2%} ({low:.2%} to {high:.2%}), {perplexity}"
    return [f"{run}: {measured}, over {result['passages']:,} passages{unknown}", *published]
