"""`chainrule demo`: the ladder on an embedded text. The same steps as `train` and `sample`, once for each kind."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule import models
from chainrule.progress import say
from chainrule.run import load
from chainrule.train.pipeline import make_run, recipe_for
from chainrule.use.evaluate import require_alike
from chainrule.use.sample import generate

TEXT = "python-docs"
LADDER: dict[str, dict[str, Any]] = {
    "uniform": {},
    "unigram": {},
    "bigram": {},
    "hmm": {"model.states": 64, "train.steps": 30},
    "ngram": {"model.order": 5},
}
"""Kinds, and where they differ from their defaults to be quick. All read characters, so perplexities compare too."""

NEXT = """\
bits per byte: the fewer, the better a model foretells text that it has not seen. All kinds read the same characters and
were measured on the same held-out documents.

Try next:
  chainrule sample {out}/ngram --prompt "The " --rows 3
  echo "The quick brown fox" | chainrule score {out}/ngram
  chainrule train {text} --kind ngram model.order=8 text.tokenizer=characters --out runs/eight
  chainrule train YOUR.txt --kind ngram --out runs/mine
  chainrule settings ngram"""


def demo(args: Namespace) -> dict[str, Any]:
    out = Path(args.out)
    say(f"The ladder on {TEXT}, by characters: {', '.join(LADDER)}.")
    rows = [rung(kind, given, out / kind, args.overwrite) for kind, given in LADDER.items()]
    require_alike([row["signature"] for row in rows])
    if not args.json:
        print("\n" + table(rows) + "\n\n" + NEXT.format(out=out, text=TEXT))
    return {"text": TEXT, "rows": rows}


def rung(kind: str, given: dict[str, Any], out: Path, overwrite: bool) -> dict[str, Any]:
    """One kind, trained, measured and heard."""
    say(f"\n{kind}: {models.kind(kind).idea}")
    recipe = recipe_for(kind, {"text.tokenizer": "characters", **given})
    made = make_run([TEXT], recipe, out, overwrite=overwrite)
    if made.result is None:
        raise KeyboardInterrupt
    run = load(out)
    (text,) = generate(run.model, run.tokenizer, "The ", 60)
    names = ("bits_per_byte", "perplexity", "parameters", "train_seconds", "signature")
    return {"kind": kind, **{name: made.result[name] for name in names}, "sample": "The " + text}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'kind':<8} {'bits/byte':>9} {'perplexity':>10} {'parameters':>10} {'seconds':>7}  a sample"]
    for row in rows:
        sample = "".join(letter if letter.isprintable() else " " for letter in row["sample"])
        lines.append(
            f"{row['kind']:<8} {row['bits_per_byte']:9.3f} {row['perplexity']:10.2f} {row['parameters']:10,} "
            f"{row['train_seconds']:7.1f}  {' '.join(sample.split())[:60]}"
        )
    return "\n".join(lines)
