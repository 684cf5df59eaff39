"""`chainrule eval RUN EXAMPLES --shots 0,1,4,16`: few-shot prompts, as a table and as a picture with intervals."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.exams.few_shot import examine_shots
from chainrule.exams.prompt_set import WRITTEN, FewShot
from chainrule.files import write_text
from chainrule.inference.beam import Beam
from chainrule.inference.statistics import Score
from chainrule.run import Run, refuse_unwritable
from chainrule.viewer.line_chart import line_chart

OPTIONS = ("examples", "template", "separator", "labels", "draws", "seed", "unbalanced", "calibration", "normalise",
           "chat", "task", "channel", "ensemble")

WAYS = {
    "channel": "channel: the text is scored after each label, p(text | examples, label)",
    "ensemble": "ensemble: each example is in a prompt of its own, and log p is averaged over the prompts",
}


def refuse_without_shots(args: Namespace) -> None:
    for name in OPTIONS:
        if getattr(args, name):
            raise UserError(f"--{name} is for prompts with examples: give --shots K too.")


def few_shot(run: Run, settings: dict[str, str], args: Namespace) -> dict[str, Any]:
    """The results of a run by the number of shots; printed unless JSON is asked for."""
    if args.plot:
        refuse_unwritable(Path(args.plot).parent)
    if args.samples is not None:
        raise UserError("--samples is not for --shots: a translation is written greedily, or by --beam W.")
    result = examine_shots(run, args.file, options_of(args), settings)
    if args.plot:
        write_text(Path(args.plot), draw_shots(Path(args.run).name, result))
    if not args.json:
        print("\n".join([*table(result), *said(args.run, result), result["signature"]]))
    return {"run": args.run, **result, "plot": args.plot}


def options_of(args: Namespace) -> FewShot:
    given = {name: getattr(args, name) for name in ("task", "template", "separator", "labels", "draws", "seed",
                                                    "calibration", "normalise") if getattr(args, name) is not None}
    beam = Beam(args.beam or 1, args.alpha or 0.0, limit=WRITTEN)
    return FewShot(shots=read_shots(args.shots), examples=tuple(args.examples), balanced=not args.unbalanced,
                   chat=args.chat, channel=args.channel, ensemble=args.ensemble, limit=args.limit, beam=beam, **given)


def read_shots(given: str) -> tuple[int, ...]:
    """0,1,4,16"""
    words = given.replace(" ", "").split(",")
    if not all(word.isdecimal() and word.isascii() and len(word) < 10 for word in words):
        raise UserError(f"--shots {given}: ask for a number of examples, 0 or more, or several: 0,1,4,16.")
    return tuple(sorted({int(word) for word in words}))


def table(result: dict[str, Any]) -> list[str]:
    metric, scale = ("accuracy", 100) if result["task"] == "classify" else ("bleu", 1)
    rows = [("shots", "accuracy" if scale == 100 else "BLEU", "95 % interval", "over examples", "over draws", "draws")]
    for one in result["results"]:
        whole, draws = one[f"{metric}_interval"], one["over_draws"]
        examples = one.get("over_examples", whole)
        rows.append((str(one["shots"]), f"{scale * one[metric]:.1f}", _interval(whole, scale),
                     _interval(examples, scale), _interval(draws, scale), str(one["draws"])))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]


def _interval(bounds: list[float] | None, scale: float) -> str:
    return "–" if bounds is None else f"{scale * bounds[0]:.1f} to {scale * bounds[1]:.1f}"


def said(run: str, result: dict[str, Any]) -> list[str]:
    template = result["template"].replace("\n", "\\n")
    lines = [f'{run}: {result["examples"]:,} examples, template "{template}"']
    if result["task"] == "classify":
        words = ", ".join(f"{label} = {word}" for label, word in result["words"].items())
        ties = sum(one["ties"] for one in result["results"])
        lines.append(f"labels {words}; the most frequent one is {result['majority']:.1%} of the examples"
                     + (f"; {ties:,} ties, which are mistakes" if ties else ""))
        lines += [WAYS[way] for way in (result["direction"], result["demonstrations"]) if way in WAYS]
    return lines


def draw_shots(run: str, result: dict[str, Any]) -> str:
    """Numbers of shots side by side, whatever lies between them."""
    metric, scale = ("accuracy", 100.0) if result["task"] == "classify" else ("bleu", 1.0)
    places = {float(place): one for place, one in enumerate(result["results"])}
    curves = {run: [(at, Score(scale * one[metric], *(scale * bound for bound in one[f"{metric}_interval"])))
                    for at, one in places.items()]}
    if result["task"] == "classify":
        share = 100 * result["majority"]
        curves["most frequent label"] = [(at, Score(share, share, share)) for at in places]
    ticks = {at: str(one["shots"]) for at, one in places.items()}
    title = "accuracy, %" if scale == 100 else "BLEU"
    return line_chart(curves, x="examples in the prompt", y=title, ticks=ticks)
