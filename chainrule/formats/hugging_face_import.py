"""Import of Hugging Face folders as runs: the table of architectures (hugging_face_export.py), read the other way.

    config.json  model.safetensors, or several by model.safetensors.index.json  tokenizer.json

The settings come from config.json (hugging_face_config.py). They give the names and shapes of all tensors, which are
compared with the headers of the files before memory is taken. Numbers are copied; nothing in a file is executed. The
boundary, id 0, begins a text as their BOS and ends it as their EOS: rows of the embedding and of the output change
places with row 0.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.files import sha256
from chainrule.formats.boundary import Ends, move_boundary, swap_rows
from chainrule.formats.hugging_face import BIAS, DECODER, Weights, bert_name, bert_settings, read_config, to_bert
from chainrule.formats.hugging_face_config import Config, Reader, architecture_name, check_bert, find_reader, number
from chainrule.formats.hugging_face_export import HEAD
from chainrule.model import BOUNDARY
from chainrule.models.encoder import TransformerEncoder
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.transformer import EncoderDecoder
from chainrule.progress import short
from chainrule.recipe import Recipe, make_recipe
from chainrule.run import CHAT_TEMPLATE, TOKENIZER_CONFIG, read_chat_template
from chainrule.tasks import find_task
from chainrule.tasks.denoise import MASK
from chainrule.text.template_sandbox import check_syntax
from chainrule.text.tokenizers.tokenizer import Tokenizer

WEIGHTS, INDEX, TOKENIZER = "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
ENCODERS = ("BertModel", "BertForMaskedLM", "BertForPreTraining")
NO_PARAMETERS = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|^lm_head\.weight$")  # tables, a tied output
CARD_LINE = re.compile(r"^(\w+):[ \t]*(\S*)[ \t]*((?:\n[ \t]*- [^\n]*)*)$", re.MULTILINE)
NOT_READ = re.compile(r"\.pooler\.|position_ids$|^cls\.predictions\.decoder\.|^cls\.seq_relationship\.")    # of BERT


@dataclass(frozen=True)
class ImportedFolder:
    model: GPT | TransformerEncoder | EncoderDecoder
    tokenizer: Tokenizer
    recipe: Recipe
    what: str                    # for people
    source: dict[str, Any]       # where it came from, for recipe.json
    chat_template: str | None = None


def read_folder(folder: Path) -> ImportedFolder:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json; a folder that can be imported is a Hugging Face model.")
    config = read_config(folder)
    if config.get("model_type") in ("t5", "mt5"):
        from chainrule.formats.hugging_face_t5 import read_t5  # it uses this file

        return read_t5(folder, config)
    return read_encoder(folder, config) if config.get("model_type") == "bert" else read_decoder(folder, config)


def read_decoder(folder: Path, config: Config) -> ImportedFolder:
    reader = find_reader(config)
    settings, vocab = reader.settings(config), number(config, "vocab_size")
    files, boundary = TensorFiles(folder, reader.rename), find_boundary(folder, config)
    refuse_more_tokens(boundary.tokenizer, vocab, folder)
    tied = bool(config.get("tie_word_embeddings", reader.tied or HEAD not in files.shapes))
    files.refuse_fewer(settings["layers"])
    settings["tied"] = tied and boundary.begin == boundary.end    # else the boundary's two rows differ
    given = {f"model.{name}": value for name, value in settings.items()}
    recipe = make_recipe("gpt", GPT, {**given, "text.tokenizer": boundary.tokenizer_name})
    absent = check_decoder(files, reader, recipe.model, vocab, config, tied)
    model = GPT(recipe.model, vocab)
    fill(model, files, reader, absent, tied)
    ends = Ends(boundary.begin, boundary.end)
    move_boundary(model, ends)
    return imported(folder, model, name_all_rows(boundary.tokenizer, vocab), recipe, reader.name, files, ends)


def read_encoder(folder: Path, config: Config) -> ImportedFolder:
    """BERT, whose texts stand between [CLS] and [SEP]."""
    config = {name: value for name, value in config.items() if value is not None}
    name = architecture_name(config) or "BertModel"
    if name not in ENCODERS:
        raise UserError(f"config.json has the architecture {name}, which cannot be imported; of BERT these can: "
                        f"{', '.join(ENCODERS)}.")
    check_bert(config)
    vocab, layers = config["vocab_size"], config["num_hidden_layers"]
    files = TensorFiles(folder, bert_name)
    files.refuse_fewer(layers)
    boundary = find_boundary(folder, config, {"[MASK]": MASK})
    refuse_more_tokens(boundary.tokenizer, vocab, folder)
    first, mask = boundary.tokenizer.id("[CLS]"), boundary.tokenizer.id(MASK)
    if first is None or mask is None:
        raise UserError(f"{folder / TOKENIZER} has no token {'[CLS]' if first is None else '[MASK]'}; BERT's has one.")
    settings = bert_settings(config, transform=BIAS in files.shapes)
    given = {"text.tokenizer": boundary.tokenizer_name}
    recipe = make_recipe("encoder", TransformerEncoder, given, task=find_task("mask"))
    with shapes_only():
        wanted = to_bert(TransformerEncoder(settings, vocab))
    check_tensors(files, {one: wanted[one] for one in wanted if one not in DECODER}, name, NOT_READ)
    model, tokenizer = TransformerEncoder(settings, vocab), name_all_rows(boundary.tokenizer, vocab)
    fill_encoder(model, files, boundary, first)
    ends = Ends(first, boundary.end)
    return imported(folder, model, tokenizer, replace(recipe, model=settings), name, files, ends)


def imported(
    folder: Path, model: GPT | TransformerEncoder | EncoderDecoder, tokenizer: Tokenizer, recipe: Recipe, name: str,
    files: "TensorFiles", ends: Ends,
) -> ImportedFolder:  # fmt: skip
    parameters = short(sum(weight.numel() for weight in model.parameters()))
    what = f"{name}, {parameters} parameters, {len(tokenizer):,} tokens"
    source = describe_source(folder, name, files.paths) | ends.as_source()
    return ImportedFolder(model.eval(), tokenizer, recipe, what, source, find_chat_template(folder))


# Tensors


class TensorFiles:
    """The safetensors files of a folder: names and shapes from their headers, tensors one at a time."""

    def __init__(self, folder: Path, rename: Callable[[str], str]):
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, tuple[Path, str]] = {}
        self.paths = _weight_files(folder)
        for path in self.paths:
            with _open(path) as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    self.shapes[rename(name)] = tuple(file.get_slice(name).get_shape())
                    self.places[rename(name)] = path, name

    def read(self, name: str) -> Tensor:
        path, inside = self.places[name]
        with _open(path) as file:
            tensor: Tensor = file.get_tensor(inside)
        if not tensor.is_floating_point():
            raise UserError(f"the tensor {name} is of {tensor.dtype}: quantised models cannot be imported.")
        return tensor.float()

    def refuse_fewer(self, layers: int) -> None:
        """Before a model of so many layers is made."""
        if layers > len(self.shapes):
            raise UserError(f"config.json has {layers} layers, and the files of {self.folder} hold only "
                            f"{len(self.shapes)} tensors.")


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


def check_decoder(
    files: TensorFiles, reader: Reader, settings: GPTSettings, vocab: int, config: Config, tied: bool
) -> set[str]:
    """Compares the files with the settings. Returns the biases that the architecture does not have: they are 0."""
    with shapes_only():
        tensors = reader.architecture.tensors(GPT(settings, vocab))
    held = reader.biases(config)
    absent = {name for name in tensors if name.endswith("_proj.bias") and not re.search(held, name)}
    unread = absent | ({HEAD} if tied else set())
    wanted = {name: tensor for name, tensor in tensors.items() if name not in unread}
    check_tensors(files, wanted, reader.name, NO_PARAMETERS)
    return absent


def check_tensors(files: TensorFiles, wanted: Weights, architecture: str, unread: re.Pattern[str]) -> None:
    """Each tensor is there with its shape, and no others but those that need not be read."""
    for name, tensor in wanted.items():
        shape = tuple(tensor.shape)
        if name not in files.shapes:
            raise UserError(f"the tensor {name} is missing; config.json says that it is there, {_dims(shape)}.")
        if files.shapes[name] != shape:
            raise UserError(f"the tensor {name} is {_dims(files.shapes[name])}, and by config.json it would be "
                            f"{_dims(shape)}.")
    for name in files.shapes:
        if name not in wanted and not unread.search(name):
            raise UserError(f"the files hold a tensor {name}, which is no part of a {architecture} with this "
                            "config.json.")


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
            view.copy_(reader.architecture.exchange(name, files.read(name), model.settings.head_size))
    if tied and model.output is not None:
        model.output.weight.copy_(model.embeddings)


@torch.no_grad()
def fill_encoder(model: TransformerEncoder, files: TensorFiles, boundary: "Boundary", first: int) -> None:
    """The boundary is [SEP]. At position 0 it is [CLS], `first`: the difference is added to that position's vector."""
    for name, view in to_bert(model).items():
        if name not in DECODER:
            view.copy_(files.read(name))
    for table in [model.embeddings] if model.bias is None else [model.embeddings, model.bias]:
        swap_rows(table, BOUNDARY, boundary.begin)
    assert model.embedding.positions is not None, "BERT's positions are learned"
    model.embedding.positions.weight[0] += model.embeddings[first] - model.embeddings[BOUNDARY]


# The tokenizer and its boundary


@dataclass(frozen=True)
class Boundary:
    """The ids in the folder's files that begin and end a text."""

    tokenizer: Tokenizer
    tokenizer_name: str
    begin: int
    end: int


def find_boundary(folder: Path, config: Config, rename: Mapping[str, str] = {}) -> Boundary:
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(f"{folder} has no {TOKENIZER}; other files of tokenizers are not read.")
    ends = first_id(config, "bos_token_id"), first_id(config, "eos_token_id")
    tokenizer, begin, end = Tokenizer.load_pretrained(path, *ends, rename)
    name = str(path.resolve()) if tokenizer.unit == "pretrained" else tokenizer.unit
    return Boundary(tokenizer, name, begin, end)


def first_id(config: Config, name: str) -> int | None:
    value = config.get(name)
    value = value[0] if isinstance(value, list) and value else value
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise UserError(f"config.json has {name}={json.dumps(value)}; the id of a token is expected.")
    return value


def refuse_more_tokens(tokenizer: Tokenizer, vocab: int, folder: Path) -> None:
    if len(tokenizer) > vocab:
        raise UserError(f"{folder / TOKENIZER} has {len(tokenizer):,} tokens, and the embedding only {vocab:,} rows.")


def name_all_rows(tokenizer: Tokenizer, vocab: int) -> Tokenizer:
    """Rows of the embedding that no token has get special tokens, so that every probability is as it was."""
    return tokenizer.with_special([f"<|unused{place}|>" for place in range(vocab - len(tokenizer))])


# Chats


def find_chat_template(folder: Path) -> str | None:
    """That of the folder: a file of its own, or in older folders a part of tokenizer_config.json."""
    template = read_chat_template(folder)
    path = folder / CHAT_TEMPLATE
    if template is None:
        path = folder / TOKENIZER_CONFIG
        template = _template_in(path)
    if template is not None:
        refuse_template(template, path)
    return template


def _template_in(path: Path) -> str | None:
    """Of several by name, the one that is called default."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(found, list):
            found = {one["name"]: one["template"] for one in found}.get("default")
        if found is None or isinstance(found, str):
            return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}. Copy it again, or remove it.") from error
    raise UserError(f"{path} has a chat_template that is not a text.")


def refuse_template(template: str, path: Path) -> None:
    """A template that is not Jinja; it is parsed, not rendered."""
    if find_spec("jinja2") is None:    # it is checked where it is rendered
        return
    try:
        check_syntax(template)
    except UserError as error:
        raise UserError(f"{path}: {error} Correct it, or remove it.") from error


# Where it came from


def describe_source(folder: Path, architecture: str, files: list[Path]) -> dict[str, Any]:
    """For recipe.json."""
    facts = {"format": "huggingface", "folder": folder.resolve().name, "architecture": architecture,
             "sha256": {file.name: sha256(file) for file in files}}
    head = card_head(folder)
    given = {"licence": head.get("license"), "language": head.get("language")}
    return facts | {name: value for name, value in given.items() if value}


def card_head(folder: Path) -> dict[str, Any]:
    """The words, and lists of words, in the YAML head of the model's README."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")[:10_000]
    except OSError:
        return {}
    found = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    head: dict[str, Any] = {}
    for name, word, items in CARD_LINE.findall(found[1] if found else ""):
        head[name] = re.findall(r"- *['\"]?([^\n'\"]+)", items) if items else word.strip("'\"")
    return head
