"""`chainrule export` and `import`: models in the formats of other programs (ARPA, word2vec, GloVe), merged adapters."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.formats.arpa import read_arpa, write_arpa
from chainrule.formats.vector_files import looks_like_vectors, read_vectors, write_vectors
from chainrule.inference.vectors import vectors_of
from chainrule.models.word2vec import Word2Vec
from chainrule.progress import say
from chainrule.recipe import Recipe, make_recipe
from chainrule.run import MODEL, load, look_before_writing, merged, save
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import UNKNOWN, WordLevel
from chainrule.training.log import Log

OWN = ("</s>", UNKNOWN)
"""Words that every vocabulary has: the boundary, and the unknown word."""


def export_command(args: Namespace) -> dict[str, Any]:
    out = Path(args.out)
    if args.to == "merged":
        merged(args.run, out, args.overwrite)
        return {"run": args.run, "out": str(out), "bytes": _print_size(out / MODEL)}
    if out.is_dir():
        raise UserError(f"{out} is a folder; give the name of a file.")
    if out.exists() and not args.overwrite:
        raise UserError(f"{out} exists already. Choose another name, or replace it with --overwrite.")
    run = load(args.run)
    if args.to == "arpa":
        write_arpa(run.model, run.tokenizer, out)
    else:
        write_vectors(vectors_of(run.model, run.tokenizer), out, args.to)
    return {"run": args.run, "out": str(out), "bytes": _print_size(out)}


def _print_size(file: Path) -> int:
    size = file.stat().st_size
    say(f"{file}: {size:,} bytes")
    return size


def import_command(args: Namespace) -> dict[str, Any]:
    out, path, log = Path(args.out), Path(args.path), Log()
    model, tokenizer, recipe, what = _vectors(path) if looks_like_vectors(path) else _arpa(path)
    if look_before_writing(out, recipe, args.overwrite) is not None:
        raise UserError(f"{out} holds a run already. Choose another folder, or replace it with --overwrite.")
    log("import", f"{out}: {what['what']}", path=args.path)
    save(out, model, tokenizer, recipe, log=log.records)
    return {"run": str(out), **what, "vocab": len(tokenizer)}


def _arpa(path: Path) -> tuple[Any, Tokenizer, Recipe, dict[str, Any]]:
    model, tokenizer = read_arpa(path)
    recipe = make_recipe("ngram", type(model), {"text.tokenizer": "words", "model.order": model.order})
    what = f"an n-gram of order {model.order} over {len(tokenizer):,} words"
    return model, tokenizer, recipe, {"what": what, "order": model.order}


def _vectors(path: Path) -> tuple[Any, Tokenizer, Recipe, dict[str, Any]]:
    """As a word2vec that cannot be trained further: such files do not hold its output vectors."""
    vectors = read_vectors(path)
    size = vectors.matrix.shape[1]
    recipe = make_recipe("word2vec", Word2Vec, {"text.tokenizer": "words", "model.embedding": size})
    tokenizer = Tokenizer.from_spec(WordLevel.spec(word for word in vectors.words if word not in OWN))
    model = Word2Vec(recipe.model, len(tokenizer))
    ids = [tokenizer.id(word) for word in vectors.words]
    model.vectors[ids] = torch.from_numpy(vectors.matrix)
    what = f"vectors of {size} numbers for {len(vectors):,} words"
    return model, tokenizer, recipe, {"what": what, "embedding": size}
