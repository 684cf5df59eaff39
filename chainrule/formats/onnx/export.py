"""Export of a run to a folder with an ONNX file and its tokenizer, for onnxruntime in any language and in the browser.

    onnx/model.onnx  tokenizer.json  tokenizer_config.json  (config.json  generation_config.json  chat_template.jinja)

The file is one step with its state in and out (recurrent.py, transformer.py); rows and tokens have no fixed number.
Its metadata say what it is: kind, vocab, boundary, context, and the sha256 of the run's tokenizer. A gpt with the
settings of an architecture of transformers has its config.json, and transformers.js opens the folder.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.files import sha256, write_folder_aside
from chainrule.formats.hugging_face_export import Architecture, find_architecture
from chainrule.formats.hugging_face_folder import write_config
from chainrule.formats.hugging_face_tokenizer import write_tokenizer
from chainrule.formats.onnx.graph import Graph, write_model
from chainrule.formats.onnx.recurrent import feed_forward_graph, hmm_graph, recurrent_graph
from chainrule.formats.onnx.transformer import gpt_graph
from chainrule.model import BOUNDARY
from chainrule.models.feedforward import FeedForward
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.hmm.hmm import HMM
from chainrule.models.rnn import RecurrentModel
from chainrule.progress import short
from chainrule.run import CHAT_TEMPLATE, TOKENIZER, Run

FILE = "onnx/model.onnx"
GRAPHS: dict[type, Callable[[Any], Graph]] = {
    RecurrentModel: recurrent_graph, FeedForward: feed_forward_graph, HMM: hmm_graph, GPT: gpt_graph,
}
KINDS = "rnn, gru, lstm, feedforward, hmm and gpt"


def write_onnx(run: Run, out: Path, overwrite: bool = False) -> str:
    """Writes the folder, complete or not at all. Returns what it is, in a line."""
    graph = graph_of(run)
    refuse_other(out, overwrite)
    with write_folder_aside(out) as aside:
        (aside / FILE).parent.mkdir()
        write_model(graph.model(metadata(run)), aside / FILE)
        write_tokenizer(run.tokenizer, run.model.context, aside)
        if isinstance(run.model, GPT) and (architecture := fitting_architecture(run.model.settings)):
            write_config(run.model, architecture, aside)
        if run.chat_template is not None:
            (aside / CHAT_TEMPLATE).write_bytes(run.chat_template.encode())
    parameters = sum(tensor.numel() for tensor in run.model.state_dict().values())
    return f"ONNX, {run.recipe.kind}, {short(parameters)} parameters"


def fitting_architecture(settings: GPTSettings) -> Architecture | None:
    """The class of transformers that computes the same, by which transformers.js knows what to feed to the file."""
    try:
        return find_architecture(settings)
    except UserError:
        return None


@torch.no_grad()
def graph_of(run: Run) -> Graph:
    make = next((make for kind, make in GRAPHS.items() if isinstance(run.model, kind)), None)
    if run.recipe.kind == "ngram":
        raise UserError(f"{run.path} is an ngram, which looks its predictions up in a table; ONNX has no operator for "
                        "that. Export it with --to arpa.")
    if make is None or not run.task.generates:
        raise UserError(f"{run.path} is a {run.recipe.kind} for {run.recipe.task}; an ONNX file can be made of "
                        f"{KINDS} that are language models.")
    return make(run.model)


def metadata(run: Run) -> dict[str, str]:
    facts = {"kind": run.recipe.kind, "vocab": len(run.tokenizer), "boundary": BOUNDARY, "context": run.model.context,
             "tokenizer_sha256": sha256(run.path / TOKENIZER)}
    return {name: str(fact) for name, fact in facts.items() if fact is not None}


def refuse_other(out: Path, overwrite: bool) -> None:
    """A folder is only replaced if it is asked for, and if it holds an ONNX file of ours."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file, and --to onnx writes a folder. Choose another name.")
    if any(out.iterdir()) and not (out / FILE).is_file():
        raise UserError(f"{out} is a folder with other files. Choose another name.")
    if any(out.iterdir()) and not overwrite:
        raise UserError(f"{out} exists already. Choose another name, or replace it with --overwrite.")
