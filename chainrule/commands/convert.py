"""`chainrule export` and `import`: models in the formats of other programs and merged LoRA adapters.

`import` also makes runs of models that are written by hand (formats/hand_written.py).
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chainrule.errors import UserError, did_you_mean
from chainrule.formats.arpa import read_arpa, write_arpa
from chainrule.formats.gguf.export import write_gguf
from chainrule.formats.gguf.read import looks_like_gguf, read_gguf
from chainrule.formats.hand_written import built_in_models, find_hand_written, read_hand_written
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.formats.hugging_face_import import ImportedFolder, read_folder
from chainrule.formats.onnx.export import FILE as ONNX_FILE
from chainrule.formats.onnx.export import write_onnx
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
    if args.precision is not None and args.to != "gguf":
        raise UserError(f"--precision {args.precision} is for --to gguf; --to {args.to} has none.")
    if args.to == "huggingface":
        what = write_folder(load(args.run), out, args.overwrite)
        say(f"{out}: {what}")
        return {"run": args.run, "out": str(out), "what": what, "bytes": _print_size(out / "model.safetensors")}
    if args.to == "onnx":
        what = write_onnx(load(args.run), out, args.overwrite)
        say(f"{out}: {what}")
        return {"run": args.run, "out": str(out), "what": what, "bytes": _print_size(out / ONNX_FILE)}
    if args.to == "merged":
        merged(args.run, out, args.overwrite)
        return {"run": args.run, "out": str(out), "bytes": _print_size(out / MODEL)}
    if out.is_dir():
        raise UserError(f"{out} is a folder; give the name of a file.")
    if out.exists() and not args.overwrite:
        raise UserError(f"{out} exists already. Choose another name, or replace it with --overwrite.")
    run = load(args.run)
    if args.to == "gguf":
        what = write_gguf(run, out, args.precision or "f32")
        say(f"{out}: {what}")
    elif args.to == "arpa":
        write_arpa(run.model, run.tokenizer, out)
    else:
        write_vectors(vectors_of(run.model, run.tokenizer), out, args.to)
    return {"run": args.run, "out": str(out), "bytes": _print_size(out)}


def _print_size(file: Path) -> int:
    size = file.stat().st_size
    say(f"{file}: {size:,} bytes")
    return size


@dataclass(frozen=True)
class Imported:
    model: Any
    tokenizer: Tokenizer
    recipe: Recipe
    what: str                                 # for people
    facts: dict[str, Any]                     # for JSON
    labels: tuple[str, ...] = ()              # names of its states or classes
    excerpt: str = ""                         # a text that pages open with
    source: Mapping[str, Any] | None = None   # files that it was made of
    chat_template: str | None = None


def import_command(args: Namespace) -> dict[str, Any]:
    out, log, made = Path(args.out), Log(), _read(args.path)
    if look_before_writing(out, made.recipe, args.overwrite) is not None:
        raise UserError(f"{out} holds a run already. Choose another folder, or replace it with --overwrite.")
    log("import", f"{out}: {made.what}", path=args.path)
    save(out, made.model, made.tokenizer, made.recipe, log=log.records, labels=made.labels, excerpt=made.excerpt,
         source=made.source, chat_template=made.chat_template)
    return {"run": str(out), "what": made.what, **made.facts, "vocab": len(made.tokenizer)}


def _read(name: str) -> Imported:
    """The model in a file, or the built-in one of that name."""
    path = Path(name)
    if (written := find_hand_written(name)) is not None:
        made = read_hand_written(written)
        return Imported(made.model, made.tokenizer, made.recipe, made.what, {}, made.labels, made.excerpt)
    if path.is_dir():
        return _exchanged(read_folder(path))
    if not path.exists():
        known = built_in_models()
        near = did_you_mean(name, known) or f" Models that are built in: {', '.join(known)}."
        raise UserError(f"there is no file {name}.{near}")
    if looks_like_gguf(path):
        return _exchanged(read_gguf(path))
    return _vectors(path) if looks_like_vectors(path) else _arpa(path)


def _exchanged(given: ImportedFolder) -> Imported:
    """Of a Hugging Face folder or a GGUF file."""
    facts = {"architecture": given.source["architecture"], "source": given.source}
    return Imported(given.model, given.tokenizer, given.recipe, given.what, facts, source=given.source,
                    chat_template=given.chat_template)


def _arpa(path: Path) -> Imported:
    model, tokenizer = read_arpa(path)
    recipe = make_recipe("ngram", type(model), {"text.tokenizer": "words", "model.order": model.order})
    what = f"an n-gram of order {model.order} over {len(tokenizer):,} words"
    return Imported(model, tokenizer, recipe, what, {"order": model.order})


def _vectors(path: Path) -> Imported:
    """As a word2vec that cannot be trained further: such files do not hold its output vectors."""
    vectors = read_vectors(path)
    size = vectors.matrix.shape[1]
    recipe = make_recipe("word2vec", Word2Vec, {"text.tokenizer": "words", "model.embedding": size})
    tokenizer = Tokenizer.from_spec(WordLevel.spec(word for word in vectors.words if word not in OWN))
    model = Word2Vec(recipe.model, len(tokenizer))
    ids = [tokenizer.id(word) for word in vectors.words]
    model.vectors[ids] = torch.from_numpy(vectors.matrix)
    what = f"vectors of {size} numbers for {len(vectors):,} words"
    return Imported(model, tokenizer, recipe, what, {"embedding": size})
