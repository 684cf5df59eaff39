"""recipe.json: what a run is, read and verified.

It holds the recipe, the splits of the text, how far training has come, the sha256 of the other files, and a seal: the
sha256 of its own content.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.files import SEAL, seal_of, sha256
from chainrule.recipe import Base, Recipe, make_recipe
from chainrule.run.layout import ADAPTER, CHAT_TEMPLATE, CURE, FORMAT, MODEL, RECIPE, TOKENIZER
from chainrule.run.unfinished import read_begun
from chainrule.settings import flatten
from chainrule.tasks import find_task

FACTS = {"bytes": int, "sha256": str}
SHAPES: Mapping[str, Any] = {
    "chainrule": str, "kind": str, "task": str, "text": dict, "model": dict, "train": dict, "head": dict,
    "splits": {None: dict}, "done": {"rounds": int, "finished": bool}, "labels": [str], "excerpt": str, "source": dict,
    "files": {None: FACTS}, "base": {"path": str, "sha256": str},
}  # fmt: skip
"""The types in recipe.json: a list of one type, an object with these keys, or (None) with any. All are optional."""


def read_about(path: Path) -> dict[str, Any]:
    """The content of recipe.json; a UserError where there is no run, or one that this version cannot read."""
    if not path.exists():
        raise UserError(f"there is no run at {path}. `chainrule train TEXT --out {path}` would make one.")
    if not path.is_dir():
        raise UserError(f"{path} is a file; a run is a folder that `chainrule train` has made.")
    if not (path / RECIPE).is_file():
        if read_begun(path, damaged_is_none=True) is not None:
            raise UserError(f"{path} is not finished: the same `chainrule train` continues from its last checkpoint.")
        raise UserError(f"{path} is not a run: it has no {RECIPE}. A run is a folder that `chainrule train` has made.")
    try:
        about = json.loads((path / RECIPE).read_text(encoding="utf-8"))
        written, _ = int(about["format"]), {about[key] for key in ("chainrule", "kind", "task")}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{path / RECIPE} is damaged: not the JSON that chainrule wrote. {CURE}") from error
    if written > FORMAT:
        raise UserError(f"{path} was made by chainrule {about['chainrule']}, and this is {__version__}. Upgrade it.")
    if written < FORMAT:
        raise UserError(f"{path} has run format {written}, and this chainrule reads format {FORMAT}. Train it again: "
                        f"chainrule train … --out {path} --overwrite.")
    if SEAL in about and about[SEAL] != seal_of(about):    # runs of earlier versions have none
        raise UserError(f"{path / RECIPE} has been changed since it was written: its sha256 differs. {CURE}")
    if wrong := _misshapen(about):
        raise UserError(f"{path / RECIPE} is damaged: {wrong}. {CURE}")
    return dict(about)


def _misshapen(about: Mapping[str, Any]) -> str:
    """What in recipe.json is not of its type; empty: nothing."""
    for name, shape in SHAPES.items():
        if name in about and not _has_shape(about[name], shape):
            return f"`{name}` is not as chainrule writes it"
    if unknown := set(about.get("base", ())) - set(SHAPES["base"]):
        return f"`base` has an unknown key {min(unknown)}"
    return ""


def _has_shape(value: Any, shape: Any) -> bool:
    if isinstance(shape, list):
        return isinstance(value, list) and all(_has_shape(part, shape[0]) for part in value)
    if not isinstance(shape, dict):
        return isinstance(value, shape)
    if not isinstance(value, dict):
        return False
    if None in shape:
        return all(_has_shape(part, shape[None]) for part in value.values())
    return all(name in value and _has_shape(value[name], part) for name, part in shape.items())


def verify(path: Path, about: Mapping[str, Any]) -> None:
    """Refuses files that differ from those that were written."""
    files = about.get("files", {})
    for name in (weights_file(about), TOKENIZER, *([CHAT_TEMPLATE] if CHAT_TEMPLATE in files else [])):
        file, wanted = path / name, files.get(name, {})
        if not file.is_file():
            raise UserError(f"{path} is incomplete: {name} is missing. {CURE}")
        size = file.stat().st_size
        if size != wanted.get("bytes"):
            raise UserError(f"{file} is damaged: it has {size} bytes of {wanted.get('bytes')}. {CURE}")
        if sha256(file) != wanted.get("sha256"):
            raise UserError(f"{file} has been changed since it was written: its sha256 differs. {CURE}")


def weights_file(about: Mapping[str, Any]) -> str:
    """The name of a run's weights file."""
    return ADAPTER if ADAPTER in about.get("files", {}) else MODEL


def recipe_of(path: Path, about: Mapping[str, Any]) -> Recipe:
    given = flatten({part: about[part] for part in ("text", "model", "train", "head") if part in about})
    base = Base(**about["base"]) if "base" in about else None
    try:
        kind, task = about["kind"], find_task(about["task"])
        recipe = make_recipe(kind, task.model_class(kind), given, task=task)
        return replace(recipe, base=base)
    except UserError as error:
        made_by = f"{path} was made by chainrule {about['chainrule']}, and this is {__version__}"
        raise UserError(f"{made_by}: {error}") from error


def find_base(base: Base | None, near: Path) -> Path:
    """The base of the run at `near`: where it was at that time, or beside that run."""
    if base is None:
        raise UserError(f"{near / RECIPE} is damaged: it has no `base`, the run that this one was tuned from. {CURE}")
    there, seen = Path(base.path), ""
    for path in dict.fromkeys((there, near.parent / there.name)):
        if (path / RECIPE).is_file():
            about = read_about(path)
            if about.get("files", {}).get(weights_file(about), {}).get("sha256") == base.sha256:
                return path
            seen = f" ({path} has been trained again since)"
    raise UserError(f"{near} needs the run {there} whose weights have the sha256 {base.sha256[:12]}…, and it is "
                    f"not there{seen}. Put it back, or beside {near}.")
