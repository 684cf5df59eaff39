"""`chainrule export` and `import`: models that other programs read and write."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.formats.arpa import read_arpa, write_arpa
from chainrule.progress import say
from chainrule.recipe import make_recipe
from chainrule.run import load, look_before_writing, save
from chainrule.train.log import Log


def export(args: Namespace) -> dict[str, Any]:
    out = Path(args.out)
    if out.is_dir():
        raise UserError(f"{out} is a folder; an ARPA model is one file. Name the file.")
    if out.exists() and not args.overwrite:
        raise UserError(f"{out} is already there. Choose another name, or replace it with --overwrite.")
    run = load(args.run)
    write_arpa(run.model, run.tokenizer, out)
    say(f"{out}: {out.stat().st_size:,} bytes")
    return {"run": args.run, "out": str(out), "bytes": out.stat().st_size}


def import_(args: Namespace) -> dict[str, Any]:
    out, log = Path(args.out), Log()
    model, tokenizer = read_arpa(Path(args.path))
    recipe = make_recipe("ngram", type(model), {"text.tokenizer": "words", "model.order": model.order})
    if look_before_writing(out, recipe, args.overwrite) is not None:
        raise UserError(f"{out} holds a run already. Choose another folder, or replace it with --overwrite.")
    line = f"{out}: an n-gram of order {model.order} over {len(tokenizer):,} words"
    log("import", line, path=args.path)
    save(out, model, tokenizer, recipe, log=log.records)
    return {"run": str(out), "order": model.order, "vocab": len(tokenizer)}
