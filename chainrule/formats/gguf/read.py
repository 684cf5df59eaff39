"""Import of GGUF files (llama.cpp) as runs: the table of table.py read the other way, tensors dequantised.

Settings come from the keys of the file; they give the names and shapes of all tensors, which are compared with the
file before memory is taken. Each tensor is dequantised to float32 and copied by itself. The tokenizer and the chat
template are those in the file (tokenizer.py). Nothing in the file is executed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.files import sha256
from chainrule.formats.boundary import move_boundary
from chainrule.formats.gguf.table import EMBEDDING, HEAD, ROPE_FACTORS, TABLE, GGUFArchitecture, find_llama3
from chainrule.formats.gguf.tokenizer import read_tokenizer
from chainrule.formats.hugging_face_import import ImportedFolder, name_all_rows, refuse_template
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.progress import short
from chainrule.recipe import make_recipe

if TYPE_CHECKING:
    from gguf import GGUFReader

MAGIC = b"GGUF"
MOST_ITEMS = 1 << 22    # items of an array, such as the tokens; gguf makes an object of each
INSTALL = "GGUF files need the package gguf: pip install 'chainrule[exchange]'."


def looks_like_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC or path.suffix == ".gguf"


@dataclass(frozen=True)
class GGUFFile:
    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, Any]           # name -> gguf's ReaderTensor

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(reversed(tensor.shape.tolist())) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        """In float32."""
        from gguf import dequantize

        one = self.tensors[name]
        try:
            return torch.from_numpy(np.array(dequantize(one.data, one.tensor_type), np.float32))
        except NotImplementedError:
            kind = one.tensor_type.name
            raise UserError(f"{self.path}: the tensor {name} has the quantisation {kind}, which cannot be read; "
                            "F32, F16, BF16, Q4_0 to Q8_0, K and IQ quantisations can.") from None

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            raise UserError(f"{self.path} has {name}={value!r:.40}; a text is expected.")
        return value


def open_gguf(path: Path) -> GGUFFile:
    """The keys and the places of the tensors; a file that is cut short or damaged is refused."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise UserError(INSTALL) from None
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{path} is not a GGUF file: it does not begin with the letters GGUF.")
    try:
        reader = _bounded(GGUFReader)(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except EOFError:
        raise UserError(f"{path} is cut short: it has {path.stat().st_size:,} bytes, and its header says more. "
                        "Copy it again.") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError) as error:
        if unknown := re.search(r"(\d+)\)? is not a valid GGMLQuantizationType", str(error)):
            raise UserError(f"{path} has tensors of the quantisation {unknown[1]}, which is not known.") from None
        raise UserError(f"{path} is not a GGUF file that can be read: {' '.join(str(error).split())[:200]}") from error
    return GGUFFile(path, fields, {tensor.name: tensor for tensor in reader.tensors})


def _bounded(reader: "type[GGUFReader]") -> "type[GGUFReader]":
    """gguf's reader, which by itself goes on after the end of a file, for as long as its numbers say."""

    class Bounded(reader):  # type: ignore[misc, valid-type]
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise EOFError
            return super()._get(int(offset), dtype, count, override_order)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if int(raw_type) == 9 and int(self._get(orig_offs + 4, np.uint64)[0]) > MOST_ITEMS:    # an array
                raise ValueError(f"it has an array of more than {MOST_ITEMS:,} items")
            return super()._get_field_parts(orig_offs, raw_type)

    return Bounded


def read_gguf(path: Path) -> ImportedFolder:
    file = open_gguf(path)
    architecture, shapes = find_architecture(file), file.shapes
    given = architecture.settings(file.fields, shapes)
    if given["layers"] > len(shapes):
        raise UserError(f"{path} has {architecture.name}.block_count={given['layers']}, and only {len(shapes)} "
                        "tensors.")
    if ROPE_FACTORS in shapes:
        given |= find_llama3(file.read(ROPE_FACTORS), given)
    vocab = _rows(file)
    tokenizer, ends = read_tokenizer(file.fields, path)
    if len(tokenizer) > vocab:
        raise UserError(f"{path} has {len(tokenizer):,} tokens, and the embedding only {vocab:,} rows.")
    tied = is_tied(file)
    given["tied"] = tied and ends.begin == ends.end    # else the boundary's two rows differ
    name = str(path.resolve()) if tokenizer.unit == "pretrained" else tokenizer.unit
    settings = {f"model.{name}": value for name, value in given.items()}
    recipe = make_recipe("gpt", GPT, {**settings, "text.tokenizer": name})
    check_tensors(file, architecture, recipe.model, vocab, tied)
    template = file.text("tokenizer.chat_template")
    if template is not None:
        refuse_template(template, path)
    model = GPT(recipe.model, vocab)
    fill(model, file, architecture, tied)
    move_boundary(model, ends)
    parameters, kind = short(sum(weight.numel() for weight in model.parameters())), quantisation(file)
    what = f"{architecture.name} of {kind}, {parameters} parameters, {len(tokenizer):,} tokens"
    named = name_all_rows(tokenizer, vocab)
    source = describe_source(file, architecture) | ends.as_source()
    return ImportedFolder(model.eval(), named, recipe, what, source, template)


def find_architecture(file: GGUFFile) -> GGUFArchitecture:
    name = file.text("general.architecture")
    for one in TABLE:
        if one.name == name:
            return one
    known = ", ".join(dict.fromkeys(one.name for one in TABLE))
    raise UserError(f"{file.path} has the architecture {name}, which cannot be imported; these can: {known}.")


def _rows(file: GGUFFile) -> int:
    """Of the embedding."""
    shape = file.shapes.get(EMBEDDING)
    if shape is None or len(shape) != 2:
        raise UserError(f"{file.path}: the tensor {EMBEDDING} is missing, or no matrix.")
    return shape[0]


def is_tied(file: GGUFFile) -> bool:
    """Without an output matrix, or where it is the embedding again."""
    if HEAD not in file.tensors:
        return True
    one, other = file.tensors[HEAD], file.tensors[EMBEDDING]
    return one.tensor_type == other.tensor_type and np.array_equal(one.data, other.data)


def check_tensors(
    file: GGUFFile, architecture: GGUFArchitecture, settings: GPTSettings, vocab: int, tied: bool
) -> None:
    """Each tensor is there with its shape, and no others; constants have their only values."""
    shapes = file.shapes
    with shapes_only():
        wanted = {name: tuple(view.shape) for name, view in architecture.tensors(GPT(settings, vocab)).items()}
    if tied:
        wanted |= {HEAD: wanted[EMBEDDING]}
    constants = architecture.constants(settings)
    wanted |= {name: tuple(tensor.shape) for name, tensor in constants.items()}
    for name, shape in wanted.items():
        if name in shapes and shapes[name] != shape:
            raise UserError(f"{file.path}: the tensor {name} is {_dims(shapes[name])}, and by the keys of the file it "
                            f"would be {_dims(shape)}.")
        if name not in shapes and not _may_be_absent(name, architecture, tied):
            raise UserError(f"{file.path}: the tensor {name} is missing; by the keys of the file it is {_dims(shape)}.")
    for name in shapes:
        if name not in wanted:
            raise UserError(f"{file.path}: the tensor {name} is no part of the architecture {architecture.name} with "
                            "these keys.")
    for name, tensor in constants.items():
        if not torch.allclose(file.read(name), tensor, rtol=1e-4):
            raise UserError(f"{file.path}: the tensor {name} is not {float(tensor.flatten()[0]):g} everywhere, and "
                            "another value cannot be imported.")


def _may_be_absent(name: str, architecture: GGUFArchitecture, tied: bool) -> bool:
    return (name == HEAD and tied) or (name.endswith(".bias") and architecture.name == "llama")


def _dims(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "one number"


@torch.no_grad()
def fill(model: GPT, file: GGUFFile, architecture: GGUFArchitecture, tied: bool) -> None:
    """Copies the tensors one by one into the model's parameters; biases that the file does not have are 0."""
    for name, view in architecture.tensors(model).items():
        if name in file.tensors and not (tied and name == HEAD):
            view.copy_(architecture.exchange_back(name, file.read(name), model.settings.head_size))
        elif name.endswith(".bias"):
            view.zero_()
    if tied and model.output is not None:
        model.output.weight.copy_(model.embeddings)


def quantisation(file: GGUFFile) -> str:
    """Of the most numbers in the file."""
    counts: dict[str, int] = {}
    for tensor in file.tensors.values():
        counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + int(tensor.n_elements)
    return max(counts, key=counts.__getitem__)


def describe_source(file: GGUFFile, architecture: GGUFArchitecture) -> dict[str, Any]:
    """For recipe.json."""
    facts: dict[str, Any] = {"format": "gguf", "file": file.path.resolve().name, "architecture": architecture.name,
                             "quantisation": quantisation(file), "sha256": {file.path.name: sha256(file.path)}}
    for name, key in (("name", "general.name"), ("licence", "general.license")):
        if value := file.text(key):
            facts[name] = value
    if "tokenizer.ggml.add_bos_token" in file.fields:
        facts["adds_bos"] = bool(file.fields["tokenizer.ggml.add_bos_token"])
    return facts
