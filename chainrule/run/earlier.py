"""An earlier run where a new one is to be written: it is continued, or replaced, or the new one is refused."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.recipe import Recipe
from chainrule.run.about import read_about
from chainrule.run.layout import FORMAT, INSTEAD, RECIPE
from chainrule.run.unfinished import left_over, read_begun
from chainrule.settings import flatten


def look_before_writing(path: Path, recipe: Recipe, overwrite: bool) -> dict[str, Any] | None:
    """The recipe.json of an earlier run by the same recipe at `path`, or None where a new run can be written there."""
    refuse_unwritable(path)
    if not path.exists():
        return None
    begun = read_begun(path, damaged_is_none=overwrite)
    if begun is not None and begun.get("format") != FORMAT:
        if not overwrite:
            raise UserError(f"{path} was begun by another version, whose checkpoints cannot be used. {INSTEAD}")
        return None
    if begun is not None:
        differing = differences(begun, recipe.as_dict())
        if differing and not overwrite:
            raise UserError(f"{path} holds another unfinished run: {'; '.join(differing)}. {INSTEAD}")
        return None if differing else begun
    if not (path / RECIPE).is_file():
        others = sorted(file.name for file in path.iterdir() if not left_over(file))
        if others:
            some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise UserError(f"{path} holds files that are not a run ({some}). Choose another folder.")
        return None
    if overwrite:
        return None
    about = read_about(path)
    if differing := differences(about, recipe.as_dict()):
        raise UserError(f"{path} holds another run: {'; '.join(differing)}. {INSTEAD}")
    return about


def refuse_unwritable(path: Path) -> None:
    near = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if near.is_dir() and not os.access(near, os.W_OK | os.X_OK):
        raise UserError(f"{near} may not be written to. Choose another folder.")
    if near != path and not near.is_dir():
        raise UserError(f"{near} is a file, so {path} cannot be made. Choose another folder.")
    if not near.is_dir():
        raise UserError(f"{path} is a file; a run is written to a folder. Choose another folder.")


def same_text(
    path: Path, about: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]], overwrite: bool = False
) -> bool:
    """Whether an earlier run was trained on this text; one on other text is refused, unless it may be overwritten."""
    was = {name: split["sha256"] for name, split in about["splits"].items()}
    now = {name: split["sha256"] for name, split in splits.items()}
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name) and not overwrite:
            raise UserError(f"{path} holds a run by the same recipe on other text: its {name} text differs. {INSTEAD}")
    return was == now


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """'model.order is 3 there and 5 here' for each setting that differs; for another kind, only that."""
    old = flatten({part: there.get(part) for part in here} | {"base": there.get("base", {})})
    new = flatten(json.loads(json.dumps(here)))  # as recipe.json has it: tuples are lists there
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name) and name != "base.path"]
    if "kind" in differing:
        differing = ["kind"]
    return [f"{name} is {old.get(name)} there and {new.get(name)} here" for name in differing]
