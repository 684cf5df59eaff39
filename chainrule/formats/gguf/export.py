"""Export of a GPT to a GGUF file, which llama.cpp opens: float32, float16, or Q8_0 (8 bits, a scale for 32 numbers).

The architectures are those of table.py, the tokenizers those of tokenizer.py. Tensors are converted and
written one at a time. Scales, biases, position vectors and routers stay float32, and matrices whose rows Q8_0 cannot
divide become float16, as in llama.cpp's own converter.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from chainrule.errors import UserError
from chainrule.files import write_aside
from chainrule.formats.boundary import ends_of, original_rows
from chainrule.formats.gguf.read import INSTALL
from chainrule.formats.gguf.table import EMBEDDING, HEAD, TABLE, GGUFArchitecture
from chainrule.formats.gguf.tokenizer import tokenizer_fields
from chainrule.formats.hugging_face_export import find_architecture
from chainrule.models.gpt import GPT
from chainrule.progress import bar, short
from chainrule.run import Run

if TYPE_CHECKING:
    from gguf import GGUFWriter

PRECISIONS = {"f32": 0, "f16": 1, "q8_0": 7}    # and their numbers in general.file_type
BLOCK = 32                                      # numbers of Q8_0 with one scale
FLOAT32 = re.compile(r"_norm\.|\.bias$|position_embd|ffn_gate_inp|rope_freqs|layer_output_scale")


def write_gguf(run: Run, out: Path, precision: str = "f32") -> str:
    """Writes the file, complete or not at all. Returns what it is, in a line."""
    try:
        from gguf import GGUFWriter
    except ModuleNotFoundError:
        raise UserError(INSTALL) from None
    model = run.model
    if not isinstance(model, GPT) or not run.task.generates:
        raise UserError(f"{run.path} ({run.recipe.kind}, --task {run.recipe.task}) cannot go: a GGUF file "
                        "can be made of a gpt that is a language model.")
    architecture = find_architecture(model.settings, TABLE, "llama.cpp")
    assert isinstance(architecture, GGUFArchitecture)
    ends = ends_of(run)
    fields = describe(run, architecture, precision) | tokenizer_fields(run.tokenizer, ends, run.path)
    fields["tokenizer.ggml.add_bos_token"] = adds_bos(run)
    with original_rows(model, ends) as tied, write_aside(out) as aside:
        writer = GGUFWriter(aside, architecture.name)
        for name, value in fields.items():
            _put(writer, name, value)
        _write_tensors(writer, tensors_of(model, architecture, tied), architecture, model.settings.head_size, precision)
        writer.close()
    parameters = sum(weight.numel() for weight in model.parameters())
    return f"{architecture.name} in {precision}, {short(parameters)} parameters"


def describe(run: Run, architecture: GGUFArchitecture, precision: str) -> dict[str, Any]:
    """All keys but those of the tokenizer."""
    source = run.about.get("source", {})
    fields: dict[str, Any] = {
        "general.name": source.get("name", run.path.resolve().name),
        "general.file_type": PRECISIONS[precision],
        "general.quantization_version": 2,
        f"{architecture.name}.vocab_size": len(run.tokenizer),
    }
    fields |= {f"{architecture.name}.{name}": value for name, value in architecture.config(run.model.settings).items()}
    fields |= {"general.license": source["licence"]} if "licence" in source else {}
    return fields | ({} if run.chat_template is None else {"tokenizer.chat_template": run.chat_template})


def adds_bos(run: Run) -> bool:
    """Every text of a trained run begins with the boundary; an imported one is read as its first file says."""
    return run.recipe.base is not None or bool(run.about.get("source", {}).get("adds_bos", True))


def tensors_of(model: GPT, architecture: GGUFArchitecture, tied: bool) -> dict[str, Tensor]:
    """By their names in the file; without an output matrix the embedding is used, except by talkie."""
    tensors = architecture.tensors(model)
    if architecture.name == "talkie":
        tensors = {HEAD: tensors[EMBEDDING]} | tensors
    elif tied:
        tensors.pop(HEAD, None)
    return tensors | architecture.constants(model.settings)


def _put(writer: "GGUFWriter", name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def _write_tensors(
    writer: "GGUFWriter", tensors: dict[str, Tensor], architecture: GGUFArchitecture, head_size: int, precision: str
) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quantize

    kinds = {name: GGMLQuantizationType[_kind(name, tensor, precision)] for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        block, size = GGML_QUANT_SIZES[kinds[name]]
        numbers = np.dtype(np.float32)
        writer.add_tensor_info(name, tensor.shape, numbers, tensor.numel() // block * size, raw_dtype=kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    with bar("writing GGUF", len(tensors), "tensors") as advance:
        for name, tensor in tensors.items():
            plain = architecture.exchange(name, tensor.detach().float().cpu(), head_size).contiguous().numpy()
            writer.write_tensor_data(np.ascontiguousarray(quantize(plain, kinds[name])))
            advance(1)


def _kind(name: str, tensor: Tensor, precision: str) -> str:
    if precision == "f32" or tensor.dim() < 2 or FLOAT32.search(name):
        return "F32"
    return "Q8_0" if precision == "q8_0" and tensor.shape[-1] % BLOCK == 0 else "F16"
