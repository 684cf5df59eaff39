"""Export of a run to a Hugging Face folder, which `transformers`, vLLM and others open without code of their own.

    config.json  model.safetensors  tokenizer.json  tokenizer_config.json  README.md
    generation_config.json  chat_template.jinja      of language models

A language model is one of the table in hugging_face_export.py; encoders, classifiers and taggers are in
hugging_face_heads.py. README.md is the model card (model_card.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.files import write_folder_aside
from chainrule.formats.boundary import NOT_MOVED, Ends, ends_of, original_rows, swap_rows
from chainrule.formats.hugging_face import DECODER, Weights
from chainrule.formats.hugging_face_export import HEAD, VERSION, Architecture, find_architecture
from chainrule.formats.hugging_face_heads import HEADS, HeadArchitecture, find_head_architecture
from chainrule.formats.hugging_face_tokenizer import write_json, write_tokenizer
from chainrule.formats.model_card import Facts, write_card
from chainrule.model import BOUNDARY
from chainrule.models.encoder import TransformerEncoder
from chainrule.models.gpt import GPT
from chainrule.progress import short
from chainrule.run import CHAT_TEMPLATE, Run, write_tensors
from chainrule.tasks.denoise import MASK

WHAT = "a gpt that continues texts (lm, chat), classifies or tags, or an encoder for mask, classify or tag"


@torch.no_grad()
def write_folder(run: Run, out: Path, overwrite: bool = False) -> str:
    """Writes the folder, complete or not at all. Returns what it is, in a line."""
    kind, task, model = run.recipe.kind, run.recipe.task, run.model
    body = getattr(model, "body", model)
    base = {GPT: "gpt", TransformerEncoder: "encoder"}.get(type(body))
    lm = base == "gpt" and run.task.generates
    if not lm and not any((one.kind, one.task) == (base, task) for one in HEADS):
        raise UserError(f"{run.path} is a {kind} for {task}; a Hugging Face folder can be made of {WHAT}.")
    if getattr(body.settings, "features", None) is not None:
        raise UserError(f"{run.path} reads vectors; a Hugging Face folder can be made of a model that reads text.")
    architecture = find_architecture(model.settings) if lm else find_head_architecture(str(base), task, model)
    refuse_foreign(out, overwrite)
    parameters = sum(weight.numel() for weight in model.parameters())
    with write_folder_aside(out) as aside:
        if isinstance(architecture, HeadArchitecture):
            _write_heads(run, body, architecture, aside)
        else:
            _write(run, architecture, aside)
        write_card(run, Facts(architecture.name, parameters), aside, out.name)
    return f"{architecture.name}, {short(parameters)} parameters"


def refuse_foreign(out: Path, overwrite: bool) -> None:
    """A folder is only replaced if it is asked for, and if it holds a Hugging Face model."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file, and a Hugging Face model is a folder. Choose another name.")
    if any(out.iterdir()) and not (out / "config.json").is_file():
        raise UserError(f"{out} is a folder with other files. Choose another name.")
    if any(out.iterdir()) and not overwrite:
        raise UserError(f"{out} exists already. Choose another name, or replace it with --overwrite.")


def _write(run: Run, architecture: Architecture, folder: Path) -> None:
    """A language model. BOS and EOS of an imported one are in their own rows again, and its output is tied again."""
    model, ends = run.model, ends_of(run)
    size = model.settings.head_size
    with original_rows(model, ends) as tied:
        weights = {name: architecture.exchange(name, tensor, size)
                   for name, tensor in architecture.tensors(model).items() if not (tied and name == HEAD)}
        _write_weights(weights, folder)
    template = run.template
    write_config(model, architecture, folder, ends, tied, None if template is None else template.end_of_turn)
    write_tokenizer(run.tokenizer, model.settings.context, folder, ends=ends)
    if run.chat_template is not None:
        (folder / CHAT_TEMPLATE).write_bytes(run.chat_template.encode())


def write_config(
    model: GPT, architecture: Architecture, folder: Path, ends: Ends = NOT_MOVED, tied: bool | None = None,
    end_of_turn: int | None = None,
) -> None:
    """config.json and generation_config.json of a language model; `end_of_turn`: a token that also ends an answer."""
    special = {"bos_token_id": ends.begin, "eos_token_id": ends.end}
    common = _common(model, architecture) | special | {"pad_token_id": None}
    common["tie_word_embeddings"] = model.output is None if tied is None else tied
    generation = special | {"pad_token_id": ends.end, "do_sample": True, "transformers_version": VERSION}
    write_json(folder / "config.json", common | architecture.config(model.settings))
    generation |= {} if end_of_turn is None else {"eos_token_id": [ends.end, end_of_turn]}
    write_json(folder / "generation_config.json", generation)


def _common(body: Any, architecture: Architecture) -> dict[str, Any]:
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "dtype": "float32",
        "vocab_size": len(body.embeddings),
        "initializer_range": body.settings.init or 0.02,
        "transformers_version": VERSION,
    }


def _write_heads(run: Run, body: Any, one: HeadArchitecture, folder: Path) -> None:
    """An encoder, or a model with a head for classes or tags."""
    task, tokenizer = run.recipe.task, run.tokenizer
    ends = ends_of(run) if one.model_type == "bert" and task == "mask" else NOT_MOVED
    with bert_rows(body, ends):
        weights = one.tensors(body) | one.head(run.model)
        tied = task == "mask" and body.output is None and one.model_type != "eurobert"
        _write_weights({name: tensor for name, tensor in weights.items() if not (tied and name in OUTPUTS)}, folder)
    config = _common(body, one) | one.config(body.settings)
    config |= {"bos_token_id": ends.begin, "eos_token_id": ends.end, "tie_word_embeddings": tied}
    config |= {"pad_token_id": ends.end}
    config |= {"mask_token_id": tokenizer.id(MASK) or BOUNDARY} if one.model_type == "eurobert" else {}
    if task != "mask":
        config |= {"id2label": {str(id): name for id, name in enumerate(run.labels)},
                   "label2id": {name: id for id, name in enumerate(run.labels)}}
        config |= {"classifier_pooling": one.pools[run.model.pool]} if one.pools else {}
    config |= {"is_causal": False} if one.kind == "encoder" and one.model_type == "qwen3" else {}
    write_json(folder / "config.json", config)
    names = {MASK: "[MASK]"} if ends != NOT_MOVED else {}
    write_tokenizer(tokenizer, body.settings.context, folder, task, ends, names)


OUTPUTS = (HEAD, *DECODER, "unembedding_projection.weight")    # the embedding and a bias again, where tied


def _write_weights(weights: Weights, folder: Path) -> None:
    write_tensors({name: tensor.to(torch.float32) for name, tensor in weights.items()}, folder / "model.safetensors",
                  {"format": "pt"})


@contextmanager
def bert_rows(body: Any, ends: Ends) -> Iterator[None]:
    """Within the block [CLS] and [SEP] of an imported BERT have rows of their own again, not both that of id 0."""
    if ends == NOT_MOVED:
        yield
        return
    first, tables = body.embedding.positions.weight, [body.embeddings, body.output and body.output.weight, body.bias]
    before = first[0].clone()
    first[0] += body.embeddings[BOUNDARY] - body.embeddings[ends.begin]
    for table in tables:
        if table is not None:
            swap_rows(table, BOUNDARY, ends.end)
    try:
        yield
    finally:
        for table in tables:
            if table is not None:
                swap_rows(table, BOUNDARY, ends.end)
        first[0] = before
