"""Import of Hugging Face folders as runs: the table of architectures (hugging_face_export.py), read the other way.

    config.json  model.safetensors, or several by model.safetensors.index.json  tokenizer.json

The settings come from config.json (hugging_face_config.py). They give the names and shapes of all tensors, which are
compared with the headers of the files before memory is taken. Numbers are copied; nothing in a file is executed. The
boundary, id 0, begins a text as their BOS and ends it as their EOS: rows of the embedding and of the output change
places with row 0.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chainrule.errors import UserError
from chainrule.files import sha256
from chainrule.formats.hugging_face import read_config
from chainrule.formats.hugging_face_config import Config, Reader, find_reader, number
from chainrule.formats.hugging_face_export import HEAD
from chainrule.model import BOUNDARY
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.progress import short
from chainrule.recipe import Recipe, make_recipe
from chainrule.text.tokenizers.tokenizer import Tokenizer

WEIGHTS, INDEX, TOKENIZER = "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
NO_PARAMETERS = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$")    # tables and masks in older files


@dataclass(frozen=True)
class ImportedFolder:
    model: GPT
    tokenizer: Tokenizer
    recipe: Recipe
    what: str                    # for people
    source: dict[str, Any]       # where it came from, for recipe.json


def read_folder(folder: Path) -> ImportedFolder:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json; a folder that can be imported is a Hugging Face model.")
    config = read_config(folder)
    reader = find_reader(config)
    settings, vocab = reader.settings(config), number(config, "vocab_size")
    files, boundary = TensorFiles(folder, reader.prefix), find_boundary(folder, config)
    tokenizer = fit_tokenizer(boundary.tokenizer, vocab, folder)
    tied = bool(config.get("tie_word_embeddings", reader.tied or HEAD not in files.shapes))
    if settings["layers"] > len(files.shapes):
        raise UserError(f"config.json has {settings['layers']} layers, and the files of {folder} hold only "
                        f"{len(files.shapes)} tensors.")
    settings["tied"] = tied and boundary.begin == boundary.end    # else the boundary's two rows differ
    given = {f"model.{name}": value for name, value in settings.items()}
    recipe = make_recipe("gpt", GPT, {**given, "text.tokenizer": boundary.tokenizer_name})
    absent = check_tensors(files, reader, recipe.model, vocab, config, tied)
    model = GPT(recipe.model, vocab)
    fill(model, files, reader, absent, tied)
    move_boundary(model, boundary)
    parameters = short(sum(weight.numel() for weight in model.parameters()))
    what = f"{reader.name}, {parameters} parameters, {vocab:,} tokens"
    return ImportedFolder(model.eval(), tokenizer, recipe, what, describe_source(folder, reader.name, files.paths))


# Tensors


class TensorFiles:
    """The safetensors files of a folder: names and shapes from their headers, tensors one at a time."""

    def __init__(self, folder: Path, prefix: str = ""):
        self.prefix = prefix                           # added to names that lack it, in files of the body alone
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, tuple[Path, str]] = {}
        self.paths = _weight_files(folder)
        for path in self.paths:
            with _open(path) as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    named = name if name.startswith((prefix, "lm_head.")) else prefix + name
                    self.shapes[named] = tuple(file.get_slice(name).get_shape())
                    self.places[named] = path, name

    def read(self, name: str) -> Tensor:
        path, inside = self.places[name]
        with _open(path) as file:
            tensor: Tensor = file.get_tensor(inside)
            return tensor


def _open(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {INDEX} names it. Copy all files of the model.") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a safetensors file that can be read: {error}. Copy it again.") from error


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise UserError(f"{folder} has neither {WEIGHTS} nor {INDEX}; other files of weights are not read.")
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        wrong = [name for name in names if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / INDEX} has no weight_map of tensors to files.") from error
    if wrong:
        raise UserError(f"{folder / INDEX} names the file {wrong[0]}, which is not in the folder itself.")
    return [folder / name for name in sorted(names)]


def check_tensors(
    files: TensorFiles, reader: Reader, settings: GPTSettings, vocab: int, config: Config, tied: bool
) -> set[str]:
    """Compares the files with the settings. Returns the biases that the architecture does not have: they are 0."""
    with torch.device("meta"):
        tensors = reader.architecture.tensors(GPT(settings, vocab))
    wanted = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if tied:
        wanted.pop(HEAD, None)
    held = reader.biases(config)
    absent = {name for name in wanted if name.endswith("_proj.bias") and not re.search(held, name)}
    for name, shape in wanted.items():
        if name in absent:
            continue
        if name not in files.shapes:
            raise UserError(f"the tensor {name} is missing; config.json says that it is there, {_dims(shape)}.")
        if files.shapes[name] != shape:
            raise UserError(f"the tensor {name} is {_dims(files.shapes[name])}, and by config.json it would be "
                            f"{_dims(shape)}.")
    unused = [name for name in files.shapes if name not in wanted or name in absent]
    for name in unused:
        if not (NO_PARAMETERS.search(name) or name == HEAD):
            raise UserError(f"the files hold a tensor {name}, which is no part of a {reader.name} with this "
                            "config.json.")
    return absent


def _dims(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "one number"


@torch.no_grad()
def fill(model: GPT, files: TensorFiles, reader: Reader, absent: set[str], tied: bool) -> None:
    """Copies the tensors into the model's parameters, in whatever precision they are stored."""
    tensors = reader.architecture.tensors(model)
    for name, view in tensors.items():
        if name in absent:
            view.zero_()
        elif not (tied and name == HEAD):
            tensor = files.read(name)
            if not tensor.is_floating_point():
                raise UserError(f"the tensor {name} is of {tensor.dtype}: quantised models cannot be imported.")
            view.copy_(reader.architecture.exchange(name, tensor.float(), model.settings.head_size))
    if tied and model.output is not None:
        model.output.weight.copy_(model.embeddings)


# The tokenizer and its boundary


@dataclass(frozen=True)
class Boundary:
    """The ids in the folder's files that begin and end a text."""

    tokenizer: Tokenizer
    tokenizer_name: str
    begin: int
    end: int


def find_boundary(folder: Path, config: Config) -> Boundary:
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(f"{folder} has no {TOKENIZER}; other files of tokenizers are not read.")
    given = (_first(config, name) for name in ("bos_token_id", "eos_token_id"))
    tokenizer, begin, end = Tokenizer.load_pretrained(path, *given)
    name = str(path.resolve()) if tokenizer.unit == "pretrained" else tokenizer.unit
    return Boundary(tokenizer, name, begin, end)


def _first(config: Config, name: str) -> int | None:
    value = config.get(name)
    value = value[0] if isinstance(value, list) and value else value
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise UserError(f"config.json has {name}={json.dumps(value)}; the id of a token is expected.")
    return value


def fit_tokenizer(tokenizer: Tokenizer, vocab: int, folder: Path) -> Tokenizer:
    """Rows of the embedding that no token has get special tokens, so that every probability is as it was."""
    if len(tokenizer) > vocab:
        raise UserError(f"{folder / TOKENIZER} has {len(tokenizer):,} tokens, and the embedding only {vocab:,} rows.")
    return tokenizer.with_special([f"<|unused{place}|>" for place in range(vocab - len(tokenizer))])


@torch.no_grad()
def move_boundary(model: GPT, boundary: Boundary) -> None:
    """Row 0 of the embedding becomes that of their BOS, and row 0 of the output that of their EOS."""
    begin, end = boundary.begin, boundary.end
    for matrix in [model.embeddings] if model.output is None else [model.embeddings, model.output.weight]:
        swap_rows(matrix, BOUNDARY, begin)
    if begin != end and model.output is not None:
        swap_rows(model.output.weight, BOUNDARY, begin if end == BOUNDARY else end)


def swap_rows(matrix: Tensor, one: int, other: int) -> None:
    matrix[[one, other]] = matrix[[other, one]]


# Where it came from


def describe_source(folder: Path, architecture: str, files: list[Path]) -> dict[str, Any]:
    """For recipe.json."""
    facts = {"format": "huggingface", "folder": folder.resolve().name, "architecture": architecture,
             "sha256": {file.name: sha256(file) for file in files}}
    found = _licence(folder)
    return facts | ({"licence": found} if found else {})


def _licence(folder: Path) -> str | None:
    """As the head of the model's README says it."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")[:10_000]
    except OSError:
        return None
    found = re.search(r"\A---\n(?:.*\n)*?license:[ \t]*(\S+)", text)
    return found[1] if found else None
