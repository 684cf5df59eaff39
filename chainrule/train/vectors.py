"""First embeddings from elsewhere: `model.vectors` names a file of word vectors or a run, and they are put into a
network before it learns. A token that has none there keeps its random start."""

from pathlib import Path
from typing import Any

import torch

from chainrule import run
from chainrule.errors import UserError
from chainrule.formats.vectors import read_vectors
from chainrule.text.tokenizer import Tokenizer
from chainrule.train.log import Log
from chainrule.use.vectors import Vectors, vectors_of


def put_vectors(model: Any, tokenizer: Tokenizer, settings: Any, log: Log) -> None:
    """Those that `settings` asks for, if it does; and how many tokens have one is said aloud."""
    path, frozen = getattr(settings, "vectors", None), getattr(settings, "vectors_frozen", False)
    if path is None:
        if frozen:
            raise UserError("model.vectors_frozen=true freezes what model.vectors=FILE brings; give both, or neither.")
        return
    vectors = load_vectors(Path(path))
    matrix = model.embeddings
    came, wanted = vectors.matrix.shape[1], matrix.shape[1]
    if came != wanted:
        raise UserError(f"model.vectors={path} has vectors of {came} numbers, and this model's are of {wanted}. "
                        "Set model.embedding, or model.width of a Transformer, to fit.")
    found = [(id, place) for id in range(len(tokenizer)) if (place := vectors.find(tokenizer.token(id))) is not None]
    if not found:
        raise UserError(f"model.vectors={path} has no vector for any token of this vocabulary; "
                        "text.tokenizer=words has words.")
    ids, places = map(list, zip(*found))
    with torch.no_grad():
        matrix[ids] = torch.from_numpy(vectors.matrix[places]).to(matrix)
    matrix.requires_grad_(not frozen)
    share = len(found) / len(tokenizer)
    line = f"{path}: vectors for {len(found):,} of {len(tokenizer):,} tokens ({share:.1%})"
    log("vectors", f"{line}, {'frozen' if frozen else 'learned on from there'}",
        path=str(path), covered=len(found), share=share, frozen=frozen)


def load_vectors(path: Path) -> Vectors:
    """Of a run or of a file."""
    if path.is_dir():
        made = run.load(path)
        return vectors_of(made.model, made.tokenizer)
    if not path.exists():
        raise UserError(f"model.vectors={path}: there is no such file or run.")
    return read_vectors(path)
