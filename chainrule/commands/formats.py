"""`chainrule export` and `import`: models that other programs read and write."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.formats.arpa import read_arpa, write_arpa
from chainrule.progress import say
from chainrule.run import load, look_before_writing, save


def export(args: Namespace) -> dict[str, Any]:
    out = Path(args.out)
    if out.is_dir():
        raise UserError(f"{out} is a folder; an ARPA model is one file.")
    if out.exists() and not args.overwrite:
        raise UserError(f"{out} is already there. Choose another name, or replace it with --overwrite.")
    run = load(args.run)
    write_arpa(run.model, run.tokenizer, out)
    say(f"{out}: {out.stat().st_size:,} bytes")
    return {"run": args.run, "out": str(out), "bytes": out.stat().st_size}


def import_(args: Namespace) -> dict[str, Any]:
    model, tokenizer, recipe = read_arpa(Path(args.path))
    ...
    return {"run": args.out}
