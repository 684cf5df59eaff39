"""Saving a run: all files are written and synced under temporary names first, and recipe.json is renamed last.

So a run is complete, or it is no run. What a killed process had written completely is finished by the next one.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from chainrule import __version__
from chainrule.files import ASIDE, SEAL, seal_of, sha256, sync, umask, write_aside, write_text
from chainrule.recipe import Recipe
from chainrule.run.layout import (
    ADAPTER,
    CHAT_TEMPLATE,
    FORMAT,
    LOG,
    MODEL,
    RECIPE,
    SAVED,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VERIFIED,
    Done,
)
from chainrule.text.tokenizers.tokenizer import Tokenizer


def save(
    path: str | Path,
    model: torch.nn.Module,
    tokenizer: Tokenizer,
    recipe: Recipe,
    *,
    splits: Mapping[str, Mapping[str, Any]] = {},
    done: Done | None = None,
    log: Iterable[Mapping[str, Any]] = (),
    weights: Mapping[str, torch.Tensor] | None = None,
    labels: Sequence[str] = (),
    adapter: bool = False,
    excerpt: str = "",
    source: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
) -> None:
    """Writes a run. An earlier run at `path` stays intact unless all of the new one could be written.

    `weights`: the state to save, where it is not the model's `state_dict`; `labels`: names of classes, tags or hidden
    states; `adapter`: the weights are an update of those of the recipe's base; `excerpt`: a text that pages open with;
    `source`: the files of another program that it was made of; `chat_template`: how the messages of a chat are read.
    """
    path, done = Path(path), done or Done(finished=True)
    mine, other = (ADAPTER, MODEL) if adapter else (MODEL, ADAPTER)
    texts = {TOKENIZER_CONFIG: json.dumps(tokenizer.config(getattr(recipe.model, "context", None)), indent=1) + "\n"}
    texts |= {CHAT_TEMPLATE: chat_template} if chat_template is not None else {}
    with ExitStack() as stack:
        names = (RECIPE, LOG, TOKENIZER, *texts, mine)
        aside = {name: stack.enter_context(write_aside(path / name)) for name in names}
        write_tensors(model.state_dict() if weights is None else weights, aside[mine])
        tokenizer.save(aside[TOKENIZER])
        for name, text in texts.items():
            aside[name].write_bytes(text.encode())    # line ends unchanged
        aside[LOG].write_text(_log_text(log), encoding="utf-8")
        about = {"chainrule": __version__, "format": FORMAT, **recipe.as_dict(), "splits": splits, "done": asdict(done)}
        about |= {"labels": list(labels)} if labels else {}
        about |= {"excerpt": excerpt} if excerpt else {}
        about |= {"source": dict(source)} if source else {}
        about["files"] = {name: _facts(aside[name]) for name in aside if name in VERIFIED}
        about[SEAL] = seal_of(about)
        aside[RECIPE].write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for file in aside.values():
            sync(file)  # a full disk shows itself here at the latest, before any file has been replaced
        for name in {other, CHAT_TEMPLATE} - aside.keys():
            (path / name).unlink(missing_ok=True)


def finish_saving(path: Path) -> None:
    """Renames the files of a run whose process was killed while it renamed them, in a folder that is locked.

    Only then is there a temporary recipe.json that is complete: it is written last, and takes its place last.
    """
    for recipe in path.glob(f".{RECIPE}.*{ASIDE}"):
        try:
            about = json.loads(recipe.read_text(encoding="utf-8"))
            if about[SEAL] != seal_of(about):
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue
        aside = {name: file for name in SAVED for file in path.glob(f".{name}.*{ASIDE}")}
        places = {name: aside.get(name, path / name) for name in about["files"]}
        if any(not place.is_file() or _facts(place) != about["files"][name] for name, place in places.items()):
            continue
        for name in {MODEL, ADAPTER, CHAT_TEMPLATE} - about["files"].keys():
            (path / name).unlink(missing_ok=True)
        for name, file in (*aside.items(), (RECIPE, recipe)):
            file.chmod(0o666 & ~umask())
            file.replace(path / name)
        sync(path)


def _facts(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path, facts: Mapping[str, str] | None = None) -> None:
    """Writes safetensors, with facts in the header. A tensor that has two names is written twice."""
    plain, places = {}, set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        plain[name] = here.clone() if here.data_ptr() in places else here
        places.add(here.data_ptr())
    try:
        save_file(plain, path, dict(facts) if facts else None)
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):  # a full disk, as an OSError like any other
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise


def write_log(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the log of a run, and leaves its other files as they are."""
    write_text(path / LOG, _log_text(records))


def _log_text(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


def read_log(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (path / LOG).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):  # the log is for people and plots: the model works without it
        return []
