"""`chainrule eval RUN… TEXT --by-position`: how far each run carries, as a table and as a picture."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.inference.analysis.by_position import (
    ByPosition,
    require_same_positions,
    score_by_position,
    window_length,
)
from chainrule.run import RECIPE, Run, load, refuse_unwritable
from chainrule.text.corpus import read_split
from chainrule.viewer.line_chart import line_chart


def by_position(args: Namespace) -> dict[str, Any]:
    """Runs on the windows of one text: a table, and a picture where one is asked for."""
    if args.plot:
        refuse_unwritable(Path(args.plot).parent)
    words = [args.run, *args.file]
    count = next((at for at, word in enumerate(words) if at and not _is_run(word)), len(words))
    if count == len(words):
        raise UserError("eval --by-position needs a held-out text after the runs.")
    runs = {word: load_word(word, args) for word in words[:count]}
    text = {name: value for name, value in args.settings.items() if not name.startswith("model.")}
    length = window_length([run.language_model for run in runs.values()], args.positions)
    scored = {
        word: score_by_position(run.language_model, run.tokenizer,
                                read_split(words[count:], run.reading(text), run.tokenizer), length)
        for word, run in runs.items()
    }
    require_same_positions(scored)
    if args.plot:
        write_text(Path(args.plot), draw_positions(scored))
    if not args.json:
        print_positions(scored)
    return {"runs": [{"run": word, **one.as_dict()} for word, one in scored.items()], "plot": args.plot}


def _is_run(word: str) -> bool:
    return (Path(word.partition(":")[0]) / RECIPE).is_file()


def load_word(word: str, args: Namespace) -> Run:
    """A run with the settings after its colon, and those of the command."""
    path, _, own = word.partition(":")
    pairs = [pair.partition("=") for pair in own.split(",") if pair]
    given = {name: value for name, value in args.settings.items() if name.startswith("model.")}
    return load(path, args.device, given | {name: value for name, _, value in pairs})


def print_positions(scored: Mapping[str, ByPosition]) -> None:
    longest = max(scored.values(), key=lambda one: one.ends[-1])
    rows = [["position", *map(short_name, scored)]]
    for place, name in enumerate(longest.names):
        cells = [one.scores[place] if longest.ends[place] in one.ends else None for one in scored.values()]
        rows.append([name, *("–" if score is None else f"{score.value:.4f} ({score.low:.4f} to {score.high:.4f})"
                             for score in cells)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    unit = longest.unit.replace("_", " ")
    print(f"{unit} over {longest.windows:,} windows of {longest.ends[-1]:,} tokens\n{longest.signature}")


def short_name(word: str) -> str:
    """runs/gpt:model.rope_scaling=yarn,model.rope_factor=8 -> gpt, yarn, 8"""
    path, _, own = word.partition(":")
    return ", ".join([Path(path).name, *(pair.partition("=")[2] for pair in own.split(",") if pair)])


def draw_positions(scored: Mapping[str, ByPosition]) -> str:
    longest = max((one.ends for one in scored.values()), key=max)
    curves = {short_name(word): [(float(end), score) for end, score in zip(one.ends, one.scores)]
              for word, one in scored.items()}
    unit = next(iter(scored.values())).unit.replace("_", " ")
    ticks = {float(end): str(end) for end in longest}
    return line_chart(curves, x="position in tokens, up to", y=unit, ticks=ticks, log=True)
